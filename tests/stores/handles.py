"""Every handle that a caller may hold, behind one face, so that one test says what is true of all of them."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import aiosqlite
import asyncpg
import psycopg
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from bothends import Service
from bothends.integrations.sqlalchemy import explicit_begin


class Held:
    """A transaction handle of a caller: ``tx`` is what ``add`` gets. The first statement begins."""

    def __init__(self, tx: Any, begins: str | None = None) -> None:
        self.tx = tx
        self.begins = begins
        self.begun = False

    async def execute(self, sql: str) -> None:
        if self.begins and not self.begun:
            self.tx.execute(self.begins)
        self.begun = True
        self.tx.execute(sql)

    async def add(self, service: Service, event: object, **options: Any) -> str:
        return service.outbox.add(self.tx, event, **options)

    async def add_many(self, service: Service, events: Iterable[object]) -> list[str]:
        return service.outbox.add_many(self.tx, events)

    async def commit(self) -> None:
        self.tx.commit()
        self.begun = False

    async def rollback(self) -> None:
        self.tx.rollback()
        self.begun = False

    async def savepoint(self, body: Callable[[], Any], *, keep: bool) -> None:
        await self.execute("savepoint here")
        await body()
        await self.execute("release savepoint here" if keep else "rollback to savepoint here")


class HeldAsync(Held):
    async def execute(self, sql: str) -> None:
        await self.tx.execute(sql)

    async def add(self, service: Service, event: object, **options: Any) -> str:
        return await service.outbox.add_async(self.tx, event, **options)

    async def add_many(self, service: Service, events: Iterable[object]) -> list[str]:
        return await service.outbox.add_many_async(self.tx, events)

    async def commit(self) -> None:
        await self.tx.commit()

    async def rollback(self) -> None:
        await self.tx.rollback()


class HeldAsyncpg(HeldAsync):
    block: Any = None

    async def execute(self, sql: str) -> None:
        if self.block is None:
            self.block = self.tx.transaction()
            await self.block.start()
        await self.tx.execute(sql)

    async def commit(self) -> None:
        await self.block.commit()
        self.block = None

    async def rollback(self) -> None:
        await self.block.rollback()
        self.block = None


class HeldAlchemy(Held):
    async def execute(self, sql: str) -> None:
        self.tx.execute(text(sql))

    async def savepoint(self, body: Callable[[], Any], *, keep: bool) -> None:
        nested = self.tx.begin_nested()
        await body()
        nested.commit() if keep else nested.rollback()


class HeldAlchemyAsync(HeldAsync):
    async def execute(self, sql: str) -> None:
        await self.tx.execute(text(sql))

    async def savepoint(self, body: Callable[[], Any], *, keep: bool) -> None:
        nested = await self.tx.begin_nested()
        await body()
        await (nested.commit() if keep else nested.rollback())


def plain(url: str, driver: str) -> str:
    return url.replace("://", f"+{driver}://", 1)


@asynccontextmanager
async def open_psycopg(url: str) -> AsyncIterator[Held]:
    connection = psycopg.connect(url)
    try:
        yield Held(connection)
    finally:
        connection.close()


@asynccontextmanager
async def open_psycopg_autocommit(url: str) -> AsyncIterator[Held]:
    connection = psycopg.connect(url, autocommit=True)
    try:
        yield Held(connection, begins="begin")
    finally:
        connection.close()


@asynccontextmanager
async def open_psycopg_async(url: str) -> AsyncIterator[Held]:
    connection = await psycopg.AsyncConnection.connect(url)
    try:
        yield HeldAsync(connection)
    finally:
        await connection.close()


@asynccontextmanager
async def open_asyncpg(url: str) -> AsyncIterator[Held]:
    connection = await asyncpg.connect(url)
    try:
        yield HeldAsyncpg(connection)
    finally:
        await connection.close()


@asynccontextmanager
async def open_asyncpg_pool(url: str) -> AsyncIterator[Held]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        yield HeldAsyncpg(connection)


def path_of(url: str) -> str:
    return url.removeprefix("sqlite:///")


@asynccontextmanager
async def open_sqlite3(url: str) -> AsyncIterator[Held]:
    connection = sqlite3.connect(path_of(url))
    try:
        yield Held(connection)
    finally:
        connection.close()


@asynccontextmanager
async def open_sqlite3_explicit(url: str) -> AsyncIterator[Held]:
    connection = sqlite3.connect(path_of(url), isolation_level=None)
    try:
        yield Held(connection, begins="begin immediate")
    finally:
        connection.close()


@asynccontextmanager
async def open_aiosqlite(url: str) -> AsyncIterator[Held]:
    async with aiosqlite.connect(path_of(url)) as connection:
        yield HeldAsync(connection)


def _alchemy(driver: str, what: type[Any] | None) -> Callable[[str], AbstractAsyncContextManager[Held]]:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Held]:
        engine = create_engine(plain(url, driver))
        explicit_begin(engine)
        try:
            with what(engine) if what else engine.connect() as tx:
                yield HeldAlchemy(tx)
        finally:
            engine.dispose()

    return opened


def _alchemy_async(driver: str, what: type[Any] | None) -> Callable[[str], AbstractAsyncContextManager[Held]]:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Held]:
        engine = create_async_engine(plain(url, driver))
        explicit_begin(engine)
        try:
            async with what(engine) if what else engine.connect() as tx:
                yield HeldAlchemyAsync(tx)
        finally:
            await engine.dispose()

    return opened


POSTGRESQL: dict[str, Callable[[str], AbstractAsyncContextManager[Held]]] = {
    "psycopg": open_psycopg,
    "psycopg-autocommit": open_psycopg_autocommit,
    "psycopg-async": open_psycopg_async,
    "asyncpg": open_asyncpg,
    "asyncpg-pool": open_asyncpg_pool,
    "Session-psycopg": _alchemy("psycopg", Session),
    "Connection-psycopg": _alchemy("psycopg", None),
    "AsyncSession-psycopg": _alchemy_async("psycopg", AsyncSession),
    "AsyncSession-asyncpg": _alchemy_async("asyncpg", AsyncSession),
    "AsyncConnection-asyncpg": _alchemy_async("asyncpg", None),
}
SQLITE: dict[str, Callable[[str], AbstractAsyncContextManager[Held]]] = {
    "sqlite3": open_sqlite3,
    "sqlite3-explicit": open_sqlite3_explicit,
    "aiosqlite": open_aiosqlite,
    "Session-pysqlite": _alchemy("pysqlite", Session),
    "Connection-pysqlite": _alchemy("pysqlite", None),
    "AsyncSession-aiosqlite": _alchemy_async("aiosqlite", AsyncSession),
    "AsyncConnection-aiosqlite": _alchemy_async("aiosqlite", None),
}
