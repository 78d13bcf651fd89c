"""Databases with our schema applied, one per module: the tests of a module share it and look at their own events only."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bothends import Service
from bothends.stores import Store, open_store
from bothends.stores.connection import Connection
from bothends.stores.schema import apply
from bothends.stores.steps import Sql
from tests.conftest import fresh_database

BUSINESS = "create table business (id text not null)"


def prepared(url: str) -> str:
    store = open_store(url)
    apply(store)
    connection = store.connect()
    connection.execute(Sql(BUSINESS, rows=False))
    connection.close()
    return url


@pytest.fixture(scope="module")
def pg15_url(postgresql_url: str) -> Iterator[str]:
    with fresh_database(postgresql_url) as url:
        yield prepared(url)


@pytest.fixture(scope="module")
def pg18_url(postgresql18_url: str) -> Iterator[str]:
    with fresh_database(postgresql18_url) as url:
        yield prepared(url)


@pytest.fixture(scope="module")
def sqlite_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("store")
    return prepared(f"sqlite:///{folder}/events.db")


@pytest.fixture
def service() -> Service:
    """A service whose source nobody else has, so that a shared outbox can be asked for its rows."""
    return Service(f"s{uuid.uuid4().hex[:12]}")


class Look:
    """What is committed, seen from a connection of its own."""

    def __init__(self, store: Store, service: Service) -> None:
        self.connection: Connection = store.connect()
        self.table = '"bothends".outbox' if store.dialect == "postgresql" else "bothends_outbox"
        self.source = service.source

    def column(self, name: str) -> list[Any]:
        """One column of this service's rows, by seq."""
        text = f"select {name} from {self.table} where source = :source order by seq"
        return [row[0] for row in self.connection.execute(Sql(text, {"source": self.source})).rows]

    @property
    def ids(self) -> list[str]:
        return self.column("id")

    def business(self, id: str) -> int:
        found = self.connection.execute(Sql("select count(*) from business where id = :id", {"id": id}))
        return int(found.rows[0][0])


@pytest.fixture
def look(service: Service) -> Iterator[Callable[[str], Look]]:
    opened: list[Look] = []

    def at(url: str) -> Look:
        opened.append(Look(open_store(url), service))
        return opened[-1]

    yield at
    for one in opened:
        one.connection.close()
