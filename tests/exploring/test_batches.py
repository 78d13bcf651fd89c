"""Batch handlers under the explorer: several messages in one transaction, and everything that can go wrong with them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import aiosqlite
import pytest
from sqlalchemy.orm import Session, sessionmaker

from bothends import AsyncBatchContext, BatchContext, Context, Service
from bothends.testing import Harness, Scenario, explore, recorded
from bothends.testing.exploring.causes import Cause
from tests.exploring.bookings import Booking
from tests.exploring.planted.events import ONE, STOCK, TWO, Cancelled, Paid, StockMoved

THREE = Paid("1003", 3)
AGAIN = Paid("1001", 4)
Given = BatchContext[sqlite3.Connection]


class Desk:
    def tell(self, order: str) -> None: ...


desk = recorded(Desk())


def tables(db: Any) -> None:
    db.executescript(STOCK)


def models(session: Session) -> None:
    Booking.metadata.create_all(session.connection())


def set_based(inbox: bool = True) -> Service:
    service = Service("set-based")

    @service.consumer("stock", inbox=inbox).handle(Paid, batch=True)
    def take(paid: list[Paid], ctx: Given) -> None:
        ctx.connection.execute("update stock set units = units - ?", (sum(one.units for one in paid),))
        for one in paid:
            ctx.emit(StockMoved(one.order, one.units), cause=one)

    return service


def coroutine(inbox: bool = True) -> Service:
    service = Service("set-based-async")

    @service.consumer("stock", inbox=inbox).handle(Paid, batch=True)
    async def take(paid: list[Paid], ctx: AsyncBatchContext[aiosqlite.Connection]) -> None:
        await ctx.connection.execute("update stock set units = units - ?", (sum(one.units for one in paid),))
        for message, one in zip(ctx.messages, paid, strict=True):
            ctx.emit(StockMoved(one.order, one.units), cause=message)

    return service


def with_session(inbox: bool = True) -> Service:
    service = Service("set-based-session", session_factory=sessionmaker())

    @service.consumer("book", inbox=inbox).handle(Paid, batch=True)
    def book(paid: list[Paid], ctx: BatchContext[Session]) -> None:
        ctx.session.add_all([Booking(order_no=one.order) for one in paid])

    return service


def mixed(inbox: bool = True) -> Service:
    service = Service("mixed")
    consumer = service.consumer("stock", inbox=inbox)

    @consumer.handle(Paid, batch=True)
    def take(paid: list[Paid], ctx: Given) -> None:
        ctx.connection.executemany("update stock set units = units - ?", [(one.units,) for one in paid])

    @consumer.handle(Cancelled)
    def put_back(cancelled: Cancelled, ctx: Context[sqlite3.Connection]) -> None:
        ctx.connection.execute("update stock set units = units + 1")

    return service


KINDS = [(set_based, tables), (coroutine, tables), (with_session, models), (mixed, tables)]


@pytest.mark.parametrize(("make", "start"), KINDS, ids=lambda value: value.__name__)
def test_it_is_safe(make: Callable[[], Service], start: Any) -> None:
    report = explore(make(), [ONE, TWO, AGAIN, Cancelled("1001")], start=start)
    assert report.ok, str(report)
    assert report.complete


def test_pairs_of_faults() -> None:
    report = explore(set_based(), [ONE, TWO], start=tables, depth=2, budget=600)
    assert report.ok, str(report)


@pytest.mark.parametrize(("make", "start"), KINDS, ids=lambda value: value.__name__)
def test_without_an_inbox_it_is_not(make: Callable[[bool], Service], start: Any) -> None:
    report = explore(make(False), [ONE, TWO, THREE], start=start)
    assert {finding.cause for finding in report.findings} == {Cause.NO_MARK}, str(report)


def test_several_share_a_call() -> None:
    service = Service("counting")

    @service.consumer("stock").handle(Paid, batch=True)
    def take(paid: list[Paid], ctx: Given) -> None:
        ctx.connection.execute("insert into sizes values (?)", (len(paid),))

    def sizes(db: Any) -> None:
        db.execute("create table sizes (size integer)")

    def in_threes(db: Any) -> bool:
        return bool(db.execute("select size from sizes").fetchall() == [(3,), (1,)])

    assert explore(service, [ONE, TWO, THREE, AGAIN], start=sizes, invariant=in_threes, budget=3).ok


def test_an_outside_call_and_a_commit_within_are_found() -> None:
    service = Service("calling")

    @service.consumer("tell").handle(Paid, batch=True)
    def tell(paid: list[Paid], ctx: Given) -> None:
        for one in paid:
            desk.tell(one.order)

    report = explore(service, [ONE, TWO])
    assert {finding.cause for finding in report.findings} == {Cause.CALL_WITHOUT_KEY}, str(report)
    ending = Service("ending")

    @ending.consumer("stock").handle(Paid, batch=True)
    def end(paid: list[Paid], ctx: Given) -> None:
        ctx.connection.execute("update stock set units = units - 1")
        ctx.connection.commit()

    report = explore(ending, [ONE, TWO], start=tables)
    assert {finding.cause for finding in report.findings} == {Cause.ENDED_TRANSACTION}, str(report)


def test_a_swallowed_error_is_found() -> None:
    service = Service("swallowing")

    @service.consumer("stock").handle(Paid, batch=True)
    def take(paid: list[Paid], ctx: Given) -> None:
        for one in paid:
            try:
                ctx.connection.execute("update stock set units = units - ?", (one.units,))
            except sqlite3.Error:
                continue

    report = explore(service, [ONE, TWO], start=tables)
    assert Cause.SWALLOWED in {finding.cause for finding in report.findings}, str(report)


# The other tools

def test_a_harness_runs_them() -> None:
    shop = set_based()
    with Harness(shop, deliver_twice=True) as h:
        tables(h.connection())
        h.connection().execute("begin")
        for one in (ONE, TWO, AGAIN):
            shop.outbox.add(h.connection(), one)
        h.connection().execute("commit")
        h.settle()
        assert h.published(StockMoved) == [StockMoved("1001", 2), StockMoved("1002", 1), StockMoved("1001", 4)]
        assert h.connection().execute("select units from stock").fetchone() == (3,)


def test_a_scenario_plays_them() -> None:
    shop = set_based()
    s = Scenario(shop).fails("stock").loses_ack("stock")
    tables(s.connection)
    assert s.publish(ONE, TWO).run() == ["stock 1 parked", "stock 1 duplicate", "stock 1 processed", "stock 2 processed"]
    assert s.connection.execute("select units from stock").fetchone() == (7,)
