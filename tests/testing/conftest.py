"""Databases for the test kit's own tests: each one on SQLite in memory, in a file, and on PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bothends.testing.databases import Database, memory_url


@pytest.fixture(params=["memory", "file", pytest.param("postgresql", marks=pytest.mark.needs("postgresql"))])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return memory_url()
    if request.param == "file":
        return f"sqlite:///{tmp_path}/kit.db"
    url: str = request.getfixturevalue("pg_database")
    return url


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    database = Database(database_url, "bothends")
    database.open()
    try:
        yield database
    finally:
        database.close()
