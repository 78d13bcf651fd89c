"""Steps: what is asked of a database, apart from how the connection waits. Sync and async come from one source.

A *step function* is a generator. It yields ``Sql`` and is sent back a ``Result``; its return value is the answer. The
same generator runs over psycopg (sync and async), asyncpg, sqlite3, aiosqlite and SQLAlchemy connections: ``run`` and
``run_async`` drive it with an *executor*, which knows one driver's way of executing one statement.

Parameters are written ``:name`` in the text; an executor translates them to its driver's style (``translate`` caches).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

__all__ = ["Asking", "AsyncExecutor", "Executor", "Result", "Sql", "Steps", "begin", "run", "run_async", "translate"]

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


@runtime_checkable
class Asking(Executor, Protocol):
    """An executor that can be asked before the answer is needed."""

    def ask(self, statement: Sql, /) -> Callable[[], Result]:
        """Sends the statement without waiting for its end. What is returned waits, and gives the result; it may be
        called at any later time, also after other statements."""
        ...


class AsyncExecutor(Protocol):
    async def execute(self, statement: Sql, /) -> Result: ...


def run(steps: Steps[T], executor: Executor) -> T:
    """Drives ``steps`` to its end. An error of the driver is thrown into the generator, which may handle it."""
    try:
        return _go_on(steps, partial(executor.execute, next(steps)), executor)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


def begin(steps: Steps[T], executor: Executor) -> Callable[[], T]:
    """``run`` in two halves: the first statement is sent now, where the executor can (``Asking``), and the rest happens
    when the returned function is called, once. ``steps`` has at least one statement."""
    if not isinstance(executor, Asking):
        return partial(run, steps, executor)
    return partial(_go_on, steps, executor.ask(next(steps)), executor)


def _go_on(steps: Steps[T], answer: Callable[[], Result], executor: Executor) -> T:
    try:
        while True:
            try:
                result = answer()
            except BaseException as error:
                statement = steps.throw(error)
            else:
                statement = steps.send(result)
            answer = partial(executor.execute, statement)
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
