"""Each of our stores passes the suite that is shipped: SQLite in memory, SQLite in a file, PostgreSQL 15 and 18."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bothends.stores import Store, open_store
from bothends.stores.schema import apply
from bothends.testing.conformance.stores import StoreConformance
from bothends.testing.databases import memory_url


class TestMemory(StoreConformance):
    @pytest.fixture
    def store(self) -> Iterator[Store]:
        store = open_store(memory_url())
        anchor = store.connect()  # the database lives as long as somebody is connected
        apply(store)
        yield store
        anchor.close()


class TestSqlite(StoreConformance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        store = open_store(f"sqlite:///{tmp_path}/store.db")
        apply(store)
        return store


class TestPostgresql15(StoreConformance):
    @pytest.fixture
    def store(self, pg_database: str) -> Store:
        store = open_store(pg_database, "odd schema")
        apply(store)
        return store


class TestPostgresql18(StoreConformance):
    @pytest.fixture
    def store(self, pg18_database: str) -> Store:
        store = open_store(pg18_database)
        apply(store)
        return store
