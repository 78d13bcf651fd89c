"""Drivers and stores as an exploration sees them: every statement passes the tape, the product's and the user's.

The product's statements pass where our ``Connection`` executes them, the user's where the driver's own class does. What runs
below is the real connection with the real guard.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
import weakref
from collections.abc import Callable, Coroutine
from functools import cache
from typing import Any, Protocol, TypeVar

from bothends.stores import Store
from bothends.stores.connection import AsyncConnection, Connection
from bothends.stores.steps import Result, Sql
from bothends.testing.exploring.boundaries import Crash, Fault, Kind
from bothends.testing.exploring.clock import Clock, lend_to_sqlite
from bothends.testing.exploring.statements import kind_of, writes
from bothends.testing.exploring.tape import Tape
from bothends.worker.guards import Guard, GuardedSqlite

__all__ = ["ExploredStore", "Scene", "broken_sqlite", "probed_sqlite"]


C = TypeVar("C", bound="ExploredConnection | ExploredAsyncConnection")


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
    altered = False
    """Something was said to it that outlasts a transaction."""


_PASSING = re.compile(r"\s*(select|insert|update|delete|replace|with|savepoint|release|begin|commit|end|rollback)\b", re.I)
"""Statements that leave nothing behind in a connection itself."""


def _users(driver: Any, text: str, do: Callable[[], Any]) -> Any:
    scene: Scene | None = driver.scene
    if scene is None or driver.ours or not scene.tape.running:
        return do()
    kind = kind_of(text)
    driver.altered = driver.altered or not _PASSING.match(text)
    durable = kind is Kind.COMMIT or (
        writes(text) and not driver.in_transaction and driver.isolation_level is None
    )

    def fail() -> sqlite3.Error:
        if kind is Kind.COMMIT:  # a COMMIT that fails leaves no transaction
            sqlite3.Connection.rollback(driver)
        return broken_sqlite(lost=False)

    return scene.tape.through(kind, text, do, fail, users=True, durable=durable)


class _Cursor(sqlite3.Cursor):
    def execute(self, sql: str, *parameters: Any) -> Any:
        return _users(self.connection, sql, lambda: super(_Cursor, self).execute(sql, *parameters))

    def executemany(self, sql: str, *parameters: Any) -> Any:
        return _users(self.connection, sql, lambda: super(_Cursor, self).executemany(sql, *parameters))

    def executescript(self, sql: str) -> Any:
        return _users(self.connection, sql, lambda: super(_Cursor, self).executescript(sql))


def _close_cursors(driver: Any) -> None:
    """Those that a dead process's tracebacks still hold would keep the transaction open, and its locks."""
    with contextlib.suppress(sqlite3.ProgrammingError):  # the connection is closed already
        for cursor in list(driver.cursors):
            sqlite3.Cursor.close(cursor)


@cache
def probed_sqlite(base: Any) -> type[Any]:
    """``base``, a class of ``sqlite3.Connection``, with probes."""

    class Probed(_Probed, base):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.cursors: weakref.WeakSet[sqlite3.Cursor] = weakref.WeakSet()

        def cursor(self, factory: Any = None) -> Any:
            made = super().cursor(_Cursor if factory is None else factory)
            self.cursors.add(made)
            return made

        def execute(self, sql: str, *parameters: Any) -> Any:
            return self.cursor().execute(sql, *parameters)

        def executemany(self, sql: str, *parameters: Any) -> Any:
            return self.cursor().executemany(sql, *parameters)

        def executescript(self, sql: str) -> Any:
            return self.cursor().executescript(sql)

        def __exit__(self, kind: Any, *reason: Any) -> Any:
            if self.ours or isinstance(self, Guard):
                return super().__exit__(kind, *reason)
            if kind is None:
                self.commit()
            else:
                self.rollback()
            return False

        def close(self) -> None:
            _close_cursors(self)
            if self.scene is None or not (self.scene.tape.dead or self.scene.tape.over):
                super().close()  # a dead process closes nothing: its connections are ended for it

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
        self.inner, self._scene = inner, scene
        self.driver: Any = inner.driver
        self.closed = False
        """Whether the process itself has closed it, or lost it."""

    def in_transaction(self) -> bool:
        tape = self._scene.tape
        return not (tape.dead or tape.over) and self.usable() and bool(self.inner.in_transaction())

    def usable(self) -> bool:
        return not self.closed and bool(self.inner.usable())

    def _arrive(self, text: str) -> Fault | None:
        if self._scene.tape.dead or self._scene.tape.over:
            raise Crash
        kind = kind_of(text)
        durable = kind is Kind.COMMIT or (writes(text) and not self.in_transaction())
        return self._scene.tape.arrive(kind, text, durable=durable)


def _is_lost(fault: Fault | None) -> bool:
    return fault is Fault.FAILS or fault is Fault.HAPPENED


class ExploredConnection(_Explored):
    def execute(self, statement: Sql, /) -> Result:
        if _is_idle(statement.text):
            return Result([], 0)
        result: Result = self._through(statement.text, lambda: self.inner.execute(statement))
        return result

    def begin(self) -> None:
        self._through("begin", self.inner.begin)

    def begin_with(self, first: Sql, /) -> Result:
        self.begin()
        return self.execute(first)

    def commit(self) -> None:
        self._through("commit", self.inner.commit)

    def commit_with(self, gate: Sql, /) -> None:
        self.execute(gate)
        self.commit()

    def rollback(self) -> None:
        if self.in_transaction():
            self._through("rollback", self.inner.rollback)

    def _through(self, text: str, do: Callable[[], Any]) -> Any:
        if not self.usable():
            raise broken_sqlite(lost=True)
        fault = self._arrive(text)
        if fault is Fault.FAILS:
            self.close()
            raise broken_sqlite(lost=True)
        driver = self.inner.driver
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
        self.inner.cancel()

    def close(self) -> None:
        """The database rolls back what was open."""
        if self.closed:
            return
        self.closed = True
        driver = self.driver
        _close_cursors(driver)
        if isinstance(driver, GuardedSqlite):
            driver.guarded = driver.tripped = False
            driver.set_authorizer(None)
        sqlite3.Connection.rollback(driver)


