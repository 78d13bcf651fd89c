"""Migrations: up and down, one at a time, as text, and with the rights that are granted [M7]."""

from __future__ import annotations

import sqlite3
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from bothends import ConfigError, DuplicateEventId, Service
from bothends.stores import Store, open_store
from bothends.stores.schema import apply, grants, migrations, quoted_schema, script, status
from bothends.stores.steps import Sql
from tests.stores.handles import path_of

pg = pytest.mark.needs("postgresql")
TABLES = {
    "meta", "outbox", "relays", "relay_lanes", "relay_progress", "held", "delayed", "consumers", "inbox", "blocked_keys",
    "parked", "dead_letters", "runs", "effects", "audit",
}


@pytest.fixture(params=["sqlite", pytest.param("pg_database", marks=pg),
                        pytest.param("pg18_database", marks=pytest.mark.needs("postgresql18"))])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "sqlite":
        return open_store(f"sqlite:///{tmp_path}/own.db")
    return open_store(request.getfixturevalue(request.param))


def rows(store: Store, text: str) -> list[tuple[Any, ...]]:
    connection = store.connect()
    try:
        return connection.execute(Sql(text)).rows
    finally:
        connection.close()


def tables(store: Store) -> set[str]:
    if store.dialect == "sqlite":
        found = rows(store, "select name from sqlite_master where type = 'table'")
        return {name.removeprefix("bothends_") for (name,) in found if name.startswith("bothends_")}
    found = rows(store, f"select table_name from information_schema.tables where table_schema = '{store.schema}'")
    return {name for (name,) in found}


def test_up_and_down_and_up_again(store: Store) -> None:
    every = [m.name for m in migrations("sqlite" if store.dialect == "sqlite" else "postgresql")]
    latest = len(every)
    assert status(store) == (0, latest, every)
    assert apply(store, 1) == [f"{every[0]} up"]
    assert status(store).pending == every[1:]
    assert not status(store).ok
    assert apply(store) == [f"{name} up" for name in every[1:]]
    assert apply(store) == []
    assert status(store).ok
    assert tables(store) >= TABLES
    assert apply(store, 1) == [f"{name} down" for name in reversed(every[1:])]
    assert apply(store, 0) == [f"{every[0]} down"]
    assert tables(store) == set()
    assert status(store) == (0, latest, every)
    assert len(apply(store)) == latest


def test_two_deployments_at_once(store: Store) -> None:
    start = threading.Barrier(4)

    def deploy(_: int) -> int:
        start.wait(10)
        return len(apply(store))

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(deploy, range(4))) == [0, 0, 0, status(store).latest]


def test_a_migration_that_fails_leaves_nothing_behind(store: Store) -> None:
    apply(store, 1)
    connection = store.connect()
    taken = "bothends_audit" if store.dialect == "sqlite" else '"bothends".audit'
    connection.execute(Sql(f"create table {taken} (n int)", rows=False))
    connection.close()
    before = tables(store)
    with pytest.raises((sqlite3.OperationalError, psycopg.errors.DuplicateTable)):
        apply(store)
    assert (status(store).version, tables(store)) == (1, before)


def test_a_newer_database_is_left_alone(store: Store) -> None:
    apply(store)
    meta = "bothends_meta" if store.dialect == "sqlite" else '"bothends".meta'
    connection = store.connect()
    connection.execute(Sql(f"update {meta} set value = '99'", rows=False))
    connection.close()
    with pytest.raises(ConfigError, match="99"):
        apply(store)
    assert not status(store).ok
    with pytest.raises(ConfigError, match="no schema version"):
        apply(store, 100)


def test_the_script_does_what_apply_does(pg_database: str, tmp_path: Path) -> None:
    with psycopg.connect(pg_database) as connection:
        connection.execute(script("postgresql", "by hand").encode())
    by_hand = open_store(pg_database, "by hand")
    assert status(by_hand).ok
    assert apply(by_hand) == []
    lite = sqlite3.connect(tmp_path / "hand.db")
    lite.executescript(script("sqlite", ""))
    lite.close()
    assert status(open_store(f"sqlite:///{tmp_path}/hand.db")).ok
    later = script("postgresql", "by hand", since=1)
    assert "create schema" not in later
    assert "outbox_add" not in later


