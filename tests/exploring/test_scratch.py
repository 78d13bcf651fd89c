"""Scratch databases: made beside the service's own, which is left alone, and gone afterwards whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import psycopg
import pytest

from bothends import ConfigError, Context, Retry, Service
from bothends.testing import explore
from bothends.testing.exploring.boundaries import Fault, Kind
from bothends.testing.exploring.databases import Database, own_url
from bothends.testing.exploring.scratch import PREFIX, Scratch, in_database
from bothends.testing.exploring.server_clock import lent
from bothends.testing.exploring.worlds import World
from tests.exploring.planted import marks
from tests.exploring.planted.events import ONE, STOCK, Paid

DB = Context[psycopg.Connection[Any]]


@pytest.fixture
def server(postgresql_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgresql_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def own(server: psycopg.Connection[Any], postgresql_url: str) -> Iterator[str]:
    """The URL of a database with something in it."""
    name = f"bothends_own_{uuid.uuid4().hex[:12]}"
    server.execute(f"create database {name}")
    url = in_database(postgresql_url, name)
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("create table stock (units integer); insert into stock values (77)")
        yield url
    finally:
        server.execute(f"drop database {name} with (force)")


def databases(server: psycopg.Connection[Any]) -> set[str]:
    return {row[0] for row in server.execute("select datname from pg_database").fetchall()}


def naming(url: str) -> Service:
    """Its handler says in which database it is, by the worker's connection and by its own."""
    service = Service("naming", database=url)

    @service.consumer("name").handle(Paid)
    def name(paid: Paid, ctx: DB) -> None:
        with psycopg.connect(url) as mine:
            (where,) = mine.execute("select current_database()").fetchone() or ("",)
        ctx.connection.execute("insert into named values (current_database(), %s)", [where])

    return service


def test_the_service_s_own_database_is_left_alone(own: str, server: psycopg.Connection[Any]) -> None:
    service = naming(own)
    assert own_url([service]) == own
    said: list[tuple[str, str]] = []
    kept = said.append

    def look(db: Any) -> bool:
        kept(db.execute("select * from named").fetchone())
        return True

    def start(db: Any) -> None:
        db.execute("create table named (here text, mine text)")

    report = explore(service, [ONE], start=start, invariant=look, budget=6)
    assert report.ok, str(report)
    with psycopg.connect(own) as connection:
        assert connection.execute("select units from stock").fetchall() == [(77,)]
        assert connection.execute("select nspname from pg_namespace where nspname like 'bothends%'").fetchall() == []
    names = {name for row in said for name in row}
    assert len(names) == 1
    assert next(iter(names)).startswith(PREFIX)
    assert not names & databases(server)


def test_an_exploration_with_several_hosts(own: str) -> None:
    """As a URL for a failover has them: the driver goes from one to the other."""
    parts = urlsplit(own)
    place = f"{parts.hostname}:{parts.port}"
    service = naming(parts._replace(netloc=f"{parts.username}@127.0.0.1:1,{place}").geturl())
    said: list[tuple[str, str]] = []

    def look(db: Any) -> bool:
        said.append(db.execute("select * from named").fetchone())
        return True

    def start(db: Any) -> None:
        db.execute("create table named (here text, mine text)")

    report = explore(service, [ONE], start=start, invariant=look, budget=3)
    assert report.ok, str(report)
    assert {here == mine and here.startswith(PREFIX) for here, mine in said} == {True}


def test_an_interrupted_exploration_leaves_nothing(postgresql_url: str, server: psycopg.Connection[Any]) -> None:
    said: list[str] = []

    def interrupted(db: Any) -> bool:
        said.append(db.info.dbname)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        explore(marks.PLANTS[1].make(False), [ONE], start=marks.start, invariant=interrupted, database=postgresql_url)
    (name,) = said
    assert not {name, f"{name}_start"} & databases(server)


_KILLED = """
import os, signal, sys
from bothends.testing.exploring.scratch import Scratch
scratch = Scratch(sys.argv[1], sys.argv[2])
scratch.keep_start()
print("made", flush=True)
signal.pause()
"""


