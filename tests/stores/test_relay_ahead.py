"""A page that was asked for ahead: it comes whole whenever it is read, an error of it is met there, and a relay that never
reads it does not pin the database."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from bothends.core.relaying import EVERY_LANE, Cursor, Stream
from bothends.stores import Store, open_store
from bothends.stores.connection import Connection
from bothends.stores.postgresql import relay_rows
from bothends.stores.schema import apply
from bothends.stores.steps import Sql, begin
from tests.conftest import fresh_database

ROWS, BODY = 1_000, 20_000
"""More than the buffers of two sockets hold."""


@pytest.fixture(scope="module", params=[
    pytest.param("postgresql_url", marks=pytest.mark.needs("postgresql"), id="15"),
    pytest.param("postgresql18_url", marks=pytest.mark.needs("postgresql18"), id="18"),
])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    with fresh_database(request.getfixturevalue(request.param)) as url:
        found = open_store(url)
        apply(found)
        with psycopg.connect(url, autocommit=True) as c:
            c.execute(
                "insert into bothends.outbox (id, source, type, topic, body, time) select g::text, 's', 't', 'topic', "
                "convert_to(repeat('x', %s), 'UTF8'), '2026-01-01T00:00:00Z' from generate_series(1, %s) g", (BODY, ROWS))
        yield found


@pytest.fixture
def connection(store: Store) -> Iterator[Connection]:
    steps: Any = store.relay
    made = store.connect(name="bothends ahead", factory=steps.connection_factory)
    yield made
    made.close()


def ask(store: Store, connection: Connection) -> tuple[Any, Any]:
    """The executor, and the page that is on its way."""
    steps: Any = store.relay
    executor = steps.executor(connection)
    stream = Stream(EVERY_LANE, *Cursor(0, "1:1:"))
    return executor, begin(steps.rows.fetch([stream], limit=ROWS), executor)


def test_it_is_whole_after_other_statements(store: Store, connection: Connection) -> None:
    executor, page = ask(store, connection)
    assert executor.execute(Sql("select 7")).rows == [(7,)]
    found = page()
    assert len({row[3] for row in found.rows}) == len(found.rows) > 1
    assert all(row[8] == b"x" * BODY for row in found.rows)
    assert executor.execute(Sql("select 8")).rows == [(8,)]


def test_one_that_nobody_wants_is_dropped(store: Store, connection: Connection) -> None:
    executor, _ = ask(store, connection)
    steps: Any = store.relay
    stream = Stream(EVERY_LANE, *Cursor(0, "1:1:"))
    again = begin(steps.rows.fetch([stream], limit=3), executor)
    assert len(again().rows) == 3


def test_its_error_is_met_where_it_is_read(store: Store, connection: Connection) -> None:
    steps: Any = store.relay
    executor = steps.executor(connection)

    def divide() -> Any:
        found = yield Sql("select 1 / :n::int", {"n": 0})
        return found.rows

    answer = begin(divide(), executor)
    with pytest.raises(psycopg.errors.DivisionByZero):
        answer()
    assert executor.execute(Sql("select 1")).rows == [(1,)]


def test_a_connection_that_ends_meanwhile_is_said(store: Store, connection: Connection) -> None:
    executor, _ = ask(store, connection)
    with psycopg.connect(store.url, autocommit=True) as c:
        c.execute("select pg_terminate_backend(%s, 5000)", [connection.driver.info.backend_pid])
    with pytest.raises(psycopg.OperationalError):
        executor.execute(Sql("select 1"))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[float]:
    """Seconds that the server waits, fewer than it does for users."""
    monkeypatch.setattr(relay_rows, "UNREAD_MS", 1_000)
    relay_rows._fetch_text.cache_clear()
    yield 1.0
    relay_rows._fetch_text.cache_clear()


def test_a_relay_that_stands_still_does_not_pin_the_database(
    store: Store, connection: Connection, impatient: float
) -> None:
    """The server ends the connection of a client that does not read, and with it the snapshot and the locks."""
    ask(store, connection)
    pid = connection.driver.info.backend_pid
    pinned = "select backend_xmin is not null from pg_stat_activity where pid = %s"
    with psycopg.connect(store.url, autocommit=True) as c:
        deadline = time.monotonic() + 10 * impatient
        assert c.execute(pinned, [pid]).fetchone() == (True,), "this page is too small to show anything"
        while c.execute(pinned, [pid]).fetchone() is not None and time.monotonic() < deadline:
            c.execute("select pg_sleep(0.05)")
        assert c.execute(pinned, [pid]).fetchone() is None


def test_what_is_ours_reads_committed_whatever_the_database_says(store: Store) -> None:
    with psycopg.connect(store.url, autocommit=True) as c:
        name = c.info.dbname
        c.execute(f'alter database "{name}" set default_transaction_isolation = serializable')
    try:
        ours = store.connect()
        ours.begin()
        assert ours.execute(Sql("show transaction_isolation")).rows == [("read committed",)]
        ours.rollback()
        assert ours.begin_with(Sql("select current_setting('transaction_isolation')")).rows == [("read committed",)]
        ours.rollback()
        ours.close()
    finally:
        with psycopg.connect(store.url, autocommit=True) as c:
            c.execute(f'alter database "{name}" reset default_transaction_isolation')