def test_both_dialects_have_the_same_tables_and_columns(pg_database: str, tmp_path: Path) -> None:
    first, second = open_store(pg_database), open_store(f"sqlite:///{tmp_path}/own.db")
    apply(first)
    apply(second)
    only_postgresql = {("outbox", "xid"), ("relay_progress", "snapshot")}
    only_sqlite = {("outbox", "key_lane"), ("outbox", "lane"), ("relays", "boot"), ("relays", "boot_until")}
    for table in sorted(TABLES):
        columns = {
            (table, name) for (name,) in rows(first, "select column_name from information_schema.columns where "
                                                     f"table_schema = 'bothends' and table_name = '{table}'")
        }
        lite = {(table, row[1]) for row in rows(second, f"pragma table_xinfo(bothends_{table})")}
        assert columns - only_postgresql == lite - only_sqlite, table


@pytest.mark.parametrize("name", ["bothends", "Shop 2", "größe", "a-b$", "x" * 63])
def test_any_identifier_is_a_schema(pg_database: str, name: str) -> None:
    store = open_store(pg_database, name)
    apply(store)
    assert status(store).ok
    with psycopg.connect(pg_database) as connection:
        outbox = Service("a", schema=name).outbox
        outbox.add(connection, {}, type="t", id="1")
        with pytest.raises(DuplicateEventId):
            outbox.add(connection, {}, type="t", id="1")


@pytest.mark.parametrize("name", ["", "1a", 'a"b', "a'b", "a:b", "a{b", "a%b", "a\0b", "a\nb", "x" * 64, "ö" * 32])
def test_what_is_no_identifier_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="schema="):
        quoted_schema(name)


@pg
def test_a_database_without_an_encoding_is_refused(postgresql_url: str) -> None:
    """It takes bytes that are no text, and whoever reads past them stops there."""
    name = f"bothends_test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgresql_url, autocommit=True) as server:
        server.execute(f"create database {name} encoding 'SQL_ASCII' locale 'C' template template0")
        try:
            with pytest.raises(ConfigError, match="SQL_ASCII"):
                apply(open_store(urlsplit(postgresql_url)._replace(path=f"/{name}").geturl()))
        finally:
            server.execute(f"drop database {name} with (force)")


@pytest.fixture
def role(pg_database: str) -> Iterator[str]:
    name = f"bothends test {uuid.uuid4().hex[:12]}"
    with psycopg.connect(pg_database, autocommit=True) as connection:
        connection.execute(f'create role "{name}"'.encode())
        yield name
        connection.execute(f'drop owned by "{name}"'.encode())
        connection.execute(f'drop role "{name}"'.encode())


def test_a_role_that_may_add_can_add_and_no_more(pg_database: str, role: str) -> None:
    apply(open_store(pg_database))
    outbox = Service("a").outbox
    with psycopg.connect(pg_database) as connection:
        connection.execute(grants("bothends", role, "add").encode())
        connection.execute(f'set local role "{role}"'.encode())
        outbox.add(connection, {}, type="t")
        outbox.add(connection, {}, type="t", id="1")
        with pytest.raises(DuplicateEventId):
            outbox.add(connection, {}, type="t", id="1")
        for forbidden in ("delete from bothends.outbox", "select from bothends.inbox", "update bothends.meta set value = ''"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege), connection.transaction():
                connection.execute(forbidden.encode())


def test_a_role_that_may_run_can_read_write_and_rotate(pg_database: str, role: str) -> None:
    apply(open_store(pg_database))
    with psycopg.connect(pg_database) as connection:
        connection.execute(grants("bothends", role, "run").encode())
        connection.execute(f'set local role "{role}"'.encode())
        Service("a").outbox.add(connection, {}, type="t", id="1")
        for allowed in ("truncate bothends.outbox_1", "delete from bothends.inbox", "update bothends.meta set value = '1'"):
            connection.execute(allowed.encode())


def test_a_schema_that_exists_needs_no_right_to_create_one(pg_database: str, role: str) -> None:
    with psycopg.connect(pg_database, autocommit=True) as connection:
        connection.execute(f'create schema bothends authorization "{role}"; alter role "{role}" login'.encode())
    url = pg_database.replace("postgres@", f"{role.replace(' ', '%20')}@")
    assert len(apply(open_store(url))) == status(open_store(url)).latest


def test_sqlites_file_keeps_its_promises(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/own.db"
    store = open_store(url)
    apply(store)
    assert rows(store, "pragma journal_mode") == [("wal",)]
    assert rows(store, "pragma synchronous") == [(2,)]
    caller = sqlite3.connect(path_of(url))
    assert caller.execute("pragma journal_mode").fetchone() == ("wal",)
    assert caller.execute("pragma synchronous").fetchone() == (2,)
    caller.close()
