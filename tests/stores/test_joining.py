"""What may be joined and what is refused, judged at the driver [A1][A2][A3]."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import aiosqlite
import asyncpg
import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy import Engine, String, create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from bothends import ConfigError, EventNotAwaited, NoTransaction, Service, UnsafeSavepoint
from bothends.integrations.sqlalchemy import explicit_begin
from bothends.wakeup import Bell, database_of
from tests.stores.conftest import Look
from tests.stores.handles import path_of, plain

pg = pytest.mark.needs("postgresql")
URLS = [pytest.param("sqlite_url", id="sqlite"), pytest.param("pg15_url", id="postgresql", marks=pg)]
DRIVERS = {"sqlite_url": ("pysqlite", "aiosqlite"), "pg15_url": ("psycopg", "asyncpg")}


class Base(DeclarativeBase):
    pass


class Business(Base):
    __tablename__ = "business"
    id: Mapped[str] = mapped_column(String, primary_key=True)


@pytest.fixture(params=URLS)
def which(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param, request.getfixturevalue(request.param)


@pytest.fixture
def engine(which: tuple[str, str]) -> Iterator[Engine]:
    engine = create_engine(plain(which[1], DRIVERS[which[0]][0]))
    yield engine
    engine.dispose()


@pytest.fixture
async def async_engine(which: tuple[str, str]) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(plain(which[1], DRIVERS[which[0]][1]))
    yield engine
    await engine.dispose()


# No transaction ---------------------------------------------------------------------------------------------------


def test_psycopg_in_autocommit(pg15_url: str, service: Service, look: Callable[[str], Look]) -> None:
    with psycopg.connect(pg15_url, autocommit=True) as connection:
        with pytest.raises(NoTransaction, match=r"connection\.transaction"):
            service.outbox.add(connection, {}, type="t")
        with connection.transaction():
            id = service.outbox.add(connection, {}, type="t")
        with pytest.raises(NoTransaction):
            service.outbox.add(connection, {}, type="t")
    assert look(pg15_url).ids == [id]


async def test_psycopg_async_in_autocommit(pg15_url: str, service: Service, look: Callable[[str], Look]) -> None:
    async with await psycopg.AsyncConnection.connect(pg15_url, autocommit=True) as connection:
        with pytest.raises(NoTransaction, match="async with"):
            await service.outbox.add_async(connection, {}, type="t")
        async with connection.transaction():
            id = await service.outbox.add_async(connection, {}, type="t")
    assert look(pg15_url).ids == [id]


async def test_asyncpg_outside_a_transaction(pg15_url: str, service: Service, look: Callable[[str], Look]) -> None:
    connection = await asyncpg.connect(pg15_url)
    with pytest.raises(NoTransaction, match=r"connection\.transaction"):
        await service.outbox.add_async(connection, {}, type="t")
    await connection.close()
    assert look(pg15_url).ids == []


async def test_sqlite_without_begin(sqlite_url: str, service: Service, look: Callable[[str], Look]) -> None:
    plain_one = sqlite3.connect(path_of(sqlite_url), isolation_level=None)
    with pytest.raises(NoTransaction, match="begin immediate"):
        service.outbox.add(plain_one, {}, type="t")
    plain_one.close()
    async with aiosqlite.connect(path_of(sqlite_url), isolation_level=None) as connection:
        with pytest.raises(NoTransaction):
            await service.outbox.add_async(connection, {}, type="t")
    assert look(sqlite_url).ids == []


def test_sqlalchemy_in_autocommit_though_the_session_says_it_is_in_a_transaction(
    engine: Engine, which: tuple[str, str], service: Service, look: Callable[[str], Look]
) -> None:
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
    with Session(autocommit) as session, session.begin():
        assert session.in_transaction()
        with pytest.raises(NoTransaction, match="AUTOCOMMIT"):
            service.outbox.add(session, {}, type="t")
    with autocommit.connect() as connection, pytest.raises(NoTransaction):
        service.outbox.add(connection, {}, type="t")
    assert look(which[1]).ids == []


async def test_sqlalchemy_async_in_autocommit(
    async_engine: AsyncEngine, which: tuple[str, str], service: Service, look: Callable[[str], Look]
) -> None:
    async with AsyncSession(async_engine.execution_options(isolation_level="AUTOCOMMIT")) as session, session.begin():
        with pytest.raises(NoTransaction, match="AUTOCOMMIT"):
            await service.outbox.add_async(session, {}, type="t")
    async with async_engine.connect() as connection:  # and the same engine without it is fine at once
        id = await service.outbox.add_async(connection, {}, type="t")
        await connection.commit()
    assert look(which[1]).ids == [id]


@pytest.mark.parametrize("what", [object(), None, "postgresql://", 1])
def test_what_is_no_handle(what: Any, service: Service) -> None:
    with pytest.raises(TypeError, match="Session, AsyncSession"):
        service.outbox.add(what, {}, type="t")


def test_an_engine_is_no_handle(engine: Engine, service: Service) -> None:
    with pytest.raises(TypeError, match=r"sqlalchemy\.engine\.base\.Engine"):
        service.outbox.add(engine, {}, type="t")  # type: ignore[arg-type]


# SQLite's savepoints ----------------------------------------------------------------------------------------------


def test_a_savepoint_without_a_real_begin_is_refused(sqlite_url: str, service: Service) -> None:
    engine = create_engine(plain(sqlite_url, "pysqlite"))
    with Session(engine) as session, session.begin(), session.begin_nested(), \
            pytest.raises(UnsafeSavepoint, match="explicit_begin"):
        service.outbox.add(session, {}, type="t")
    engine.dispose()


async def test_explicit_begin_mends_it(sqlite_url: str, service: Service, look: Callable[[str], Look]) -> None:
    engine = create_engine(plain(sqlite_url, "pysqlite"))
    explicit_begin(engine)
    explicit_begin(engine)
    with Session(engine) as session:
        with session.begin_nested():
            service.outbox.add(session, {}, type="t")
        session.rollback()
    async_engine = create_async_engine(plain(sqlite_url, "aiosqlite"))
    explicit_begin(async_engine)
    async with AsyncSession(async_engine) as async_session:
        async with async_session.begin_nested():
            await service.outbox.add_async(async_session, {}, type="t")
        await async_session.rollback()
        assert look(sqlite_url).ids == []
        async with async_session.begin_nested():
            id = await service.outbox.add_async(async_session, {}, type="t")
        await async_session.commit()
    assert look(sqlite_url).ids == [id]
    engine.dispose()
    await async_engine.dispose()


def test_explicit_begin_leaves_autocommit_and_other_levels_alone(sqlite_url: str, service: Service) -> None:
    engine = create_engine(plain(sqlite_url, "pysqlite"), pool_size=1, max_overflow=0)
    explicit_begin(engine)
    for level, refused in (("AUTOCOMMIT", True), ("SERIALIZABLE", False), ("AUTOCOMMIT", True)):
        with engine.execution_options(isolation_level=level).connect() as connection:
            if refused:
                with pytest.raises(NoTransaction):
                    service.outbox.add(connection, {}, type="t")
            else:
                with connection.begin_nested():
                    service.outbox.add(connection, {}, type="t")
                connection.rollback()
    engine.dispose()


def test_the_recipe_of_sqlalchemys_documentation_is_fine_too(
    sqlite_url: str, service: Service, look: Callable[[str], Look]
) -> None:
    engine = create_engine(plain(sqlite_url, "pysqlite"))
    event.listen(engine, "connect", lambda driver, _: setattr(driver, "isolation_level", None))
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    with Session(engine) as session:
        with session.begin_nested():
            service.outbox.add(session, {}, type="t")
        session.rollback()
    engine.dispose()
    assert look(sqlite_url).ids == []


def test_explicit_begin_is_for_sqlite_only(pg15_url: str, service: Service, look: Callable[[str], Look]) -> None:
    engine = create_engine(plain(pg15_url, "psycopg"))
    explicit_begin(engine)
    with Session(engine) as session, session.begin(), session.begin_nested():
        id = service.outbox.add(session, {}, type="t")
    engine.dispose()
    assert look(pg15_url).ids == [id]


# Sessions ---------------------------------------------------------------------------------------------------------


def test_add_flushes_first(engine: Engine, service: Service) -> None:
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda c, cur, statement, *rest: statements.append(statement))
    with Session(engine, autoflush=False) as session:
        session.add(Business(id=service.source))
        service.outbox.add(session, {}, type="t")
        session.rollback()
    assert len(statements) == 2
    assert statements[0].startswith("INSERT INTO business")
    assert "outbox" in statements[1]


def test_add_in_a_hook_of_the_flush(
    engine: Engine, which: tuple[str, str], service: Service, look: Callable[[str], Look]
) -> None:
    with Session(engine) as session:
        event.listen(session, "after_flush", lambda session, _: service.outbox.add(session, {}, type="t"))
        session.add(Business(id=service.source))
        session.commit()
    assert len(look(which[1]).ids) == 1


def test_scoped_sessions(engine: Engine, which: tuple[str, str], service: Service, look: Callable[[str], Look]) -> None:
    registry = scoped_session(sessionmaker(engine))
    id = service.outbox.add(registry, {}, type="t")  # type: ignore[arg-type]
    registry.commit()
    registry.remove()
    assert look(which[1]).ids == [id]


async def test_async_scoped_sessions(
    async_engine: AsyncEngine, which: tuple[str, str], service: Service, look: Callable[[str], Look]
) -> None:
    registry = async_scoped_session(async_sessionmaker(async_engine), scopefunc=lambda: 1)
    id = await service.outbox.add_async(registry, {}, type="t")  # type: ignore[arg-type]
    await registry.commit()
    await registry.remove()
    assert look(which[1]).ids == [id]


def test_a_session_without_a_default_database_says_what_to_do(engine: Engine, service: Service) -> None:
    with Session(binds={Business: engine}) as session:
        with pytest.raises(ConfigError, match="bind_arguments"):
            service.outbox.add(session, {}, type="t")
        service.outbox.add(session.connection(bind_arguments={"mapper": Business}), {}, type="t")


async def test_a_forgotten_await_stops_the_commit(
    async_engine: AsyncEngine, which: tuple[str, str], service: Service, look: Callable[[str], Look]
) -> None:
    async with AsyncSession(async_engine) as session:
        await session.execute(text("select 1"))
        forgotten = service.outbox.add_async(session, {}, type="order.created")
        with pytest.raises(EventNotAwaited, match=r"order\.created"):
            await session.commit()
        await session.rollback()
        forgotten.close()
        id = await service.outbox.add_async(session, {}, type="order.created")
        await session.commit()
    assert look(which[1]).ids == [id]


async def test_a_forgotten_await_of_a_transaction_that_is_gone_is_forgotten(
    async_engine: AsyncEngine, service: Service
) -> None:
    async with AsyncSession(async_engine) as session:
        await session.execute(text("select 1"))
        service.outbox.add_async(session, {}, type="t").close()
        await session.rollback()
        await session.execute(text("select 1"))
        await session.commit()


@pytest.fixture
def runtime_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="wake") as path:  # the path of a socket has at most 107 bytes
        monkeypatch.setenv("BOTHENDS_RUNTIME_DIR", path)
        yield path


async def test_a_session_wakes_the_relay_after_the_commit(
    engine: Engine, async_engine: AsyncEngine, which: tuple[str, str], service: Service, runtime_dir: str
) -> None:
    bell, other = (Bell(name, runtime_dir) for name in (database_of(which[1]), database_of(f"{which[1]}x")))
    explicit_begin(engine)
    with Session(engine) as session:
        service.outbox.add(session, {}, type="t")
        with session.begin_nested():
            service.outbox.add(session, {}, type="t")
        assert not bell.rang()
        session.commit()
        assert bell.rang()
        session.execute(text("select 1"))
        session.commit()
        service.outbox.add(session, {}, type="t")
        session.rollback()
        assert not bell.rang()
    async with AsyncSession(async_engine) as async_session:
        await service.outbox.add_async(async_session, {}, type="t")
        await async_session.commit()
    assert bell.rang()
    assert not other.rang()
    bell.close()
    other.close()


# The caller's own settings ----------------------------------------------------------------------------------------


def test_row_factories_and_cursor_classes_of_the_caller_are_left_alone(
    pg15_url: str, sqlite_url: str, service: Service
) -> None:
    with psycopg.connect(pg15_url, row_factory=dict_row, cursor_factory=psycopg.ClientCursor) as connection:
        service.outbox.add(connection, {}, type="t", id="a")
        assert connection.execute("select 1 as n").fetchone() == {"n": 1}
    lite = sqlite3.connect(path_of(sqlite_url))
    lite.row_factory = lambda cursor, row: {"row": row}
    service.outbox.add(lite, {}, type="t", id="a")
    assert lite.execute("select 1").fetchone() == {"row": (1,)}
    lite.rollback()
    lite.close()


def test_a_handlers_context_is_the_same_as_emit(service: Service) -> None:
    from bothends.contexts import Context
    from bothends.message import Message

    class Scope:
        emitted: list[tuple[object, dict[str, Any]]] = []  # noqa: RUF012

        def emit(self, event: object, arguments: dict[str, Any]) -> str:
            self.emitted.append((event, arguments))
            return "derived"

    context: Context[Any] = Context(Scope(), message=Message("1", "s", "t"))  # type: ignore[arg-type]
    assert service.outbox.add(context, {"n": 1}, type="t", key=None, subject="s") == "derived"
    (emitted, arguments), = Scope.emitted
    assert emitted == {"n": 1}
    assert (arguments["type"], arguments["key"], arguments["subject"]) == ("t", None, "s")
    with pytest.raises(TypeError, match=r"outbox\.add\("):
        service.outbox.add_async(context, {}, type="t")  # type: ignore[arg-type, unused-coroutine]


async def test_missing_tables_are_explained(postgresql_url: str, service: Service) -> None:
    unknown = Service("unknown", schema="no-such-schema").outbox
    with psycopg.connect(postgresql_url) as connection:
        for options in ({}, {"id": "a"}):
            with pytest.raises(psycopg.Error) as caught, connection.transaction():
                unknown.add(connection, {}, type="t", **options)  # type: ignore[arg-type]
            assert "schema apply" in caught.value.__notes__[0]
    lite = sqlite3.connect(":memory:")
    with pytest.raises(sqlite3.OperationalError) as missing:
        unknown.add(lite, {}, type="t")
    assert "schema apply" in missing.value.__notes__[0]
    lite.close()


@pytest.mark.parametrize("hosts", ["host=127.0.0.1:1&host={}", "host=127.0.0.1,{0.hostname}&port=1,{0.port}"])
def test_a_session_with_several_hosts_wakes_the_relay(
    pg15_url: str, service: Service, runtime_dir: str, hosts: str
) -> None:
    """As drivers take them for a failover; what rings fails no commit."""
    parts = urlsplit(pg15_url)
    query = hosts.format(parts if ".port" in hosts else f"{parts.hostname}:{parts.port}")
    several = f"postgresql://{parts.username}@127.0.0.1:1,{parts.hostname}:{parts.port}{parts.path}"
    bell = Bell(database_of(several), runtime_dir)
    engine = create_engine(f"postgresql+psycopg://{parts.username}@{parts.path}?{query}")
    with Session(engine) as session:
        service.outbox.add(session, {}, type="t")
        session.commit()
    assert bell.rang()
    bell.close()
    engine.dispose()
