"""The same id twice in one source [A4], on PostgreSQL 15 and 18: at once, later, in two open transactions, across the
border of two children, and with an old snapshot."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel, sql

from bothends import DuplicateEventId, Service
from bothends.stores import open_store
from bothends.stores.schema import apply
from tests.conftest import fresh_database
from tests.stores.conftest import Look
from tests.stores.handles import path_of

CHILD = 1_048_576
Connection = psycopg.Connection[Any]


@pytest.fixture(
    params=[pytest.param("pg15_url", marks=pytest.mark.needs("postgresql")),
            pytest.param("pg18_url", marks=pytest.mark.needs("postgresql18"))],
)
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


@pytest.fixture(
    params=[pytest.param("postgresql", marks=pytest.mark.needs("postgresql")),
            pytest.param("postgresql18", marks=pytest.mark.needs("postgresql18"))],
)
def own_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A database whose outbox has one user, so that its sequence can be set."""
    with fresh_database(request.getfixturevalue(f"{request.param}_url")) as url:
        apply(open_store(url))
        yield url


@contextmanager
def waiting(url: str, connection: Connection) -> Iterator[Callable[[], None]]:
    """What returns once ``connection``'s backend waits for a lock; asked of the server, without sleeping."""
    pid = connection.info.backend_pid
    with psycopg.connect(url, autocommit=True) as eye:

        def wait() -> None:
            for _ in range(20_000):
                row = eye.execute("select cardinality(pg_blocking_pids(%s))", [pid]).fetchone()
                if row and row[0]:
                    return
            raise AssertionError("the second transaction did not wait for the first")

        yield wait


def add(service: Service, connection: Connection, id: str) -> str:
    return service.outbox.add(connection, {"id": id}, type="t", id=id)


def test_an_id_that_is_committed_is_refused(url: str, service: Service, look: Callable[[str], Look]) -> None:
    with psycopg.connect(url) as first:
        add(service, first, "a")
    with psycopg.connect(url) as second:
        with pytest.raises(DuplicateEventId):
            add(service, second, "a")
        add(service, second, "b")
    assert look(url).ids == ["a", "b"]


def test_sources_do_not_share_ids(url: str, service: Service) -> None:
    other = Service(f"{service.name}-other")
    with psycopg.connect(url) as connection:
        add(service, connection, "a")
        add(other, connection, "a")


def test_a_rolled_back_id_is_free(url: str, service: Service, look: Callable[[str], Look]) -> None:
    with psycopg.connect(url) as connection:
        with connection.transaction(force_rollback=True):
            add(service, connection, "a")
        add(service, connection, "a")
    assert look(url).ids == ["a"]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_second_open_transaction_waits_for_the_first(
    url: str, service: Service, look: Callable[[str], Look], end: str
) -> None:
    with closing(psycopg.connect(url)) as first, closing(psycopg.connect(url)) as second, \
            waiting(url, second) as wait, ThreadPoolExecutor(1) as pool:
        add(service, first, "a")
        result = pool.submit(add, service, second, "a")
        wait()
        getattr(first, end)()
        if end == "commit":
            with pytest.raises(DuplicateEventId):
                result.result(10)
            add(service, second, "b")
            second.commit()
            assert look(url).ids == ["a", "b"]
        else:
            assert result.result(10) == "a"
            second.commit()
            assert look(url).ids == ["a"]


def test_one_of_many_threads_wins(url: str, service: Service, look: Callable[[str], Look]) -> None:
    start = threading.Barrier(6)

    def one(_: int) -> bool:
        with psycopg.connect(url) as connection:
            start.wait(10)
            try:
                add(service, connection, "a")
            except DuplicateEventId:
                return False
            return True

    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(one, range(6))) == [False] * 5 + [True]
    assert look(url).ids == ["a"]


def set_sequence(connection: Connection, value: int) -> None:
    connection.execute("select setval('bothends.outbox_seq', %s)", [value])


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_across_the_border_of_two_children_the_second_waits_too(
    own_url: str, service: Service, look: Callable[[str], Look], end: str
) -> None:
    with closing(psycopg.connect(own_url)) as first, closing(psycopg.connect(own_url)) as second, \
            waiting(own_url, second) as wait, ThreadPoolExecutor(1) as pool:
        set_sequence(first, CHILD - 3)
        first.commit()
        add(service, first, "a")  # the last value but one of its child
        first.execute("select nextval('bothends.outbox_seq') from generate_series(1, 10)")
        result = pool.submit(add, service, second, "a")
        wait()
        getattr(first, end)()
        if end == "commit":
            with pytest.raises(DuplicateEventId):
                result.result(10)
            second.commit()
        else:
            result.result(10)
            second.commit()
        seen = look(own_url)
        assert seen.ids == ["a"]
        assert (seen.column("seq")[0] < CHILD) == (end == "commit")


