"""Where the tests get their services from, and what happens when one is missing.

A test needs a service when it uses one of the fixtures in `VARIABLES` (directly or through another fixture), or when it
is marked `needs("kafka")`, which is for tests that choose their fixture while they run. Where the variable of a
needed service is not set, the test is deselected and one closing line says what could not be tested; with `CI=true`
it fails instead. Nothing is ever skipped.
"""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import hypothesis
import pytest

VARIABLES = {
    "postgresql_url": "BOTHENDS_TEST_POSTGRESQL_URL",
    "postgresql18_url": "BOTHENDS_TEST_POSTGRESQL18_URL",
    "kafka_url": "BOTHENDS_TEST_KAFKA_URL",
    "kafka_proxied_url": "BOTHENDS_TEST_KAFKA_PROXIED_URL",
}
ORDERS = Path(
    os.environ.get("BOTHENDS_TEST_ORDERS") or Path(__file__).parents[1] / ".." / "shared" / "data" / "online-retail"
).resolve()
UNTESTED = pytest.StashKey[set[str]]()

# Two cores with three servers on them say nothing about how fast an example ran.
hypothesis.settings.register_profile("bothends", deadline=None, print_blob=True)
hypothesis.settings.load_profile("bothends")


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() in {"1", "true"}


def missing_services(item: pytest.Item) -> set[str]:
    """The services that the test needs and the environment does not name."""
    needed = set(VARIABLES).intersection(getattr(item, "fixturenames", ()))
    for marker in item.iter_markers("needs"):
        for service in marker.args:
            if f"{service}_url" not in VARIABLES:
                known = ", ".join(sorted(name.removesuffix("_url") for name in VARIABLES))
                raise pytest.UsageError(f"{item.nodeid}: needs({service!r}) is unknown; there are: {known}")
            needed.add(f"{service}_url")
    return {fixture.removesuffix("_url") for fixture in needed if not os.environ.get(VARIABLES[fixture])}


def pytest_configure(config: pytest.Config) -> None:
    config.stash[UNTESTED] = set()
    config.addinivalue_line("markers", "needs(*services): needs these services; see tests/conftest.py")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept, deselected = [], []
    for item in items:
        missing = set() if in_ci() else missing_services(item)
        if item.get_closest_marker("orders") and not ORDERS.is_dir():
            missing.add("the order data")
        config.stash[UNTESTED] |= missing
        (deselected if missing else kept).append(item)
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = kept


def pytest_runtest_setup(item: pytest.Item) -> None:
    if missing := missing_services(item):
        variables = ", ".join(VARIABLES[f"{service}_url"] for service in sorted(missing))
        pytest.fail(f"{variables} not set: with CI=true a missing service is a failure", pytrace=False)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if (output := getattr(session.config, "workeroutput", None)) is not None:  # a process of pytest-xdist
        output["untested"] = sorted(session.config.stash[UNTESTED])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: pytest.Session) -> None:
    node.config.stash[UNTESTED] |= set(getattr(node, "workeroutput", {}).get("untested", ()))


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if untested := config.stash[UNTESTED]:
        names = ", ".join(sorted(untested))
        terminalreporter.write_line(f'not tested, because missing: {names} (eval "$(scripts/services up)" helps)')


@pytest.fixture(scope="session")
def postgresql_url() -> str:
    """A superuser's URL of PostgreSQL 15 with wal_level=logical."""
    return os.environ[VARIABLES["postgresql_url"]]


@pytest.fixture(scope="session")
def postgresql18_url() -> str:
    """The same, PostgreSQL 18."""
    return os.environ[VARIABLES["postgresql18_url"]]


@pytest.fixture(scope="session")
def kafka_url() -> str:
    """kafka://host:port of a broker that creates no topics by itself."""
    return os.environ[VARIABLES["kafka_url"]]


@pytest.fixture(scope="session")
def kafka_proxied_url() -> str:
    """The same broker's other listener: it sends clients on to 127.0.0.1:19095, where the test's proxy listens."""
    return os.environ[VARIABLES["kafka_proxied_url"]]


@contextmanager
def fresh_database(server_url: str) -> Iterator[str]:
    """Create a database of a unique name, give its URL, and drop it with everybody who is still connected."""
    import psycopg
    from psycopg.sql import SQL

    name = f"bothends_test_{uuid.uuid4().hex[:12]}"
    url = urlsplit(server_url)._replace(path=f"/{name}").geturl()
    with psycopg.connect(server_url, autocommit=True) as server:
        server.execute(f'create database "{name}"')
    try:
        yield url
    finally:
        with psycopg.connect(server_url, autocommit=True) as server:
            # `force` ends sessions, but a prepared transaction would still keep the database.
            prepared = server.execute("select gid from pg_prepared_xacts where database = %s", [name]).fetchall()
            if prepared:
                with psycopg.connect(url, autocommit=True) as own:
                    for (gid,) in prepared:
                        own.execute(SQL("rollback prepared {}").format(gid))
            # A logical slot keeps its database too.
            server.execute("select pg_terminate_backend(active_pid, 5000) from pg_replication_slots "
                           "where database = %s and active_pid is not null", [name])
            server.execute("select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = %s", [name])
            server.execute(f'drop database if exists "{name}" with (force)')


@pytest.fixture
def pg_database(postgresql_url: str) -> Iterator[str]:
    """The URL of an empty database on PostgreSQL 15, dropped after the test."""
    with fresh_database(postgresql_url) as url:
        yield url


@pytest.fixture
def pg18_database(postgresql18_url: str) -> Iterator[str]:
    """The URL of an empty database on PostgreSQL 18, dropped after the test."""
    with fresh_database(postgresql18_url) as url:
        yield url


@pytest.fixture(scope="session")
def session_prefix() -> Iterator[str]:
    """What all topics of this run begin with; those that are left at its end are deleted."""
    prefix = f"test-{uuid.uuid4().hex[:10]}-"
    yield prefix
    if url := os.environ.get(VARIABLES["kafka_url"]):
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": url.removeprefix("kafka://"), "log_level": 0})
        if left := [topic for topic in admin.list_topics(timeout=10).topics if topic.startswith(prefix)]:
            for deleted in admin.delete_topics(left, operation_timeout=10).values():
                deleted.exception()


@pytest.fixture
def topic_prefix(session_prefix: str) -> str:
    """A string that no other test's topics and groups begin with."""
    return f"{session_prefix}{uuid.uuid4().hex[:8]}-"


@pytest.fixture(scope="session")
def orders_files() -> list[Path]:
    """The months of real orders, oldest first; use it with the marker `orders`."""
    return sorted(ORDERS.glob("*.csv.gz"))
