"""Drivers and stores as an exploration sees them: every statement passes the tape, the product's and the user's.

The product's statements pass where our ``Connection`` executes them, the user's where the driver's own class does. What runs
below is the real connection with the real guard.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

from bothends.stores import Store
from bothends.stores.connection import AsyncConnection, Connection
from bothends.stores.steps import Result, Sql
from bothends.testing.exploring.boundaries import Fault, Kind
from bothends.testing.exploring.clock import Clock, lend_to_sqlite
from bothends.testing.exploring.statements import kind_of, writes
from bothends.testing.exploring.tape import Tape

__all__ = ["ExploredStore", "Scene", "broken_sqlite", "probed_sqlite"]


class Scene(Protocol):
    """What probes need to know: the tape and the clock of the run that is on."""

    tape: Tape
    clock: Clock


def broken_sqlite(*, lost: bool) -> sqlite3.Error:
    """The error of a statement that fails; ``lost``: the database itself is away."""
    error = sqlite3.OperationalError("disk I/O error (made by the crash explorer)")
    if lost:
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR
        error.sqlite_errorname = "SQLITE_IOERR"
    return error


# The user's statements


class _Probed:
    """Set on each probed driver connection."""

    scene: Scene | None = None
    ours = False
    """The product is executing: it has passed the tape already."""


def _users(driver: Any, text: str, do: Callable[[], Any]) -> Any:
    scene: Scene | None = driver.scene
    if scene is None or driver.ours or not scene.tape.running:
        return do()
    kind = kind_of(text)
    durable = kind is Kind.COMMIT or (
        writes(text) and not driver.in_transaction and driver.isolation_level is None
    )
    return scene.tape.through(
        kind, text, do, lambda: broken_sqlite(lost=False), users=True, durable=durable,
    )


class _Cursor(sqlite3.Cursor):
    def execute(self, sql: str, *parameters: Any) -> Any:
        return _users(self.connection, sql, lambda: super(_Cursor, self).execute(sql, *parameters))

    def executemany(self, sql: str, *parameters: Any) -> Any:
        return _users(self.connection, sql, lambda: super(_Cursor, self).executemany(sql, *parameters))

    def executescript(self, sql: str) -> Any:
        return _users(self.connection, sql, lambda: super(_Cursor, self).executescript(sql))


@cache
def probed_sqlite(base: type[sqlite3.Connection]) -> type[Any]:
    """``base`` with probes."""

    class Probed(_Probed, base):  # type: ignore[valid-type, misc]
        def cursor(self, factory: Any = None) -> Any:
            if factory is None:
                return super().cursor(_Cursor)
            return super().cursor(factory)

        def execute(self, sql: str, *parameters: Any) -> Any:
            return self.cursor().execute(sql, *parameters)

        def executemany(self, sql: str, *parameters: Any) -> Any:
            return self.cursor().executemany(sql, *parameters)

        def executescript(self, sql: str) -> Any:
            return self.cursor().executescript(sql)

        def commit(self) -> None:
            if self.in_transaction:
                _users(self, "commit", super().commit)
            else:
                super().commit()

        def rollback(self) -> None:
            if self.in_transaction:
                _users(self, "rollback", super().rollback)
            else:
                super().rollback()

    return Probed


# The product's statements


class _Explored:
    """What synchronous and asynchronous connections share."""

    def __init__(self, inner: Any, scene: Scene) -> None:
        self._inner, self._scene = inner, scene

    @property
    def driver(self) -> Any:
        return self._inner.driver

    def in_transaction(self) -> bool:
        return self.usable() and bool(self._inner.in_transaction())

    def usable(self) -> bool:
        return bool(self._inner.usable())

    def _arrive(self, text: str) -> Fault | None:
        kind = kind_of(text)
        durable = kind is Kind.COMMIT or (writes(text) and not self.in_transaction())
        return self._scene.tape.arrive(kind, text, durable=durable)


def _is_lost(fault: Fault | None) -> bool:
    return fault is Fault.FAILS or fault is Fault.HAPPENED


class ExploredConnection(_Explored):
    def execute(self, statement: Sql, /) -> Result:
        if _is_idle(statement.text):
            return Result([], 0)
        result: Result = self._through(statement.text, lambda: self._inner.execute(statement))
        return result

    def begin(self) -> None:
        self._through("begin", self._inner.begin)

    def commit(self) -> None:
        self._through("commit", self._inner.commit)

    def rollback(self) -> None:
        if self.in_transaction() and not self._scene.tape.dead:
            self._through("rollback", self._inner.rollback)

    def _through(self, text: str, do: Callable[[], Any]) -> Any:
        if not self.usable():
            raise broken_sqlite(lost=True)
        fault = self._arrive(text)
        if fault is Fault.FAILS:
            self.close()
            raise broken_sqlite(lost=True)
        driver = self._inner.driver
        driver.ours = True
        try:
            result = do()
        finally:
            driver.ours = False
        if fault is Fault.CRASH_AFTER:
            self._scene.tape.die()
        if fault is Fault.HAPPENED:
            self.close()
            raise broken_sqlite(lost=True)
        return result

    def cancel(self) -> None:
        self._inner.cancel()

    def close(self) -> None:
        """The database rolls back what was open."""
        self._inner.close()


class ExploredAsyncConnection(_Explored):
    async def execute(self, statement: Sql, /) -> Result:
        if _is_idle(statement.text):
            return Result([], 0)
        result: Result = await self._through(statement.text, lambda: self._inner.execute(statement))
        return result

    async def begin(self) -> None:
        await self._through("begin", self._inner.begin)

    async def commit(self) -> None:
        await self._through("commit", self._inner.commit)

    async def rollback(self) -> None:
        if self.in_transaction() and not self._scene.tape.dead:
            await self._through("rollback", self._inner.rollback)

    async def _through(self, text: str, do: Callable[[], Any]) -> Any:
        if not self.usable():
            raise broken_sqlite(lost=True)
        fault = self._arrive(text)
        if fault is Fault.FAILS:
            await self.close()
            raise broken_sqlite(lost=True)
        driver = _underneath(self._inner.driver)
        driver.ours = True
        try:
            result = await do()
        finally:
            driver.ours = False
        if fault is Fault.CRASH_AFTER:
            self._scene.tape.die()
        if fault is Fault.HAPPENED:
            await self.close()
            raise broken_sqlite(lost=True)
        return result

    async def close(self) -> None:
        await self._inner.close()


def _underneath(driver: Any) -> Any:
    """aiosqlite keeps the connection that it works on to itself."""
    return driver if isinstance(driver, sqlite3.Connection) else driver._conn


def _is_idle(text: str) -> bool:
    """Flushing to disk matters to a machine's death, which is not explored, and costs milliseconds."""
    return text.startswith("pragma synchronous")


class ExploredStore:
    """``inner`` with connections that pass the tape."""

    def __init__(self, inner: Store, scene: Scene) -> None:
        self._inner, self._scene = inner, scene
        self.url, self.schema, self.dialect = inner.url, inner.schema, inner.dialect

    def __getattr__(self, group: str) -> Any:
        return getattr(self._inner, group)

    def connect(self, *, name: str = "bothends", factory: type[Any] | None = None) -> Connection:
        inner = self._inner.connect(name=name, factory=probed_sqlite(factory or sqlite3.Connection))
        self._prepare(inner.driver)
        return ExploredConnection(inner, self._scene)

    async def connect_async(self, *, name: str = "bothends", factory: type[Any] | None = None) -> AsyncConnection:
        inner = await self._inner.connect_async(name=name, factory=probed_sqlite(factory or sqlite3.Connection))
        driver = inner.driver
        await driver._execute(self._prepare, driver._conn)  # in its own thread
        return ExploredAsyncConnection(inner, self._scene)

    def _prepare(self, driver: Any) -> None:
        sqlite3.Connection.execute(driver, "pragma synchronous = off")
        lend_to_sqlite(driver, self._scene.clock)
        driver.scene = self._scene