def test_the_previous_child_counts_when_it_is_committed(own_url: str, service: Service) -> None:
    with psycopg.connect(own_url) as connection:
        set_sequence(connection, CHILD - 2)
        add(service, connection, "a")
        connection.commit()
        set_sequence(connection, 2 * CHILD - 10)
        with pytest.raises(DuplicateEventId):
            add(service, connection, "a")
        add(service, connection, "b")


def test_a_transaction_that_crosses_the_border_refuses_its_own_id(own_url: str, service: Service) -> None:
    with psycopg.connect(own_url) as connection:
        set_sequence(connection, CHILD - 2)
        connection.commit()
        add(service, connection, "a")
        for n in range(5):
            add(service, connection, f"more {n}")
        with pytest.raises(DuplicateEventId):
            add(service, connection, "a")


@pytest.mark.parametrize("border", [False, True], ids=["one child", "two children"])
@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
def test_with_an_old_snapshot_an_unseen_id_is_found(
    own_url: str, service: Service, look: Callable[[str], Look], level: IsolationLevel, border: bool
) -> None:
    with closing(psycopg.connect(own_url)) as old, closing(psycopg.connect(own_url)) as new:
        set_sequence(new, CHILD + 10)
        new.commit()
        old.isolation_level = level
        old.execute("select count(*) from bothends.meta")  # from here on the snapshot is fixed
        add(service, new, "a")
        new.commit()
        if border:
            set_sequence(new, 2 * CHILD)
        with pytest.raises(DuplicateEventId):
            add(service, old, "a")
        add(service, old, "b")
        old.commit()
        assert look(own_url).ids == ["a", "b"]


def test_a_prepared_transaction_holds_its_ids_across_the_border(own_url: str, service: Service) -> None:
    with closing(psycopg.connect(own_url)) as first, closing(psycopg.connect(own_url)) as second, \
            waiting(own_url, second) as wait, ThreadPoolExecutor(1) as pool:
        set_sequence(first, 2 * CHILD - 3)
        first.commit()
        first.tpc_begin(first.xid(1, service.source, "branch"))
        add(service, first, "a")
        first.execute("select nextval('bothends.outbox_seq') from generate_series(1, 10)")
        first.tpc_prepare()
        result = pool.submit(add, service, second, "a")
        wait()
        first.tpc_commit()
        with pytest.raises(DuplicateEventId):
            result.result(10)
        add(service, second, "b")
        second.commit()


def test_many_given_ids_need_few_locks(own_url: str, service: Service) -> None:
    with closing(psycopg.connect(own_url)) as connection:
        for n in range(300):
            add(service, connection, f"import {n}")
        row = connection.execute(
            "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"
        ).fetchone()
        assert row == (1,)


def test_what_was_tried_in_the_other_child_is_never_seen(own_url: str, service: Service) -> None:
    with closing(psycopg.connect(own_url)) as old, closing(psycopg.connect(own_url)) as eye:
        set_sequence(old, CHILD + 10)
        old.commit()
        old.isolation_level = IsolationLevel.REPEATABLE_READ
        add(service, old, "a")
        old.commit()
        query = sql.SQL("select seq from bothends.outbox where source = {}").format(service.source)
        assert eye.execute(query).fetchall() == [(CHILD + 11,)]


def test_sqlite_a_second_writer_waits_and_is_refused(
    sqlite_url: str, service: Service, look: Callable[[str], Look]
) -> None:
    connect = lambda: closing(sqlite3.connect(path_of(sqlite_url), check_same_thread=False, timeout=10))  # noqa: E731
    with connect() as first, connect() as second, ThreadPoolExecutor(1) as pool:
        service.outbox.add(first, {}, type="t", id="a")
        result = pool.submit(service.outbox.add, second, {}, type="t", id="a")
        assert not result.done()
        first.commit()
        with pytest.raises(DuplicateEventId):
            result.result(10)
        service.outbox.add(second, {}, type="t", id="b")
        second.commit()
    assert look(sqlite_url).ids == ["a", "b"]
