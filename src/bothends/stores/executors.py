"""Executors: one statement of ours on a connection that belongs to the caller, in each driver's own way.

They never begin, commit or close, and they leave the connection's row factories and cursor classes alone.
"""

from __future__ import annotations

import sqlite3
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from bothends.stores.steps import Result, Sql, translate

if TYPE_CHECKING:
    import aiosqlite
    import psycopg
    import sqlalchemy

__all__ = [
    "AiosqliteExecutor", "AsyncpgExecutor", "PsycopgAsyncExecutor", "PsycopgExecutor", "SqlalchemyExecutor",
    "SqliteExecutor",
]

_UNKNOWN = Result([], -1)


@lru_cache(maxsize=1)
def _psycopg() -> tuple[Any, Any, Any]:
    """psycopg's own cursors, whatever class the caller's connection makes: raw ones, which leave the text alone and save
    12 us. Imported when the first connection of psycopg comes, and once: an import statement in ``add`` is measurable."""
    from psycopg import AsyncRawCursor, RawCursor
    from psycopg.rows import tuple_row

    return RawCursor, AsyncRawCursor, tuple_row


class PsycopgExecutor:
    """In pipeline mode a statement with ``rows=False`` is queued, and nothing is waited for."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        cursor, _, tuple_row = _psycopg()
        self._cursor = cursor(connection, row_factory=tuple_row)

    def execute(self, statement: Sql, /) -> Result:
        cursor = self._cursor
        text, names = translate(statement.text, "numeric_dollar")
        cursor.execute(text, [statement.params[name] for name in names])
        if not statement.rows:
            return _UNKNOWN
        if cursor.description is None and not cursor.connection.info.pipeline_status:
            return Result([], cursor.rowcount, cursor.statusmessage or "")
        rows = cursor.fetchall()  # in pipeline mode this waits
        return Result(rows, cursor.rowcount, cursor.statusmessage or "")


class PsycopgAsyncExecutor:
    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        _, cursor, tuple_row = _psycopg()
        self._cursor = cursor(connection, row_factory=tuple_row)

    async def execute(self, statement: Sql, /) -> Result:
        cursor = self._cursor
        text, names = translate(statement.text, "numeric_dollar")
        await cursor.execute(text, [statement.params[name] for name in names])
        if not statement.rows:
            return _UNKNOWN
        if cursor.description is None and not cursor.connection.info.pipeline_status:
            return Result([], cursor.rowcount, cursor.statusmessage or "")
        rows = await cursor.fetchall()  # in pipeline mode this waits
        return Result(rows, cursor.rowcount, cursor.statusmessage or "")


class AsyncpgExecutor:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def execute(self, statement: Sql, /) -> Result:
        text, names = translate(statement.text, "numeric_dollar")
        values = [statement.params[name] for name in names]
        if not statement.rows:
            return Result([], -1, await self._connection.execute(text, *values))
        rows = [tuple(row) for row in await self._connection.fetch(text, *values)]
        return Result(rows, len(rows))


class SqliteExecutor:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, statement: Sql, /) -> Result:
        cursor = self._connection.cursor()
        cursor.row_factory = None
        try:
            cursor.execute(statement.text, statement.params)
            return Result(cursor.fetchall() if statement.rows else [], cursor.rowcount)
        finally:
            cursor.close()


class AiosqliteExecutor:
    def __init__(self, connection: aiosqlite.Connection) -> None:
        self._connection = connection

    async def execute(self, statement: Sql, /) -> Result:
        if not statement.rows:  # one hop to the driver's thread instead of two
            await self._connection.execute_fetchall(statement.text, dict(statement.params))
            return _UNKNOWN
        async with self._connection.execute(statement.text, dict(statement.params)) as cursor:
            cursor.row_factory = None
            rows = [tuple(row) for row in await cursor.fetchall()]
            return Result(rows, cursor.rowcount)


class SqlalchemyExecutor:
    """A ``Connection``, also the one inside an ``AsyncConnection`` (by ``run_sync``). The statement goes to the driver
    as it is, in the driver's own parameter style; SQLAlchemy's hooks and echo see it."""

    def __init__(self, connection: sqlalchemy.Connection) -> None:
        self._connection = connection

    def execute(self, statement: Sql, /) -> Result:
        dialect = self._connection.dialect
        parameters: Any
        if dialect.name == "sqlite":
            text, parameters = statement.text, dict(statement.params)
        elif dialect.driver == "asyncpg":
            text, names = translate(statement.text, "numeric_dollar")
            parameters = tuple(statement.params[name] for name in names)
        else:
            text, parameters = translate(statement.text, "pyformat")[0], dict(statement.params)
        result = self._connection.exec_driver_sql(text, parameters)
        if not result.returns_rows:
            return Result([], result.rowcount)
        rows = [tuple(row) for row in result] if statement.rows else []
        result.close()
        return Result(rows, len(rows))
