"""What a handler may leave behind on the worker's connection, and coroutines that are cancelled in the middle of ours."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from bothends.stores import Store, open_store
from bothends.stores.steps import Result, Sql
from bothends.worker.async_seats import AsyncSeat
from bothends.worker.inbox import Batch
from bothends.worker.seats import Seat
from tests.conftest import fresh_database
from tests.worker.conftest import Desk, Placed, prepared

pytestmark = pytest.mark.needs("postgresql")


@pytest.fixture
def desk(pg_store: Store) -> Iterator[Desk]:
    desk = Desk(pg_store)
    yield desk
    desk.close()


def settle(seat: Seat, batch: Batch) -> list[str]:
    """What a slot does: the same batch again while the database cannot be used."""
    for _ in range(4):
        try:
            seat.drive(batch.acts())
        except Exception:
            continue
        return [d.outcome.value if d.outcome else "open" for d in batch.deliveries]
    raise AssertionError("the batch never gets through")


def entered(context: Any) -> Any:
    context.__enter__()
    return context


def streaming(rows: Any) -> Any:
    next(rows)
    return rows


LEFT: dict[str, Callable[[Any], Any]] = {
    "a pipeline": lambda c: entered(c.pipeline()),
    "a pipeline with a statement": lambda c: (entered(c.pipeline()), c.execute("select 1")),
    "a query": lambda c: c.pgconn.send_query(b"select pg_sleep(0.05)"),
    "a copy": lambda c: entered(c.cursor().copy("copy log from stdin")),
    "a stream": lambda c: streaming(c.cursor().stream("select generate_series(1, 100000)")),
}


@pytest.mark.parametrize("what", LEFT)
def test_what_a_handler_leaves_running_is_its_own_failure(desk: Desk, what: str) -> None:
    left: list[Any] = []

    def handler(event: Placed, ctx: Any) -> None:
        desk.note(ctx)
        if event.order == "bad":
            left.append(LEFT[what](ctx.connection))

    desk.declare(handler)
    seat = desk.seat()
    records = [desk.record("1", "a"), desk.record("2", "bad"), desk.record("3", "c")]
    assert settle(seat, Batch(seat.plan, desk.read(*records))) == ["processed", "parked", "processed"]
    assert len(left) == 1
    assert desk.effects() == ["1", "3"]
    assert settle(seat, Batch(seat.plan, desk.read(desk.record("4", "d")))) == ["processed"]
    seat.close()


def test_a_sign_of_life_under_way_is_waited_for_and_charged_to_nobody(desk: Desk) -> None:
    """A keeper speaks for a long transaction from its own thread; the handler may return in that moment."""
    threads: list[threading.Thread] = []

    def handler(event: Placed, ctx: Any) -> None:
        desk.note(ctx)
        driver = ctx.connection
        threads.append(threading.Thread(target=lambda: driver.execute("select pg_sleep(0.2)")))
        threads[-1].start()
        while driver.info.transaction_status != psycopg.pq.TransactionStatus.ACTIVE:
            threads[-1].join(0.001)

    desk.declare(handler)
    assert desk.deliver(desk.record("1", "a")) == ["processed"]
    assert desk.attempts() == [("1", 1)]
    threads[0].join()


@pytest.mark.parametrize("setting", ["set role pg_read_all_data", "set default_transaction_read_only = on"])
def test_a_setting_that_stays_does_not_stop_the_worker(desk: Desk, setting: str) -> None:
    def handler(event: Placed, ctx: Any) -> None:
        desk.note(ctx)
        if event.order == "bad":
            ctx.connection.execute(setting)

    desk.declare(handler)
    seat = desk.seat()
    assert settle(seat, Batch(seat.plan, desk.read(desk.record("1", "bad")))) in (["processed"], ["parked"])
    assert settle(seat, Batch(seat.plan, desk.read(desk.record("2", "a")))) == ["processed"]
    seat.close()


def test_ids_are_unicode_whatever_encoding_the_database_suggests(postgresql_url: str) -> None:
    with fresh_database(postgresql_url) as url:
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute(f"alter database {admin.info.dbname} set client_encoding = 'LATIN1'")
        desk = Desk(prepared(url))
        desk.declare(lambda event, ctx: desk.note(ctx))
        connection = open_store(url).connect()
        assert connection.execute(Sql("show client_encoding")).rows == [("UTF8",)]
        connection.close()
        first, second, third = desk.record("é1"), desk.record("é2"), desk.record("€3")
        assert desk.deliver(first) == ["processed"]
        assert desk.deliver(first, second, third) == ["duplicate", "processed", "processed"]
        assert desk.effects() == ["é1", "é2", "€3"]
        desk.close()


@pytest.mark.parametrize("when", ["begin_with", "commit_with"])
def test_a_run_that_is_cancelled_among_our_statements_leaves_nothing_open(desk: Desk, when: str) -> None:
    """Else the inbox rows of what was cancelled would be committed with the next batch, and its handlers never run."""
    async def handler(event: Placed, ctx: Any) -> None:
        await ctx.connection.execute(
            "insert into log (consumer, id, attempt) values (%s, %s, 1)", (desk.service.name, ctx.message.id))

    desk.declare(handler)

    async def work() -> None:
        seat = AsyncSeat(desk.plan)
        await seat.connect()
        connection: Any = seat.connection
        asked = getattr(connection, when)
        records = [desk.record("1", "a"), desk.record("2", "b")]
        task: asyncio.Task[None]

        async def cancelled(statement: Sql) -> Result | None:
            if when == "commit_with":
                seat.cancelled = task.cancel()
                await asyncio.sleep(0)
            found: Result | None = await asked(statement)
            seat.cancelled = task.cancel()
            await asyncio.sleep(0)
            return found

        setattr(connection, when, cancelled)
        task = asyncio.ensure_future(seat.drive(Batch(seat.plan, desk.read(*records)).acts()))
        await asyncio.wait([task])
        assert task.cancelled() or task.exception() is not None
        assert not connection.in_transaction()
        seat.cancelled = False
        setattr(connection, when, asked)
        for record in (desk.record("9", "c"), *records):
            deliveries = desk.read(record)
            await seat.drive(Batch(seat.plan, deliveries).acts())
            assert [d.outcome.value for d in deliveries if d.outcome] == ["processed"]
        await seat.close()

    asyncio.run(work())
    assert desk.effects() == ["9", "1", "2"]
    assert desk.rows("messages", "runs") == []
