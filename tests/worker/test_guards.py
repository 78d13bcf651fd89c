"""Handlers that end the worker's transaction, or swallow the database's errors: found, named, nothing lost [A11]."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from bothends import Retry
from tests.worker.conftest import Desk, Placed

WAYS: dict[str, Callable[[Any], Any]] = {
    "commit()": lambda c: c.commit(),
    "rollback()": lambda c: c.rollback(),
    "close()": lambda c: c.close(),
    "with connection": lambda c: c.__exit__(None, None, None),
    "COMMIT": lambda c: c.execute("commit"),
    "commit by cursor": lambda c: c.cursor().execute("COMMIT"),
    "END": lambda c: c.execute("end"),
    "ROLLBACK": lambda c: c.execute("rollback"),
}


@pytest.mark.parametrize("swallowed", [False, True], ids=["raised", "swallowed"])
@pytest.mark.parametrize("way", WAYS)
def test_ending_the_transaction_is_dead_at_once_and_costs_nobody_else(desk: Desk, way: str, swallowed: bool) -> None:
    def handler(event: Placed, ctx: Any) -> None:
        desk.note(ctx)
        if event.order == "bad":
            with contextlib.suppress(Exception) if swallowed else contextlib.nullcontext():
                WAYS[way](ctx.connection)

    desk.declare(handler)
    records = [desk.record("1", "a"), desk.record("2", "bad"), desk.record("3", "c")]
    assert desk.deliver(*records) == ["processed", "dead", "processed"]
    assert sorted(desk.effects()) == ["1", "3"]
    assert desk.rows("reason, message_id", "dead_letters") == [("transaction_ended", "2")]
    assert desk.deliver(*records) == ["duplicate"] * 3


def test_a_commit_and_a_new_transaction_by_text_is_found_by_the_transaction_id(desk: Desk) -> None:
    def handler(event: Placed, ctx: Any) -> None:
        desk.note(ctx)
        if event.order == "bad":
            with contextlib.suppress(Exception):
                ctx.connection.execute("rollback")
            with contextlib.suppress(Exception):
                ctx.connection.execute("begin")
            desk.note(ctx)

    desk.declare(handler)
    records = [desk.record("1", "a"), desk.record("2", "bad"), desk.record("3", "c")]
    assert desk.deliver(*records) == ["processed", "dead", "processed"]
    assert sorted(desk.effects()) == ["1", "3"]
    assert desk.rows("reason", "dead_letters") == [("transaction_ended",)]


def test_savepoints_and_nested_transactions_are_fine(desk: Desk) -> None:
    def handler(event: Placed, ctx: Any) -> None:
        ctx.connection.execute("savepoint mine")
        desk.note(ctx)
        ctx.connection.execute("rollback to mine")
        ctx.connection.execute("release mine")
        desk.note(ctx)
        if desk.store.dialect == "postgresql":
            with ctx.connection.transaction():
                ctx.connection.execute("select 1")

    desk.declare(handler)
    assert desk.deliver(desk.record("1"), desk.record("2")) == ["processed"] * 2
    assert desk.effects() == ["1", "2"]


@pytest.mark.parametrize("store", [pytest.param("postgresql", marks=pytest.mark.needs("postgresql"))], indirect=True)
def test_a_swallowed_database_error_fails_its_handler_and_nobody_else(desk: Desk) -> None:
    def handler(event: Placed, ctx: Any) -> None:
        desk.note(ctx)
        if event.order == "bad":
            with contextlib.suppress(Exception):
                ctx.connection.execute("select 1/0")

    desk.declare(handler, retry=Retry(attempts=1))
    assert desk.deliver(desk.record("1", "a"), desk.record("2", "bad"), desk.record("3", "c")) == [
        "processed", "dead", "processed",
    ]
    assert sorted(desk.effects()) == ["1", "3"]
    ((reason, error),) = desk.rows("reason, error", "dead_letters")
    assert reason == "swallowed_error"
    assert "savepoint" in error


@pytest.mark.parametrize("store", [pytest.param("postgresql", marks=pytest.mark.needs("postgresql"))], indirect=True)
def test_an_error_that_comes_with_the_commit_finds_its_owner(desk: Desk) -> None:
    table = f"deferred_{desk.service.name.replace('-', '_')}"
    desk.sql(f"create table {table} (id text primary key deferrable initially deferred)")

    def handler(event: Placed, ctx: Any) -> None:
        desk.note(ctx)
        if event.order == "bad":
            ctx.connection.execute(f"insert into {table} values ('x'), ('x')")

    desk.declare(handler, retry=Retry(attempts=1))
    assert desk.deliver(desk.record("1", "a"), desk.record("2", "bad"), desk.record("3", "c")) == [
        "processed", "dead", "processed",
    ]
    assert sorted(desk.effects()) == ["1", "3"]
