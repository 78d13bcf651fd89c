"""Session factories over the worker's own connection [A10], sync and async, and what effects handlers are given [A8]."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from bothends import AsyncContext, ConfigError, Context, EffectNotAllowed, Retry
from bothends.worker.async_seats import AsyncSeat
from bothends.worker.inbox import Batch
from bothends.worker.seating import check_middleware
from bothends.worker.sessions import check_factory
from tests.worker.conftest import Booked, Desk, Placed


class Base(DeclarativeBase): ...


class Stock(Base):
    __tablename__ = "stock"
    sku: Mapped[str] = mapped_column(primary_key=True)
    amount: Mapped[int]


def with_factory(desk: Desk, factory: Any) -> Desk:
    desk.service.session_factory = factory
    return desk


def amount(desk: Desk, sku: str) -> list[tuple[int]]:
    return [(row[0],) for row in desk.sql("select amount from stock where sku = :sku", sku=sku)]


@pytest.fixture
def sku(desk: Desk) -> str:
    return f"{desk.service.name}-brie"


def test_a_session_per_message_in_the_workers_transaction(desk: Desk, sku: str) -> None:
    sessions: list[Session] = []

    def handler(event: Placed, ctx: Context[Session]) -> None:
        sessions.append(ctx.session)
        assert ctx.session is ctx.session
        item = ctx.session.get(Stock, sku)
        if item is None:
            ctx.session.add(Stock(sku=sku, amount=0))  # flushed before the next message
        else:
            item.amount += event.amount
        if event.order == "bad":
            raise ValueError

    with_factory(desk, sessionmaker()).declare(handler, retry=Retry(attempts=1))
    assert desk.deliver(desk.record("1", "a"), desk.record("2", "b"), desk.record("3", "bad"), desk.record("4", "d")) == [
        "processed", "processed", "dead", "processed",
    ]
    assert amount(desk, sku) == [(2,)]
    assert len(set(map(id, sessions))) > 1
    assert desk.rows("id", "inbox") == [("1",), ("2",), ("3",), ("4",)]


def test_session_commit_only_flushes_and_warns_once(desk: Desk, sku: str) -> None:
    def handler(event: Placed, ctx: Context[Session]) -> None:
        ctx.session.add(Stock(sku=f"{sku}-{event.order}", amount=1))
        ctx.session.commit()
        if event.order == "bad":
            raise ValueError

    with_factory(desk, sessionmaker()).declare(handler, retry=Retry(attempts=1))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert desk.deliver(desk.record("1", "a"), desk.record("2", "bad"), desk.record("3", "c")) == [
            "processed", "dead", "processed",
        ]
    assert [str(w.message) for w in said if "only flushes" in str(w.message)].__len__() == 1
    assert amount(desk, f"{sku}-a") == amount(desk, f"{sku}-c") == [(1,)]
    assert amount(desk, f"{sku}-bad") == []


def test_session_rollback_ends_the_transaction_and_is_named(desk: Desk, sku: str) -> None:
    def handler(event: Placed, ctx: Context[Session]) -> None:
        ctx.session.execute(text("select 1"))
        if event.order == "bad":
            ctx.session.rollback()

    with_factory(desk, sessionmaker()).declare(handler)
    assert desk.deliver(desk.record("1", "a"), desk.record("2", "bad"), desk.record("3", "c")) == [
        "processed", "dead", "processed",
    ]
    assert desk.rows("reason", "dead_letters") == [("transaction_ended",)]


def test_nested_transactions_of_a_session_are_fine(desk: Desk, sku: str) -> None:
    def handler(event: Placed, ctx: Context[Session]) -> None:
        ctx.session.add(Stock(sku=f"{sku}-{event.order}", amount=1))
        try:
            with ctx.session.begin_nested():
                ctx.session.add(Stock(sku=f"{sku}-inner", amount=1))
                raise LookupError
        except LookupError:
            pass

    with_factory(desk, sessionmaker()).declare(handler)
    assert desk.deliver(desk.record("1", "a")) == ["processed"]
    assert amount(desk, f"{sku}-a") == [(1,)]
    assert amount(desk, f"{sku}-inner") == []


def test_what_does_not_fit_is_refused_at_the_start(desk: Desk) -> None:
    async def coroutine(event: Placed, ctx: AsyncContext[AsyncSession]) -> None: ...

    def function(event: Placed, ctx: Context[Session]) -> None: ...

    with_factory(desk, async_sessionmaker()).declare(function)
    with pytest.raises(ConfigError, match="sessionmaker"):
        check_factory(desk.consumer)
    with_factory(desk, sessionmaker()).declare(coroutine)
    with pytest.raises(ConfigError, match="async_sessionmaker"):
        check_factory(desk.consumer)
    with_factory(desk, sessionmaker(binds={Stock: None})).declare(function)
    with pytest.raises(ConfigError, match="binds"):
        check_factory(desk.consumer)

    async def around(event: Any, ctx: Any, call_next: Any) -> None: ...

    desk.service.session_factory = None
    desk.service.middleware = (around,)
    desk.declare(function)
    with pytest.raises(ConfigError, match="coroutine"):
        check_middleware(desk.plan)


def test_middleware_wraps_each_run_the_first_one_outermost(desk: Desk) -> None:
    order: list[str] = []

    def outer(event: Any, ctx: Any, call_next: Any) -> Any:
        order.append("outer")
        return call_next(event, ctx)

    def inner(event: Any, ctx: Any, call_next: Any) -> Any:
        order.append(f"inner {ctx.attempt} {ctx.resources}")
        return call_next(event, ctx)

    desk.service.middleware = (outer, inner)
    desk.declare(lambda event: order.append("handler"))
    seat = desk.seat(resources="gateway")
    assert desk.deliver(desk.record("1"), seat=seat) == ["processed"]
    seat.close()
    assert order == ["outer", "inner 1 gateway", "handler"]


async def deliver_async(desk: Desk, *records: Any, seat: AsyncSeat | None = None) -> list[str]:
    at = seat or AsyncSeat(desk.plan)
    deliveries = desk.read(*records)
    with at.sharing():
        await at.drive(Batch(desk.plan, deliveries).acts())
    if seat is None:
        await at.close()
    return [d.outcome.value if d.outcome else "open" for d in deliveries]


async def test_async_sessions_and_a_failure_among_them(desk: Desk, sku: str) -> None:
    async def handler(event: Placed, ctx: AsyncContext[AsyncSession]) -> None:
        ctx.session.add(Stock(sku=f"{sku}-{event.order}", amount=1))
        await asyncio.sleep(0)
        ctx.emit(Booked(event.order))
        if event.order == "bad":
            raise ValueError

    with_factory(desk, async_sessionmaker(expire_on_commit=False)).declare(handler, retry=Retry(attempts=1))
    records = [desk.record("1", "a"), desk.record("2", "bad"), desk.record("3", "c")]
    assert await deliver_async(desk, *records) == ["processed", "dead", "processed"]
    assert amount(desk, f"{sku}-a") == amount(desk, f"{sku}-c") == [(1,)]
    assert amount(desk, f"{sku}-bad") == []
    assert desk.sql(f"select count(*) from {desk.table('outbox')} where source = :s", s=desk.service.name) == [(2,)]


@pytest.mark.parametrize("error", [asyncio.CancelledError, TimeoutError, RecursionError, SystemExit, KeyboardInterrupt])
async def test_what_a_coroutine_raises_is_its_own_failure(desk: Desk, error: type[BaseException]) -> None:
    async def handler(event: Placed, ctx: AsyncContext[Any]) -> None:
        if event.order == "bad":
            raise error

    desk.declare(handler)
    assert await deliver_async(desk, desk.record("1", "a"), desk.record("2", "bad")) == ["processed", "parked"]
    assert desk.rows("id, attempts", "parked") == [("2", 1)]


async def test_a_coroutine_that_takes_too_long_is_cancelled(desk: Desk) -> None:
    async def handler(event: Placed, ctx: AsyncContext[Any]) -> None:
        if event.order == "slow":
            await asyncio.Event().wait()

    desk.declare(handler, timeout_s=0.1)
    assert await deliver_async(desk, desk.record("1", "a"), desk.record("2", "slow")) == ["processed", "parked"]
    assert desk.rows("id, attempts, reason", "parked") == [("2", 1, "handler_timeout")]


@pytest.mark.parametrize("way", ["commit", "rollback", "close"])
async def test_a_coroutine_that_ends_the_transaction(desk: Desk, way: str) -> None:
    async def handler(event: Placed, ctx: AsyncContext[Any]) -> None:
        if event.order == "bad":
            await getattr(ctx.connection, way)()

    desk.declare(handler)
    seat = AsyncSeat(desk.plan)
    deliveries = desk.read(desk.record("1", "a"), desk.record("2", "bad"), desk.record("3", "c"))
    batch = Batch(desk.plan, deliveries)
    for _ in range(3):
        try:
            with seat.sharing():
                await seat.drive(batch.acts())
            break
        except Exception:
            assert desk.store.dialect == "sqlite"  # aiosqlite needs a new connection
    await seat.close()
    assert [d.outcome.value for d in deliveries if d.outcome] == ["processed", "dead", "processed"]
    assert desk.rows("reason", "dead_letters") == [("transaction_ended",)]


def test_effects_handlers_read_call_and_begin(desk: Desk, sku: str) -> None:
    calls: list[str] = []
    desk.sql("insert into stock values (:sku, 5) returning sku", sku=sku)

    def handler(event: Placed, ctx: Context[Session]) -> None:
        with pytest.raises(EffectNotAllowed):
            _ = ctx.session
        with ctx.reading() as db:
            found = db.scalar(text("select amount from stock where sku = :sku"), {"sku": sku})
            with pytest.raises(Exception, match=r"(?i)read.?only"):
                db.execute(text("update stock set amount = 0"))
        receipt = ctx.once("charge", lambda key: calls.append(key) or f"r{found}", result=str)
        db = ctx.begin()
        with pytest.raises(EffectNotAllowed):
            ctx.once("late", lambda key: "x", result=str)
        db.execute(text("update stock set amount = amount - 1 where sku = :sku"), {"sku": sku})
        ctx.emit(Booked(receipt))
        if ctx.attempt == 1:
            raise ValueError("after the call")

    with_factory(desk, sessionmaker()).declare(handler, effects=True)
    assert desk.deliver(desk.record("1")) == ["parked"]
    assert desk.drain() == [("1", "processed")]
    assert len(calls) == 1  # the second run got the stored result
    assert amount(desk, sku) == [(4,)]
    assert desk.deliver(desk.record("1")) == ["duplicate"]


def test_ordinary_handlers_have_no_effects(desk: Desk) -> None:
    def handler(event: Placed, ctx: Context[Any]) -> None:
        for act in (ctx.begin, ctx.reading, lambda: ctx.once("x", lambda key: 1, result=int)):
            with pytest.raises(EffectNotAllowed, match="effects=True"):
                act()

    desk.declare(handler)
    assert desk.deliver(desk.record("1")) == ["processed"]


def test_effects_and_ordinary_messages_of_one_batch_keep_their_order(desk: Desk) -> None:
    order: list[str] = []
    desk.declare(lambda event, ctx: order.append(ctx.message.id))

    def effect(event: Booked, ctx: Context[Any]) -> None:
        ctx.begin()
        order.append(ctx.message.id)

    desk.consumer.handle(Booked, effects=True)(effect)
    records = [
        desk.record("1"), desk.record("2", type="order.booked", version=1), desk.record("3"),
        desk.record("4", type="order.booked", version=1), desk.record("5"),
    ]
    assert desk.deliver(*records) == ["processed"] * 5
    assert order == ["1", "2", "3", "4", "5"]


async def test_async_effects(desk: Desk) -> None:
    calls: list[str] = []

    async def call(key: str) -> int:
        calls.append(key)
        return 7

    async def handler(event: Placed, ctx: AsyncContext[Any]) -> None:
        async with ctx.reading() as db:
            await db.execute("select 1")
        assert await ctx.once("charge", call, result=int) == 7
        await ctx.begin()
        ctx.emit(Booked(event.order))

    desk.declare(handler, effects=True)
    record = desk.record("1")
    assert await deliver_async(desk, record) == ["processed"]
    assert await deliver_async(desk, record) == ["duplicate"]
    assert len(calls) == 1
