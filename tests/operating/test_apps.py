"""From the name of a module to its services: what is found, what is not, and what is said then."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bothends.errors import ConfigError
from bothends.operating.apps import load

TWO = """
from bothends import Retry, Service
orders = Service("orders", database="sqlite:///o.db")
stock = Service("stock", database="sqlite:///s.db")
also = orders
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    for name in ("BOTHENDS_DATABASE_URL", "BOTHENDS_BROKER_URL"):
        monkeypatch.delenv(name, raising=False)
    before, path = set(sys.modules), list(sys.path)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def write(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.py").write_text(text)


def test_a_module_gives_all_its_services_once(folder: Path) -> None:
    write(folder, "two_a", TWO)
    app = load("two_a")
    assert [service.name for service in app.services] == ["orders", "stock"]
    assert app.settings["stock"].database_url == "sqlite:///s.db"


def test_a_name_gives_that_one(folder: Path) -> None:
    write(folder, "two_b", TWO)
    assert [service.name for service in load("two_b:stock").services] == ["stock"]


def test_included_modules_register_their_handlers(folder: Path) -> None:
    write(folder, "inc_app", 'from bothends import Service\nshop = Service("shop", include=["inc_handlers"])\n'
          'stock = shop.consumer("stock", topic="t")\n')
    write(folder, "inc_handlers", "from dataclasses import dataclass\nfrom bothends import event\nfrom inc_app import stock\n"
          "@event('a')\n@dataclass\nclass A:\n    x: int\n@stock.handle(A)\ndef handle(a): ...\n")
    app = load("inc_app")
    assert [consumer.name for consumer in app.consumers()] == ["shop.stock"]
    assert app.consumers(names=["stock"]) == app.consumers("shop", ["shop.stock"])
    prefixed = load(app.name, {"group_prefix": "blue."})
    assert [consumer.name for consumer in prefixed.consumers(names=["blue.shop.stock"])] == ["shop.stock"]


@pytest.mark.parametrize(("name", "says"), [
    ("not_there", "no module 'not_there'"), ("pack.not_there", "no module"), ("two_c:nope", "it has orders, stock, also"),
    ("two_c:__name__", "no Service named"), ("a-b", "not a module's name"), ("", "not a module's name"),
    (".two_c", "not a module"),
])
def test_what_is_not_there_is_named(folder: Path, name: str, says: str) -> None:
    write(folder, "two_c", TWO)
    with pytest.raises(ConfigError) as caught:
        load(name)
    assert says in str(caught.value)


def test_a_module_that_ends_the_process_is_told_so(folder: Path) -> None:
    (folder / "ender.py").write_text("import sys; sys.exit(0)")
    with pytest.raises(ConfigError, match=r"ends the process when it is imported, by sys.exit\(0\)"):
        load("ender")


def test_a_module_without_services(folder: Path) -> None:
    write(folder, "nothing", "x = 1\n")
    with pytest.raises(ConfigError, match="declares no Service"):
        load("nothing")


def test_two_services_of_one_name(folder: Path) -> None:
    write(folder, "twins", 'from bothends import Service\na = Service("a")\nb = Service("a")\n')
    with pytest.raises(ConfigError, match="two services named 'a'"):
        load("twins")


def test_an_import_that_fails_inside_passes_through(folder: Path) -> None:
    write(folder, "broken_inside", "import nowhere_to_be_found\n")
    with pytest.raises(ModuleNotFoundError, match="nowhere_to_be_found"):
        load("broken_inside")
    write(folder, "broken_include", 'from bothends import Service\na = Service("a", include=["gone"])\n')
    with pytest.raises(ConfigError, match="include of service a"):
        load("broken_include")


def test_a_worker_without_work_is_told_why(folder: Path) -> None:
    write(folder, "idle", 'from bothends import Service\na = Service("a")\n')
    with pytest.raises(ConfigError, match="include="):
        load("idle").consumers()
    write(folder, "handlerless", 'from bothends import Service\na = Service("a")\nc = a.consumer("c", topic="t")\n')
    with pytest.raises(ConfigError, match="has no handler"):
        load("handlerless").consumers()
    with pytest.raises(ConfigError, match=r"there is a\.c"):
        load("handlerless").consumers(names=["d"])


def test_services_are_not_guessed(folder: Path) -> None:
    write(folder, "two_d", TWO)
    app = load("two_d")
    with pytest.raises(ConfigError, match="--service: orders, stock"):
        app.service(None)
    with pytest.raises(ConfigError, match="no service 'x'"):
        app.service("x")
    assert app.service("stock").name == "stock"


def test_one_outbox_per_database_and_schema(folder: Path) -> None:
    write(folder, "boxes", """
from bothends import Service
a = Service("a", database="postgres://h/d")
b = Service("b", database="postgresql+asyncpg://h/d")
c = Service("c", database="postgresql://h/d", schema="other")
""")
    assert [(box.name, box.url, box.schema) for box in load("boxes").outboxes()] == [
        ("a+b", "postgresql://h/d", "bothends"), ("c", "postgresql://h/d", "other")]
    assert [box.name for box in load("boxes").outboxes("b")] == ["b"]


def test_services_of_one_outbox_have_one_policy(folder: Path) -> None:
    write(folder, "policies", """
from bothends import Retry, Service
a = Service("a", database="sqlite:///x.db", publish=Retry(attempts=3))
b = Service("b", database="sqlite:///x.db")
""")
    with pytest.raises(ConfigError, match="differ in publish="):
        load("policies").outboxes()


def test_services_of_one_outbox_have_one_source(folder: Path) -> None:
    write(folder, "sources", """
from bothends import Service
a = Service("a", database="postgresql://h/d", relay_source="wal")
b = Service("b", database="postgresql://h/d")
c = Service("c", database="sqlite:///x.db")
""")
    app = load("sources", {"relay_source": "poll"})
    assert [(box.name, box.source) for box in app.outboxes()] == [("a+b", "poll"), ("c", "poll")]
    with pytest.raises(ConfigError, match=r"a, b share one outbox but differ in relay_source \(auto, wal\)"):
        load("sources").outboxes()
    assert load("sources").outboxes("b")[0].source == "auto"
    with pytest.raises(ConfigError, match="only PostgreSQL has a log"):
        load("sources", {"relay_source": "wal"}).check(service="c", relays=True, workers=False, consumers=())
