"""Every Python and shell block of README and docs runs, in the order in which a reader meets it."""

import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Block, blocks, pages
from tests.docs.running import Reader

pytestmark = pytest.mark.timeout(300)  # dozens of commands, one after the other

ELSEWHERE = {
    "docs/how-to/test-your-handlers.md": "tests/programs/test_programs.py",  # needs the users' programs around it
}
POSTGRESQL = ("postgresql://postgres@localhost/shop", "postgresql+psycopg://postgres@localhost/shop",
              "postgresql+asyncpg://postgres@localhost/shop")
KAFKA = "kafka://localhost:9092"
TOPICS = ("shop.events", "orders.events", "payments.events")


def _wants(page: Path, what: tuple[str, ...]) -> bool:
    return any(url in block.text for block in blocks(page) for url in what)


def _real(page: Path) -> bool:
    return _wants(page, POSTGRESQL) or _wants(page, (KAFKA,))


def _id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


WITH_CODE = [p for p in pages() if _id(p) not in ELSEWHERE and any(b.language in ("python", "sh") for b in blocks(p))]


@pytest.mark.parametrize("page", [p for p in WITH_CODE if not _real(p)], ids=_id)
def test_the_page_is_true_on_files(page: Path, tmp_path: Path) -> None:
    with Reader(tmp_path) as reader:
        reader.read(blocks(page))


@pytest.fixture
def group_prefix(kafka_url: str) -> Iterator[str]:
    """What the groups of one page begin with; they are deleted afterwards."""
    prefix = f"doc{uuid.uuid4().hex[:10]}-"
    yield prefix
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": kafka_url.removeprefix("kafka://"), "log_level": 0})
    groups = [g.group_id for g in admin.list_consumer_groups().result().valid if g.group_id.startswith(prefix)]
    for deleted in admin.delete_consumer_groups(groups).values() if groups else ():
        deleted.exception()


@pytest.mark.parametrize("page", [p for p in WITH_CODE if _real(p)], ids=_id)
def test_the_page_is_true_on_servers(
    page: Path, tmp_path: Path, pg_database: str, kafka_url: str, topic_prefix: str, group_prefix: str,
) -> None:
    replace = {url: url.split("://")[0] + "://" + pg_database.split("://")[1] for url in POSTGRESQL}
    replace |= {KAFKA: kafka_url, **{topic: topic_prefix + topic for topic in TOPICS}}
    with Reader(
        tmp_path, replace=replace, hide=[topic_prefix, group_prefix], environment={"BOTHENDS_GROUP_PREFIX": group_prefix},
    ) as reader:
        reader.read(blocks(page))


def test_the_example_of_the_readme_can_be_run_again(tmp_path: Path) -> None:
    """A newcomer does, and each run places an order of its own."""
    page = ROOT / "README.md"
    [example] = [block for block in blocks(page) if block.file == "shop.py"]
    again = [Block(_id(page), 0, "sh", command, example.section) for command in (
        "bothends schema apply shop", "python shop.py", "python shop.py")]
    with Reader(tmp_path) as reader:
        reader.read([example, *again])
    with closing(sqlite3.connect(tmp_path / "shop.db")) as db:
        assert db.execute("select id from orders").fetchall() == [(1,), (2,)]
        assert db.execute("select key from bothends_outbox order by seq").fetchall() == [(b"1",), (b"2",)]


@pytest.mark.parametrize(("page", "test"), ELSEWHERE.items())
def test_other_pages_are_run_elsewhere(page: str, test: str) -> None:
    assert (ROOT / page).is_file()
    assert Path(page).name in (ROOT / test).read_text("utf-8")