def test_what_a_killed_exploration_left_is_swept(postgresql_url: str, server: psycopg.Connection[Any]) -> None:
    token = uuid.uuid4().hex[:16]
    with subprocess.Popen(
        [sys.executable, "-c", _KILLED, postgresql_url, token], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "made\n"
        left = {f"{PREFIX}{token}", f"{PREFIX}{token}_start"}
        with_sweep = Scratch(postgresql_url, uuid.uuid4().hex[:16])
        assert left <= databases(server)  # it lives
        process.send_signal(signal.SIGKILL)
        process.wait()
    asked = "select 1 from pg_stat_activity where application_name = %s"
    while server.execute(asked, [f"{PREFIX}{token}"]).fetchone():
        pass
    with_sweep.close()
    Scratch(postgresql_url, uuid.uuid4().hex[:16]).close()
    assert not left & databases(server)


def test_a_role_that_may_not_make_databases_is_told(postgresql_url: str, server: psycopg.Connection[Any]) -> None:
    with role(server, "") as name, pytest.raises(ConfigError, match="createdb"):
        Scratch(as_role(postgresql_url, name), uuid.uuid4().hex[:16])


def test_a_role_without_superpowers_gets_clones(postgresql_url: str, server: psycopg.Connection[Any]) -> None:
    service = marks.PLANTS[0].make(True)

    def prepare(db: Any, database: Database) -> None:
        db.execute(STOCK)
        database.publish(db, [service], [ONE])

    with role(server, "createdb") as name:
        with World([service], prepare, url=as_role(postgresql_url, name)).opened() as world:
            endings = [world.run({}), world.run({})]
            commit = next(b.number for b in endings[0].tape.boundaries if b.kind is Kind.COMMIT and b.consumer)
            endings.append(world.run({commit: Fault.CRASH_BEFORE}))
        assert [ending.picture.rows["stock"] for ending in endings] == [[("8",)]] * 3


class role:
    """A role of that name and these rights, for the length of a block."""

    def __init__(self, server: psycopg.Connection[Any], rights: str) -> None:
        self.server, self.name = server, f"bothends_role_{uuid.uuid4().hex[:12]}"
        server.execute(f"create role {self.name} login password 'secret' {rights}")

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *_: object) -> None:
        self.server.execute(f"drop role {self.name}")


def as_role(url: str, name: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{name}:secret@{rest.rpartition('@')[2]}"


# What is refused


def told_by(service: Service, url: str) -> str:
    """The error that the handler has got."""

    def prepare(db: Any, database: Database) -> None:
        database.publish(db, [service], [ONE])

    with World([service], prepare, url=url).opened() as world:
        return next(mark.text for mark in world.run({}).tape.marks if mark.kind == "outcome")


def test_another_database_is_refused(postgresql_url: str) -> None:
    service = Service("elsewhere")

    @service.consumer("go", retry=Retry(attempts=1)).handle(Paid)
    def go(paid: Paid) -> None:
        psycopg.connect(in_database(postgresql_url, "template1"))

    assert "a connection to the PostgreSQL database 'template1'" in told_by(service, postgresql_url)


def test_a_connection_from_before_is_refused(postgresql_url: str, server: psycopg.Connection[Any]) -> None:
    service = Service("before")

    @service.consumer("go", retry=Retry(attempts=1)).handle(Paid)
    def go(paid: Paid) -> None:
        server.execute("select 1")

    assert "opened before the exploration" in told_by(service, postgresql_url)
    assert server.execute("select 1").fetchone() == (1,)


def test_asyncpg_is_refused_and_psycopg_named(postgresql_url: str) -> None:
    service = Service("other-driver")

    @service.consumer("go", retry=Retry(attempts=1)).handle(Paid)
    async def go(paid: Paid) -> None:
        await asyncpg.connect(postgresql_url)

    assert "not what asyncpg says" in told_by(service, postgresql_url)


# URLs and time


@pytest.mark.parametrize(("url", "there"), [
    ("postgresql://u:p@h:5/shop", "postgresql://u:p@h:5/x"), ("postgres://h/shop?sslmode=require", "postgresql://h/x?sslmode=require"),
    ("postgresql+psycopg://h", "postgresql://h/x"), ("postgresql:///shop?host=/run&dbname=a", "postgresql:///x?host=/run"),
])
def test_the_url_of_another_database_on_the_same_server(url: str, there: str) -> None:
    assert in_database(url, "x") == there


@pytest.mark.parametrize(("said", "lent_as"), [
    ("select now()", "select bothends_clock.now()"),
    ("select PG_CATALOG.NOW ( )", "select bothends_clock.now ( )"),
    ("select clock_timestamp(), 'now()', \"now()\" -- now()",
     "select bothends_clock.clock_timestamp(), 'now()', \"now()\" -- now()"),
    ("select E'it\\'s now()', now()", "select E'it\\'s now()', bothends_clock.now()"),
    ("insert into t values (current_timestamp)", "insert into t values ((bothends_clock.now()::timestamptz))"),
    ("at timestamp(3) default localtimestamp(3)", "at timestamp(3) default (bothends_clock.now()::timestamp(3))"),
    ("as $$ begin return now(); end $$", "as $$ begin return bothends_clock.now(); end $$"),
    ("select shop.now(), t.current_date, snow(), nowhere, now", "select shop.now(), t.current_date, snow(), nowhere, now"),
])
def test_what_a_statement_asks_of_time(said: str, lent_as: str) -> None:
    assert lent(said) == lent_as
