"""Connections to SQLite that are ours: WAL, synchronous=FULL, explicit BEGIN IMMEDIATE (a read that becomes a write
fails at once in WAL mode, whatever the busy timeout), pragmas on every connection.

``sqlite://`` is one in-memory database of this process, shared by name (``sqlite:///:memory:NAME``)."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from typing import Any

from bothends import wal
from bothends.errors import MissingExtra, StoreUnavailable
from bothends.stores.connection import CommitRefused
from bothends.stores.steps import Result, Sql

__all__ = ["BUSY_TIMEOUT_MS", "SqliteAsyncConnection", "SqliteConnection", "connect", "connect_async", "location"]

BUSY_TIMEOUT_MS = 5_000


def location(url: str) -> str:
    """The file (or shared in-memory database) as a SQLite URI, from ``sqlite:///path``, ``sqlite:////absolute`` or
    ``sqlite://``; ``sqlite+aiosqlite://`` is accepted."""
    _, _, rest = url.partition("://")
    path = rest.partition("?")[0].removeprefix("/")
    if path in ("", ":memory:"):
        return "file:bothends-memory?mode=memory&cache=shared"
    if path.startswith(":memory:"):
        return f"file:bothends-memory-{path.removeprefix(':memory:')}?mode=memory&cache=shared"
    return "file:" + path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def _in_memory(uri: str) -> bool:
    return "mode=memory" in uri


def _pragmas(uri: str) -> list[str]:
    if _in_memory(uri):
        return [f"pragma busy_timeout = {BUSY_TIMEOUT_MS}", "pragma read_uncommitted = false"]
    return [f"pragma busy_timeout = {BUSY_TIMEOUT_MS}", "pragma synchronous = full"]


async def _enter_wal(driver: Any) -> None:
    """``wal.enter`` for coroutines."""
    deadline = time.monotonic() + BUSY_TIMEOUT_MS / 1e3
    while True:
        try:
            await driver.execute("pragma journal_mode = wal")
            return
        except sqlite3.OperationalError as error:
            if not wal.is_busy(error) or time.monotonic() >= deadline:
                raise
        await asyncio.sleep(wal.PAUSE_S)


class SqliteConnection:
    def __init__(self, driver: sqlite3.Connection) -> None:
        self.driver = driver
        self._closed = False

    def execute(self, statement: Sql, /) -> Result:
        cursor = self.driver.execute(statement.text, statement.params)
        rows = cursor.fetchall() if cursor.description is not None else []
        return Result(rows, cursor.rowcount)

    def begin(self) -> None:
        self.driver.execute("begin immediate")

    def begin_with(self, first: Sql, /) -> Result:
        self.begin()
        return self.execute(first)

    def commit(self) -> None:
        if not self.driver.in_transaction:
            raise CommitRefused("no transaction to commit: somebody ended it before")
        self.driver.execute("commit")

    def commit_with(self, gate: Sql, /) -> None:
        self.execute(gate)
        self.commit()

    def rollback(self) -> None:
        if not self._closed and self.driver.in_transaction:
            self.driver.execute("rollback")

    def in_transaction(self) -> bool:
        return self.driver.in_transaction

    def usable(self) -> bool:
        return not self._closed

    def cancel(self) -> None:
        self.driver.interrupt()

    def close(self) -> None:
        self._closed = True
        self.driver.close()


class SqliteAsyncConnection:
    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self._closed = False

    async def execute(self, statement: Sql, /) -> Result:
        cursor = await self.driver.execute(statement.text, statement.params)
        rows = [tuple(row) for row in await cursor.fetchall()] if cursor.description is not None else []
        count = cursor.rowcount
        await cursor.close()
        return Result(rows, count)

    async def begin(self) -> None:
        await self.driver.execute("begin immediate")

    async def begin_with(self, first: Sql, /) -> Result:
        await self.begin()
        return await self.execute(first)

    async def commit(self) -> None:
        if not self.driver.in_transaction:
            raise CommitRefused("no transaction to commit: somebody ended it before")
        await self.driver.execute("commit")

    async def commit_with(self, gate: Sql, /) -> None:
        await self.execute(gate)
        await self.commit()

    async def rollback(self) -> None:
        if not self._closed and self.driver.in_transaction:
            await self.driver.execute("rollback")

    def in_transaction(self) -> bool:
        return bool(self.driver.in_transaction)

    def usable(self) -> bool:
        return not self._closed

    async def close(self) -> None:
        self._closed = True
        await self.driver.close()


def connect(url: str, *, factory: type[sqlite3.Connection] = sqlite3.Connection) -> SqliteConnection:
    """Opens a connection of class ``factory``; it may be used from any thread, one at a time.
    Raises StoreUnavailable where the file cannot be opened."""
    uri = location(url)
    try:
        driver = sqlite3.connect(
            uri, uri=True, isolation_level=None, check_same_thread=False, factory=factory, timeout=BUSY_TIMEOUT_MS / 1e3
        )
        try:
            for pragma in _pragmas(uri):
                driver.execute(pragma)
            if not _in_memory(uri):
                wal.enter(driver, BUSY_TIMEOUT_MS / 1e3)
        except BaseException:
            driver.close()
            raise
    except sqlite3.Error as error:
        raise _unavailable(uri, error) from error
    return SqliteConnection(driver)


async def connect_async(url: str, *, factory: type[sqlite3.Connection] = sqlite3.Connection) -> SqliteAsyncConnection:
    """``connect`` for coroutines, over aiosqlite."""
    try:
        import aiosqlite
    except ImportError as error:  # pragma: no cover - the extras are installed in our tests
        raise MissingExtra("an asynchronous SQLite handler", "aiosqlite") from error
    uri = location(url)
    try:
        driver = await aiosqlite.connect(
            uri, uri=True, isolation_level=None, check_same_thread=False, factory=factory, timeout=BUSY_TIMEOUT_MS / 1e3
        )
        try:
            for pragma in _pragmas(uri):
                await driver.execute(pragma)
            if not _in_memory(uri):
                await _enter_wal(driver)
        except BaseException:
            await driver.close()  # its thread would keep the process alive
            raise
    except sqlite3.Error as error:
        raise _unavailable(uri, error) from error
    return SqliteAsyncConnection(driver)


def _unavailable(uri: str, error: sqlite3.Error) -> StoreUnavailable:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    hint = "is the folder there and writable?"
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        hint = "commit or close the session or connection that has a transaction open there first"
    return StoreUnavailable(f"SQLite cannot open {uri}: {error}; {hint}")
