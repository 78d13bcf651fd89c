"""A prepared world per kind of database, made once; its tables are empty at the beginning of each test."""

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bothends.demo.events import RUN
from bothends.demo.names import SERVICES
from bothends.demo.shop import Connection
from bothends.demo.world import World
from tests.conftest import fresh_database

POSTGRESQL = pytest.param("postgresql", marks=pytest.mark.needs("postgresql"))


def table(world: World, db: Connection, service: str, name: str) -> str:
    return name if isinstance(db, sqlite3.Connection) else f'"{world.schema_of(service)}".{name}'


def outbox(world: World, db: Connection, service: str) -> str:
    return table(world, db, service, "bothends_outbox" if isinstance(db, sqlite3.Connection) else "outbox")


@pytest.fixture(scope="session", params=["sqlite", POSTGRESQL])
def prepared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ExitStack() as stack:
        url = None
        if request.param == "postgresql":
            url = stack.enter_context(fresh_database(request.getfixturevalue("postgresql_url")))
        world = World(RUN, tmp_path_factory.mktemp("world"), url)
        world.prepare_databases()
        yield world
        world.close()


@pytest.fixture
def world(prepared: World) -> World:
    for service in SERVICES:
        with prepared.connected(service) as db:
            for name in prepared.shops[service].tables:
                db.execute(f"delete from {table(prepared, db, service, name)}")  # type: ignore[arg-type]
            db.execute(f"delete from {outbox(prepared, db, service)}")  # type: ignore[arg-type]
    return prepared


@pytest.fixture
def fresh_world(tmp_path: Path) -> Iterator[World]:
    """On SQLite, with a broker's log."""
    world = World(RUN, tmp_path)
    world.prepare()
    yield world
    world.close()
