"""Connections to PostgreSQL that are ours, over psycopg 3. Autocommit, with BEGIN and COMMIT as statements, since only
the command tag says whether a COMMIT committed."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Sequence
from typing import Any

from bothends.errors import ConfigError, MissingExtra, StoreUnavailable
from bothends.stores.connection import CommitRefused
from bothends.stores.steps import Result, Sql, translate
from bothends.urls import mask

try:
    import psycopg
    from psycopg.pq import TransactionStatus
    from psycopg.rows import tuple_row

    from bothends.stores.postgresql.pipeline import BEGIN, COMMIT, Pipeline
except ImportError as error:  # pragma: no cover - the extras are installed in our tests
    raise MissingExtra("PostgreSQL", "postgresql") from error

__all__ = ["CONNECT_TIMEOUT_S", "PostgresqlAsyncConnection", "PostgresqlConnection", "connect", "connect_async", "dsn"]

CONNECT_TIMEOUT_S = 5
REST_S = 1.0
"""A sign of life takes a round trip."""

_FOUND = Sql("select current_setting('session_replication_role'), current_setting('default_transaction_isolation')")
_NO_DATABASE = re.compile(r'database "(.+?)" does not exist')
_IN_TRANSACTION = (TransactionStatus.INTRANS, TransactionStatus.INERROR, TransactionStatus.ACTIVE)


def dsn(url: str) -> str:
    """The URL as libpq reads it: without a driver's name (``postgresql+asyncpg://``)."""
    return re.sub(r"^postgres(?:ql)?(?:\+\w+)?://", "postgresql://", url)


def _arguments(url: str, name: str) -> dict[str, Any]:
    # The encoding is ours: what goes in arrays and onto the wire is UTF-8, whatever the role, the database or PGCLIENTENCODING
    # say.
    arguments: dict[str, Any] = {"autocommit": True, "application_name": name[:63], "client_encoding": "UTF8"}
    if "connect_timeout" not in url:
        arguments["connect_timeout"] = CONNECT_TIMEOUT_S
    return arguments


def _put_right(triggers: str, isolation: str) -> list[Sql]:
    """What a role or a database may say otherwise, and is ours. Leases of dead relays end, held rows have their turn, and a
    handler's COMMIT is refused, by foreign keys and triggers. What waits for another transaction has to see what that did."""
    wrong = []
    if triggers == "replica":
        wrong.append(Sql("set session_replication_role = origin", rows=False))
    if isolation != "read committed":
        wrong.append(Sql("set default_transaction_isolation = 'read committed'", rows=False))
    return wrong


