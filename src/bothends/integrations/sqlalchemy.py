"""SQLAlchemy on SQLite: a BEGIN that is really sent."""

from __future__ import annotations

from typing import Any

from bothends.errors import MissingExtra

try:
    from sqlalchemy import Connection, Engine, event
    from sqlalchemy.ext.asyncio import AsyncEngine
except ImportError as error:  # pragma: no cover - the extras are installed in our tests
    raise MissingExtra("bothends.integrations.sqlalchemy", "sqlalchemy") from error

__all__ = ["explicit_begin"]


def explicit_begin(engine: Engine | AsyncEngine) -> None:
    """Makes ``engine`` send BEGIN when SQLAlchemy begins a transaction. Call it once, right after ``create_engine``.

    Python's sqlite3 begins before the first INSERT, UPDATE or DELETE only; a savepoint before that is the transaction,
    and its release commits for good, whatever the session does later. Without this, ``outbox.add`` inside a savepoint
    raises UnsafeSavepoint. Does nothing for other databases, and nothing when called again.
    """
    plain = engine.sync_engine if isinstance(engine, AsyncEngine) else engine
    if plain.dialect.name != "sqlite" or event.contains(plain, "begin", _begin):
        return
    event.listen(plain, "connect", _begin_nothing_by_yourself)
    event.listen(plain, "begin", _begin)


def _begin_nothing_by_yourself(driver: Any, _record: object) -> None:
    driver.isolation_level = None


def _begin(connection: Connection) -> None:
    driver: Any = connection.connection.driver_connection
    if driver.in_transaction or connection._is_autocommit_isolation():
        return
    connection.exec_driver_sql("BEGIN")


_begin.bothends_begins = True  # type: ignore[attr-defined]  # how stores/joining.py knows it
