"""The relay's own connection to PostgreSQL: what it returns, and one question asked ahead of its answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import psycopg
from psycopg import generators
from psycopg.pq import Format
from psycopg.types.string import ByteaBinaryLoader

from bothends.stores.connection import Connection
from bothends.stores.postgresql.pipeline import as_text, result_of
from bothends.stores.steps import Result, Sql, translate

__all__ = ["RelayConnection", "RelayExecutor"]


class _Cursor(psycopg.Cursor[Any]):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.format = Format.BINARY  # bytes as they are, not as hexadecimal text


class RelayConnection(psycopg.Connection[Any]):
    """Binary results, varchar as bytes. Nothing is prepared: a pooler may change servers at each statement, and a plan made
    for an empty table would be kept for a full one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cursor_factory = _Cursor
        self.adapters.register_loader("varchar", ByteaBinaryLoader)

    @classmethod
    def connect(cls, conninfo: str = "", **options: Any) -> Self:
        return super().connect(conninfo, **{"prepare_threshold": None} | options)


class _Question:
    """A statement on its way: the server works on it, and fills the sockets' buffers, while the relay publishes."""

    def __init__(self, driver: psycopg.Connection[Any], statement: Sql) -> None:
        self._driver = driver
        self._results: list[Any] | None = None
        text, names = translate(statement.text, "numeric_dollar")
        values = [as_text(statement.params[name]) for name in names]
        driver.pgconn.send_query_params(text.encode(), values, result_format=Format.BINARY)
        driver.wait(generators.send(driver.pgconn))

    def receive(self) -> None:
        """Waits for the answer, so that the connection can be used for something else."""
        if self._results is None:
            self._results = self._driver.wait(generators.fetch_many(self._driver.pgconn))

    def answer(self) -> Result:
        self.receive()
        assert self._results is not None
        return result_of(self._driver, self._results[0])


class RelayExecutor:
    """One statement at a time, of which one may have been asked ahead; whatever comes after it waits for its answer."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._asked: _Question | None = None

    def execute(self, statement: Sql, /) -> Result:
        self._clear()
        return self._connection.execute(statement)

    def ask(self, statement: Sql, /) -> Callable[[], Result]:
        self._clear()
        self._asked = _Question(self._connection.driver, statement)
        return self._asked.answer

    def _clear(self) -> None:
        if self._asked is not None:
            asked, self._asked = self._asked, None
            asked.receive()
