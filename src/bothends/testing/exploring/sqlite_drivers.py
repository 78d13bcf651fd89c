"""SQLite as an exploration sees it: every statement passes the tape, the product's and the user's.

The product's statements pass where our ``Connection`` executes them (``connections.py``), the user's where the driver's own
class does. What runs below is the real connection with the real guard.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
import weakref
from collections.abc import Callable, Coroutine
from functools import cache
from typing import Any, TypeVar

from bothends.stores import Store
from bothends.stores.connection import AsyncConnection, Connection
from bothends.testing.exploring.boundaries import Kind
from bothends.testing.exploring.clock import lend_to_sqlite
from bothends.testing.exploring.connections import Explored, ExploredAsyncConnection, ExploredConnection, Scene
from bothends.testing.exploring.statements import kind_of, writes
from bothends.worker.guards import Guard, GuardedSqlite

__all__ = ["ExploredSqliteStore", "broken_sqlite", "probed_sqlite"]


C = TypeVar("C", bound="ExploredSqlite | ExploredAiosqlite")


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


class _Sqlite(Explored):
    driver: Any

    def lost(self) -> Exception:
        return broken_sqlite(lost=True)

    def is_idle(self, text: str) -> bool:
        """Flushing to disk matters to a machine's death, which is not explored, and costs milliseconds."""
        return text.startswith("pragma synchronous")


class ExploredSqlite(_Sqlite, ExploredConnection):
    def saying(self, ours: bool) -> None:
        self.driver.ours = ours

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        driver = self.driver
        _close_cursors(driver)
        if isinstance(driver, GuardedSqlite):
            driver.guarded = driver.tripped = False
            driver.set_authorizer(None)
        sqlite3.Connection.rollback(driver)


class ExploredAiosqlite(_Sqlite, ExploredAsyncConnection):
    ended = False
    """Whether the driver's connection is closed, and its thread over."""

    def __init__(self, inner: Any, scene: Scene) -> None:
        super().__init__(inner, scene)
        self.underneath = inner.driver._conn
        """What aiosqlite works on. It forgets it where it was told to close, whether or not that was done."""

    def saying(self, ours: bool) -> None:
        self.underneath.ours = ours

    async def lose(self) -> None:
        """The driver finds out at its next statement."""
        self.closed = True
        await self.inner.rollback()

    async def close(self) -> None:
        self.closed = True
        dead = self._scene.tape.dead or self._scene.tape.over
        if not dead and not self.ended:
            self.ended = True
            await self.inner.close()


class ExploredSqliteStore:
    """``inner`` with connections that pass the tape."""

    def __init__(self, inner: Store, scene: Scene) -> None:
        self._inner, self._scene = inner, scene
        self.url, self.schema, self.dialect = inner.url, inner.schema, inner.dialect
        self._open: list[tuple[str, ExploredSqlite | ExploredAiosqlite]] = []
        self._idle: dict[type[Any], list[Connection]] = {}
        """Connections of dead processes that are as good as new."""

    def end(self, process: str, run_async: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        """The connections of a dead process end; the database rolls back."""
        ended = [one for name, one in self._open if name == process]
        self._open = [(name, one) for name, one in self._open if name != process]
        for one in ended:
            if isinstance(one, ExploredSqlite):
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

    def _end(self, ended: ExploredSqlite) -> None:
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
            return self._kept(ExploredSqlite(idle.pop(), self._scene))
        inner = self._inner.connect(name=name, factory=probed)
        self._prepare(inner.driver)
        return self._kept(ExploredSqlite(inner, self._scene))

    async def connect_async(self, *, name: str = "bothends", factory: type[Any] | None = None) -> AsyncConnection:
        base: Any = factory or sqlite3.Connection
        inner = await self._inner.connect_async(name=name, factory=probed_sqlite(base))
        driver = inner.driver
        await driver._execute(self._prepare, driver._conn)  # in its own thread
        return self._kept(ExploredAiosqlite(inner, self._scene))

    def _kept(self, connection: C) -> C:
        self._open.append((self._scene.tape.process, connection))
        return connection

    def _prepare(self, driver: Any) -> None:
        sqlite3.Connection.execute(driver, "pragma synchronous = off")
        lend_to_sqlite(driver, self._scene.clock)
        driver.scene = self._scene
