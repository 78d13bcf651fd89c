"""Steps: what is asked of a database, apart from how the connection waits. Sync and async come from one source.

A *step function* is a generator. It yields ``Sql`` and is sent back a ``Result``; its return value is the answer. The
same generator runs over psycopg (sync and async), asyncpg, sqlite3, aiosqlite and SQLAlchemy connections: ``run`` and
``run_async`` drive it with an *executor*, which knows one driver's way of executing one statement.

Parameters are written ``:name`` in the text; an executor translates them to its driver's style (``translate`` caches).
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

__all__ = ["AsyncExecutor", "Executor", "Result", "Sql", "Steps", "run", "run_async", "translate"]

T = TypeVar("T")

ParamStyle = Literal["pyformat", "numeric_dollar", "named"]


class Sql(NamedTuple):
    """One statement. ``rows=False`` says that its result is not needed, so a pipelining driver need not wait for it."""

    text: str
    params: Mapping[str, Any] = {}
    rows: bool = True


class Result(NamedTuple):
    rows: list[tuple[Any, ...]]
    count: int  # type: ignore[assignment]  # tuple's method of that name is not needed here
    """Rows affected (or returned); -1 where the driver does not say."""
    tag: str = ""
    """The command tag (PostgreSQL), for instance ``COMMIT``."""


Steps = Generator[Sql, Result, T]


class Executor(Protocol):
    def execute(self, statement: Sql, /) -> Result: ...


class AsyncExecutor(Protocol):
    async def execute(self, statement: Sql, /) -> Result: ...


def run(steps: Steps[T], executor: Executor) -> T:
    """Drives ``steps`` to its end. An error of the driver is thrown into the generator, which may handle it."""
    try:
        statement = next(steps)
        while True:
            try:
                result = executor.execute(statement)
            except BaseException as error:
                statement = steps.throw(error)
            else:
                statement = steps.send(result)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


async def run_async(steps: Steps[T], executor: AsyncExecutor) -> T:
    """``run`` for an asynchronous driver."""
    try:
        statement = next(steps)
        while True:
            try:
                result = await executor.execute(statement)
            except BaseException as error:
                statement = steps.throw(error)
            else:
                statement = steps.send(result)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


_NAME = re.compile(r"(?<![:\w]):([a-z_][a-z0-9_]*)")


@lru_cache(maxsize=1024)
def translate(text: str, style: ParamStyle) -> tuple[str, tuple[str, ...]]:
    """``text`` in the driver's parameter style, and the names in positional order (for ``numeric_dollar``)."""
    if style == "named":
        return text, ()
    if style == "pyformat":
        return _NAME.sub(r"%(\1)s", text.replace("%", "%%")), ()
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    return _NAME.sub(number, text), tuple(names)