class ExploredAsyncConnection(_Explored):
    ended = False
    """Whether the driver's connection is closed, and its thread over."""

    def __init__(self, inner: Any, scene: Scene) -> None:
        super().__init__(inner, scene)
        self.underneath = inner.driver._conn
        """What aiosqlite works on. It forgets it where it was told to close, whether or not that was done."""

    async def execute(self, statement: Sql, /) -> Result:
        if _is_idle(statement.text):
            return Result([], 0)
        result: Result = await self._through(statement.text, lambda: self.inner.execute(statement))
        return result

    async def begin(self) -> None:
        await self._through("begin", self.inner.begin)

    async def begin_with(self, first: Sql, /) -> Result:
        await self.begin()
        return await self.execute(first)

    async def commit(self) -> None:
        await self._through("commit", self.inner.commit)

    async def commit_with(self, gate: Sql, /) -> None:
        await self.execute(gate)
        await self.commit()

    async def rollback(self) -> None:
        if self.in_transaction():
            await self._through("rollback", self.inner.rollback)

    async def _through(self, text: str, do: Callable[[], Any]) -> Any:
        if not self.usable():
            raise broken_sqlite(lost=True)
        fault = self._arrive(text)
        if fault is Fault.FAILS:
            await self._lose()
            raise broken_sqlite(lost=True)
        driver = self.underneath
        driver.ours = True
        try:
            result = await do()
        finally:
            driver.ours = False
        if fault is Fault.CRASH_AFTER:
            self._scene.tape.die()
        if fault is Fault.HAPPENED:
            await self._lose()
            raise broken_sqlite(lost=True)
        return result

    async def _lose(self) -> None:
        """The database rolls back what was open; the driver finds out at its next statement."""
        self.closed = True
        await self.inner.rollback()

    async def close(self) -> None:
        self.closed = True
        dead = self._scene.tape.dead or self._scene.tape.over
        if not dead and not self.ended:
            self.ended = True
            await self.inner.close()


def _is_idle(text: str) -> bool:
    """Flushing to disk matters to a machine's death, which is not explored, and costs milliseconds."""
    return text.startswith("pragma synchronous")


class ExploredStore:
    """``inner`` with connections that pass the tape."""

    def __init__(self, inner: Store, scene: Scene) -> None:
        self._inner, self._scene = inner, scene
        self.url, self.schema, self.dialect = inner.url, inner.schema, inner.dialect
        self._open: list[tuple[str, ExploredConnection | ExploredAsyncConnection]] = []
        self._idle: dict[type[Any], list[Connection]] = {}
        """Connections of dead processes that are as good as new."""

    def end(self, process: str, run_async: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        """The connections of a dead process end; the database rolls back."""
        ended = [one for name, one in self._open if name == process]
        self._open = [(name, one) for name, one in self._open if name != process]
        for one in ended:
            if isinstance(one, ExploredConnection):
                self._end(one)
            elif not one.ended:
                one.underneath.guarded = False
                with contextlib.suppress(ValueError):  # aiosqlite has forgotten it
                    run_async(one.inner.close())
                _close_cursors(one.underneath)
                sqlite3.Connection.close(one.underneath)

    def __getattr__(self, group: str) -> Any:
        return getattr(self._inner, group)

    def close(self) -> None:
        """Nobody uses the store any more."""
        for idle in self._idle.values():
            for connection in idle:
                connection.close()
        self._idle.clear()

    def _end(self, ended: ExploredConnection) -> None:
        """A connection ends as its process does; one that is as good as new serves the next."""
        ended.close()
        driver = ended.driver
        if driver.altered or driver.row_factory is not None or driver.isolation_level is not None:
            ended.inner.close()
            return
        self._idle.setdefault(type(driver), []).append(ended.inner)

    def connect(self, *, name: str = "bothends", factory: type[Any] | None = None) -> Connection:
        base: Any = factory or sqlite3.Connection
        probed = probed_sqlite(base)
        idle = self._idle.get(probed)
        if idle:
            return self._kept(ExploredConnection(idle.pop(), self._scene))
        inner = self._inner.connect(name=name, factory=probed)
        self._prepare(inner.driver)
        return self._kept(ExploredConnection(inner, self._scene))

    async def connect_async(self, *, name: str = "bothends", factory: type[Any] | None = None) -> AsyncConnection:
        base: Any = factory or sqlite3.Connection
        inner = await self._inner.connect_async(name=name, factory=probed_sqlite(base))
        driver = inner.driver
        await driver._execute(self._prepare, driver._conn)  # in its own thread
        return self._kept(ExploredAsyncConnection(inner, self._scene))

    def _kept(self, connection: C) -> C:
        self._open.append((self._scene.tape.process, connection))
        return connection

    def _prepare(self, driver: Any) -> None:
        sqlite3.Connection.execute(driver, "pragma synchronous = off")
        lend_to_sqlite(driver, self._scene.clock)
        driver.scene = self._scene
