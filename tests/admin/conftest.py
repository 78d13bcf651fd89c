"""Each test of this folder runs on PostgreSQL 15 and on SQLite."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bothends.stores import Store, open_store
from bothends.stores.connection import Connection
from bothends.stores.schema import apply
from tests.admin.shelf import Shelf
from tests.conftest import fresh_database


@pytest.fixture(params=[pytest.param("postgresql", marks=pytest.mark.needs("postgresql")), "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A database with our tables and nothing in them."""
    if request.param == "sqlite":
        found = open_store(f"sqlite:///{tmp_path / 'shop.db'}")
        apply(found)
        yield found
        return
    with fresh_database(request.getfixturevalue("postgresql_url")) as url:
        found = open_store(url)
        apply(found)
        yield found


@pytest.fixture
def connection(store: Store) -> Iterator[Connection]:
    found = store.connect()
    yield found
    found.close()


@pytest.fixture
def shelf(store: Store, connection: Connection) -> Shelf:
    return Shelf(store, connection)


@pytest.fixture
def pg_shelf(postgresql_url: str) -> Iterator[Shelf]:
    """For what SQLite has not."""
    with fresh_database(postgresql_url) as url:
        found = open_store(url)
        apply(found)
        connection = found.connect()
        yield Shelf(found, connection)
        connection.close()