def _is_amid(driver: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Whether somebody began a COPY, a stream or a pipeline here, and has not ended it: a ROLLBACK would wait for that."""
    pgconn = driver.pgconn
    return bool(pgconn.pipeline_status) or pgconn.transaction_status == TransactionStatus.ACTIVE


def come_to_rest(driver: psycopg.Connection[Any]) -> None:
    """Waits for a statement that another thread has under way here: a sign of life. One that a handler has left running does
    not end, and shows."""
    if driver.info.transaction_status == TransactionStatus.ACTIVE and driver.lock.acquire(timeout=REST_S):
        driver.lock.release()


async def come_to_rest_async(driver: psycopg.AsyncConnection[Any]) -> None:
    """``come_to_rest`` for coroutines."""
    if driver.info.transaction_status == TransactionStatus.ACTIVE:
        try:
            await asyncio.wait_for(driver.lock.acquire(), REST_S)
        except TimeoutError:
            return
        driver.lock.release()


def _check(status: TransactionStatus) -> None:
    if status == TransactionStatus.INTRANS:
        return
    if status == TransactionStatus.INERROR:
        raise CommitRefused(
            "the transaction had failed already: a database error was swallowed; let it out, or use a savepoint"
        )
    if status == TransactionStatus.UNKNOWN:
        raise psycopg.OperationalError("the connection was lost before COMMIT")
    raise CommitRefused(f"no transaction to commit (connection is {status.name}): somebody ended it before")


def _check_tag(tag: str | None) -> None:
    if tag != "COMMIT":
        raise CommitRefused(f"COMMIT was answered with {tag}: nothing was committed")


def _written(statement: Sql, cursor: Any) -> tuple[str, Any]:
    """Text and parameters for a raw cursor, which leaves the text alone and saves 12 us; or for another class of cursor that
    the connection makes."""
    if isinstance(cursor, psycopg.RawCursor | psycopg.AsyncRawCursor):
        text, names = translate(statement.text, "numeric_dollar")
        return text, [statement.params[name] for name in names]
    return translate(statement.text, "pyformat")[0], statement.params


class PostgresqlConnection:
    def __init__(self, driver: psycopg.Connection[Any]) -> None:
        self.driver = driver
        own = driver.cursor_factory is not psycopg.Cursor
        self._pipeline = Pipeline(driver)
        self._cursor = driver.cursor() if own else psycopg.RawCursor(driver, row_factory=tuple_row)

    def execute(self, statement: Sql, /) -> Result:
        cursor = self._cursor
        cursor.execute(*_written(statement, cursor))
        rows = cursor.fetchall() if cursor.description is not None else []
        return Result(rows, cursor.rowcount, cursor.statusmessage or "")

    def _at_once(self, statements: Sequence[Sql]) -> list[Result]:
        with self.driver.lock:
            return self.driver.wait(self._pipeline.ask(statements))

    def begin(self) -> None:
        self._cursor.execute(BEGIN.text)

    def begin_with(self, first: Sql, /) -> Result:
        return self._at_once([BEGIN, first])[1]

    def commit(self) -> None:
        come_to_rest(self.driver)
        _check(self.driver.info.transaction_status)
        self._cursor.execute("commit")
        _check_tag(self._cursor.statusmessage)

    def commit_with(self, gate: Sql, /) -> None:
        come_to_rest(self.driver)
        _check(self.driver.info.transaction_status)
        _check_tag(self._at_once([gate, COMMIT])[1].tag)

    def rollback(self) -> None:
        if self.driver.closed or not self.in_transaction():
            return
        if _is_amid(self.driver):
            self.driver.close()
            return
        try:
            self._cursor.execute("rollback")
        except psycopg.OperationalError:
            self.driver.close()  # gone: the server rolls back by itself

    def in_transaction(self) -> bool:
        return self.driver.info.transaction_status in _IN_TRANSACTION

    def usable(self) -> bool:
        return not (self.driver.closed or self.driver.broken)

    def cancel(self) -> None:
        self.driver.cancel_safe(timeout=2)

    def close(self) -> None:
        self.driver.close()


class PostgresqlAsyncConnection:
    def __init__(self, driver: psycopg.AsyncConnection[Any]) -> None:
        self.driver = driver
        self._pipeline = Pipeline(driver)
        self._cursor = psycopg.AsyncRawCursor(driver, row_factory=tuple_row)

    async def execute(self, statement: Sql, /) -> Result:
        cursor = self._cursor
        await cursor.execute(*_written(statement, cursor))
        rows = await cursor.fetchall() if cursor.description is not None else []
        return Result(rows, cursor.rowcount, cursor.statusmessage or "")

    async def _at_once(self, statements: Sequence[Sql]) -> list[Result]:
        async with self.driver.lock:
            return await self.driver.wait(self._pipeline.ask(statements))

    async def begin(self) -> None:
        await self._cursor.execute(BEGIN.text)

    async def begin_with(self, first: Sql, /) -> Result:
        return (await self._at_once([BEGIN, first]))[1]

    async def commit(self) -> None:
        await come_to_rest_async(self.driver)
        _check(self.driver.info.transaction_status)
        await self._cursor.execute("commit")
        _check_tag(self._cursor.statusmessage)

    async def commit_with(self, gate: Sql, /) -> None:
        await come_to_rest_async(self.driver)
        _check(self.driver.info.transaction_status)
        _check_tag((await self._at_once([gate, COMMIT]))[1].tag)

    async def rollback(self) -> None:
        if self.driver.closed or not self.in_transaction():
            return
        if _is_amid(self.driver):
            await self.driver.close()
            return
        try:
            await self._cursor.execute("rollback")
        except psycopg.OperationalError:
            await self.driver.close()

    def in_transaction(self) -> bool:
        return self.driver.info.transaction_status in _IN_TRANSACTION

    def usable(self) -> bool:
        return not (self.driver.closed or self.driver.broken)

    async def close(self) -> None:
        await self.driver.close()


def connect(
    url: str, *, name: str = "bothends", factory: type[psycopg.Connection[Any]] = psycopg.Connection
) -> PostgresqlConnection:
    """Opens a connection of class ``factory``. Raises StoreUnavailable within ``CONNECT_TIMEOUT_S`` per address, and
    ConfigError for a URL that libpq cannot read, or a role for which no trigger fires."""
    try:
        connection = PostgresqlConnection(factory.connect(dsn(url), **_arguments(url, name)))
        try:
            for statement in _put_right(*connection.execute(_FOUND).rows[0]):
                connection.execute(statement)
        except BaseException:
            connection.close()
            raise
        return connection
    except psycopg.errors.InsufficientPrivilege as error:
        raise _without_triggers() from error
    except psycopg.OperationalError as error:
        raise _unavailable(error) from error
    except psycopg.ProgrammingError:
        raise _unreadable(url) from None  # libpq repeats the URL, password and all


async def connect_async(
    url: str, *, name: str = "bothends", factory: type[psycopg.AsyncConnection[Any]] = psycopg.AsyncConnection
) -> PostgresqlAsyncConnection:
    """``connect`` for coroutines."""
    try:
        connection = PostgresqlAsyncConnection(await factory.connect(dsn(url), **_arguments(url, name)))
        try:
            for statement in _put_right(*(await connection.execute(_FOUND)).rows[0]):
                await connection.execute(statement)
        except BaseException:
            await connection.close()
            raise
        return connection
    except psycopg.errors.InsufficientPrivilege as error:
        raise _without_triggers() from error
    except psycopg.OperationalError as error:
        raise _unavailable(error) from error
    except psycopg.ProgrammingError:
        raise _unreadable(url) from None  # libpq repeats the URL, password and all


def _unavailable(error: psycopg.OperationalError) -> StoreUnavailable:
    # A line each, without a full stop. The hint, whether a server is running there, is asked again by what follows.
    said = ". ".join(line.strip(" \t.") for line in str(error).splitlines() if line.strip() and not line.endswith("?"))
    hint = "is it up, and does `bothends config` show the right URL?"
    if missing := _NO_DATABASE.search(said):  # libpq hands on no SQLSTATE (3D000) of a connection that was refused
        hint = f"create it (`createdb {shlex.quote(missing[1])}`), or set the right URL (`bothends config` shows it)"
    return StoreUnavailable(f"PostgreSQL cannot be used: {said}; {hint}")


def _without_triggers() -> ConfigError:
    return ConfigError(
        "session_replication_role is replica here, with which PostgreSQL fires no trigger and keeps no foreign key of ours, "
        "and the role may not change it; let an administrator run: alter role ... reset session_replication_role (or alter "
        "database; or take it out of the URL's options, PGOPTIONS or the server's configuration)")


def _unreadable(url: str) -> ConfigError:
    return ConfigError(
        f"the database URL {mask(url)!r} cannot be read: give postgresql://user@host:port[,host:port]/name[?parameter=value] "
        "with libpq's parameters, and special characters of names and passwords as %XX")
