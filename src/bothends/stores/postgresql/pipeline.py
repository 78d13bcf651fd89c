"""Pipeline: statements that go to the server at once, so that one wait serves for all of them.

psycopg's own pipeline mode costs more than the round trips that it saves when there are two or three statements; libpq's,
which it rests on, costs half of them.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import psycopg
from psycopg import generators
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus

from bothends.stores.steps import Result, Sql, translate

__all__ = ["BEGIN", "COMMIT", "Pipeline", "as_text", "result_of"]

# By name: admission rests on statements that see what was committed before them, whatever a role has as its default.
BEGIN, COMMIT = Sql("begin isolation level read committed"), Sql("commit")
_GOOD = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


class Pipeline:
    """Of one connection. ``ask`` is a generator for the connection's ``wait``, which knows how to wait. Nothing is prepared
    under a name: psycopg deallocates every name after a rollback, a handler's to a savepoint included."""

    def __init__(self, driver: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
        self._driver = driver

    def ask(self, statements: Sequence[Sql]) -> Generator[Any, Any, list[Result]]:
        """The results, in order. What fails ends the rest, and its error is raised; the statements before it have
        happened. Parameters are text, whole numbers or None."""
        written = []
        for statement in statements:
            text, names = translate(statement.text, "numeric_dollar")
            written.append((text.encode(), [as_text(statement.params[name]) for name in names]))
        pgconn = self._driver.pgconn
        answers: list[Any] = []
        pgconn.enter_pipeline_mode()
        try:
            for query, values in written:
                pgconn.send_query_params(query, values)
            pgconn.pipeline_sync()
            yield from generators.send(pgconn)
            for _ in statements:
                answers.append((yield from generators.fetch_many(pgconn))[-1])
            yield from generators.fetch_many(pgconn)  # the end of the pipeline
        except psycopg.OperationalError:
            # A server that ends the connection says why before it does: as the answer to what it did not do any more.
            why = next((answer for answer in answers if answer.status not in _GOOD), None)
            if why is None:
                raise
            raise psycopg.errors.error_from_result(why) from None
        finally:
            if pgconn.status == psycopg.pq.ConnStatus.OK:
                pgconn.exit_pipeline_mode()
        return [result_of(self._driver, answer) for answer in answers]


def result_of(driver: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], found: Any) -> Result:
    """What libpq answered. Raises the database's error."""
    if found.status not in _GOOD:
        raise psycopg.errors.error_from_result(found)
    tag = (found.command_status or b"").decode()
    if found.status == ExecStatus.COMMAND_OK:
        return Result([], found.command_tuples if found.command_tuples is not None else -1, tag)
    transformer = Transformer(driver)
    transformer.set_pgresult(found)
    return Result(transformer.load_rows(0, found.ntuples, tuple), found.ntuples, tag)


def as_text(value: str | int | None) -> bytes | None:
    """A parameter as libpq takes it; the statement casts it where it stands."""
    if value is None:
        return None
    text = str(value).encode()
    if 0 in text:  # libpq would take it for the end
        raise psycopg.DataError("PostgreSQL text cannot contain NUL (0x00)")
    return text
