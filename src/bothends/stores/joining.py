"""Joining: runs step functions in the transaction that the caller holds, through whatever handle it holds.

A handle is recognised by its class's name, so that no driver is imported that the caller has not imported. What would
commit by itself is refused, judged at the driver: an SQLAlchemy engine in AUTOCOMMIT says that it is in a transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from bothends.errors import ConfigError, NoTransaction, UnsafeSavepoint
from bothends.stores import executors
from bothends.stores.faults import sqlstate_of
from bothends.stores.steps import Sql, Steps, run, run_async

if TYPE_CHECKING:
    import sqlalchemy

__all__ = ["Dialect", "Handle", "handle_of", "join", "join_async", "tell_psycopg"]

T = TypeVar("T")
Dialect = Literal["postgresql", "sqlite"]
Work = Callable[[Dialect], Steps[T]]


class Handle(NamedTuple):
    name: str
    asynchronous: bool


_HANDLES = {
    "sqlalchemy.orm.session.Session": Handle("session", False),
    "sqlalchemy.orm.scoping.scoped_session": Handle("registry", False),
    "sqlalchemy.engine.base.Connection": Handle("sqlalchemy", False),
    "psycopg.Connection": Handle("psycopg", False),
    "sqlite3.Connection": Handle("sqlite3", False),
    "bothends.contexts.Context": Handle("context", False),
    "sqlalchemy.ext.asyncio.session.AsyncSession": Handle("session", True),
    "sqlalchemy.ext.asyncio.scoping.async_scoped_session": Handle("registry", True),
    "sqlalchemy.ext.asyncio.engine.AsyncConnection": Handle("sqlalchemy", True),
    "psycopg.AsyncConnection": Handle("psycopg", True),
    "asyncpg.connection.Connection": Handle("asyncpg", True),
    "asyncpg.pool.PoolConnectionProxy": Handle("asyncpg", True),
    "aiosqlite.core.Connection": Handle("aiosqlite", True),
    "bothends.contexts.AsyncContext": Handle("context", True),
}
_DRIVERS = ("psycopg", "psycopg2", "asyncpg", "pysqlite", "aiosqlite")
_NO_SUCH_THING = frozenset({"42P01", "3F000", "42883"})  # table, schema, function
_IDLE = 0  # of libpq's transaction states, in psycopg and psycopg2 alike


@lru_cache(maxsize=64)
def _handle_of_class(cls: type[Any]) -> Handle | None:
    for parent in cls.__mro__:
        if found := _HANDLES.get(f"{parent.__module__}.{parent.__qualname__}"):
            return found
    return None


def handle_of(tx: object, *, asynchronous: bool) -> Handle:
    """What ``tx`` is. Raises TypeError that names the right method, or what to pass instead."""
    cls: Any = type(tx)
    handle = _handle_of_class(cls)
    if handle is None and cls.__qualname__.endswith("BatchContext"):
        raise TypeError("a batch handler adds events with ctx.emit(event, cause=...), which says whose event it is")
    if handle is None:
        raise TypeError(
            f"a {cls.__module__}.{cls.__qualname__} is no handle on a transaction that can be joined; pass "
            "the Session, AsyncSession, Connection or AsyncConnection of SQLAlchemy, the connection of psycopg, "
            "asyncpg, sqlite3 or aiosqlite, or a handler's ctx"
        )
    if handle.asynchronous and not asynchronous:
        raise TypeError(f"a {cls.__qualname__} is asynchronous: use `await outbox.add_async(...)`")
    if asynchronous and not handle.asynchronous:
        raise TypeError(f"a {cls.__qualname__} is synchronous: use `outbox.add(...)`, without await")
    return handle


def join(tx: Any, work: Work[T]) -> T:
    """Runs ``work`` on a synchronous handle (not a context). Raises NoTransaction, UnsafeSavepoint, ConfigError."""
    name = handle_of(tx, asynchronous=False).name
    if name == "psycopg":
        _check_psycopg(tx)
        with _EXPLAINING:
            return run(work("postgresql"), executors.PsycopgExecutor(tx))
    if name == "sqlite3":
        _check_sqlite(tx)
        with _EXPLAINING:
            return run(work("sqlite"), executors.SqliteExecutor(tx))
    if name == "sqlalchemy":
        return _join_sqlalchemy(tx, work)
    return _join_session(tx() if name == "registry" else tx, work)


def tell_psycopg(connection: Any, statement: Sql) -> None:
    """``join`` with one statement, whose result nobody waits for, on a connection of psycopg."""
    _check_psycopg(connection)
    with _EXPLAINING:
        executors.PsycopgExecutor(connection).execute(statement)


async def join_async(tx: Any, work: Work[T]) -> T:
    """``join`` for asynchronous handles."""
    name = handle_of(tx, asynchronous=True).name
    if name == "psycopg":
        await _check_psycopg_async(tx)
        with _EXPLAINING:
            return await run_async(work("postgresql"), executors.PsycopgAsyncExecutor(tx))
    if name == "asyncpg":
        if not tx.is_in_transaction():
            raise _no_transaction("asyncpg", "async with connection.transaction(): ...")
        with _EXPLAINING:
            return await run_async(work("postgresql"), executors.AsyncpgExecutor(tx))
    if name == "aiosqlite":
        _check_sqlite(tx)
        with _EXPLAINING:
            return await run_async(work("sqlite"), executors.AiosqliteExecutor(tx))
    # SQLAlchemy runs its own synchronous code inside a greenlet; so do we.
    if name == "sqlalchemy":
        return await tx.run_sync(_join_sqlalchemy, work)  # type: ignore[no-any-return]
    session = tx() if name == "registry" else tx
    return await session.run_sync(_join_session, work)  # type: ignore[no-any-return]


def _join_session(session: Any, work: Work[T]) -> T:
    from sqlalchemy.exc import UnboundExecutionError

    if not session._flushing:  # a hook of the flush may add events; the flush itself goes on afterwards
        session.flush()
    try:
        connection = session.connection()
    except UnboundExecutionError as error:
        raise ConfigError(
            "this session has several databases and no default one; add the event to the connection that the business "
            "rows go through: add(session.connection(bind_arguments={'mapper': Order}), event)"
        ) from error
    return _join_sqlalchemy(connection, work)


def _join_sqlalchemy(connection: sqlalchemy.Connection, work: Work[T]) -> T:
    dialect = connection.dialect
    if dialect.driver not in _DRIVERS:
        raise TypeError(
            f"SQLAlchemy's {dialect.name}+{dialect.driver} cannot be joined; use one of: {', '.join(_DRIVERS)}"
        )
    _check_sqlalchemy(connection)
    name: Dialect = "sqlite" if dialect.name == "sqlite" else "postgresql"
    with _EXPLAINING:
        return run(work(name), executors.SqlalchemyExecutor(connection))


class _Explaining:
    """Adds to a driver's error what it cannot know: why our tables are missing. No generator: it stands around each
    ``add``, and a generator costs that a microsecond."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if not isinstance(error, Exception):
            return
        lite = getattr(error, "orig", error)
        unknown_in_sqlite = getattr(lite, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR
        if unknown_in_sqlite or sqlstate_of(error) in _NO_SUCH_THING:
            error.add_note("Has this database the tables of bothends? `bothends schema status` says; `schema apply` helps")


_EXPLAINING = _Explaining()


def _check_sqlalchemy(connection: sqlalchemy.Connection) -> None:
    pooled = connection.connection
    driver: Any = pooled.driver_connection
    name = connection.dialect.driver
    if name in ("psycopg", "psycopg2"):
        alone = driver.autocommit and driver.info.transaction_status == _IDLE
    elif name == "asyncpg":  # its adapter sends BEGIN with the first statement
        alone = pooled.dbapi_connection.autocommit and not driver.is_in_transaction()  # type: ignore[union-attr]
    else:
        alone = _sqlite_commits_by_itself(driver)
    if alone:
        raise _no_transaction(
            "SQLAlchemy in AUTOCOMMIT", "with engine.begin() as connection: ..., on an engine without "
            "isolation_level='AUTOCOMMIT'"
        )
    if connection.dialect.name == "sqlite" and connection.in_nested_transaction() and not _begun(connection, driver):
        raise UnsafeSavepoint(
            "SQLite's driver has not begun a transaction for this savepoint: its release would commit for good. Call "
            "bothends.integrations.sqlalchemy.explicit_begin(engine) once, right after create_engine"
        )


def _begun(connection: Any, driver: Any) -> bool:
    """Whether BEGIN is really sent to SQLite: by ``explicit_begin``, by the recipe of SQLAlchemy's documentation (a
    listener, and a driver that begins nothing by itself), or by the driver (Python 3.12's ``autocommit=False``)."""
    if getattr(driver, "autocommit", None) is False:
        return True
    listeners = list(connection.dispatch.begin)
    ours = any(getattr(listener, "bothends_begins", False) for listener in listeners)
    return ours or (bool(listeners) and driver.isolation_level is None)


def _check_psycopg(connection: Any) -> None:
    if not connection.autocommit:
        return
    if _is_unknown(connection):
        with connection.pipeline() as pipeline:
            pipeline.sync()
    if connection.info.transaction_status == _IDLE and not _blocks(connection):
        raise _no_transaction("psycopg in autocommit mode", "with connection.transaction(): ...")


async def _check_psycopg_async(connection: Any) -> None:
    if not connection.autocommit:
        return
    if _is_unknown(connection):
        async with connection.pipeline() as pipeline:
            await pipeline.sync()
    if connection.info.transaction_status == _IDLE and not _blocks(connection):
        raise _no_transaction("psycopg in autocommit mode", "async with connection.transaction(): ...")


def _is_unknown(connection: Any) -> bool:
    """In pipeline mode a BEGIN may be queued, and only the server's answer tells. A ``connection.transaction()`` block
    tells by itself, and nothing has to wait."""
    return bool(connection.info.pipeline_status) and not _blocks(connection)


def _blocks(connection: Any) -> int:
    """How many ``connection.transaction()`` blocks are open; psycopg keeps it to itself. 0 if it no longer says, which
    costs pipelines in autocommit mode a wait and nothing else."""
    return getattr(connection, "_num_transactions", 0)


def _check_sqlite(connection: Any) -> None:
    if _sqlite_commits_by_itself(connection):
        raise _no_transaction("sqlite3 with isolation_level=None", "connection.execute('begin immediate') first")


def _sqlite_commits_by_itself(connection: Any) -> bool:
    if connection.in_transaction:
        return False
    return connection.isolation_level is None or getattr(connection, "autocommit", None) is True


def _no_transaction(what: str, cure: str) -> NoTransaction:
    return NoTransaction(
        f"no transaction is open ({what}): the event would be committed by itself, without the state that it tells of. "
        f"Open one around both: {cure}"
    )
