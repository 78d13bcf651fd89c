"""All kinds of handlers: coroutines, SQLAlchemy sessions of both kinds, effects, middleware, resources, retry topics."""

from __future__ import annotations

import contextlib
import sqlite3
import warnings
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import aiosqlite
import pytest
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from bothends import AsyncContext, Context, Retry, Service
from bothends.testing import explore, recorded
from bothends.testing.exploring.causes import Cause
from tests.exploring.bookings import Booking
from tests.exploring.planted.events import ONE, STOCK, TWO, Paid, StockMoved


class Desk:
    """A port whose methods are coroutines."""

    def __init__(self) -> None:
        self.told: list[str] = []

    async def tell(self, order: str, key: str | None = None) -> str:
        self.told.append(order)
        return order


desk = recorded(Desk())


def tables(db: Any) -> None:
    db.executescript(STOCK)


def models(session: Session) -> None:
    Booking.metadata.create_all(session.connection())


def with_connection(inbox: bool) -> Service:
    service = Service("async-connection")

    @service.consumer("stock", inbox=inbox).handle(Paid)
    async def take(paid: Paid, ctx: AsyncContext[aiosqlite.Connection]) -> None:
        await ctx.connection.execute("update stock set units = units - ?", [paid.units])
        ctx.emit(StockMoved(paid.order, paid.units))

    return service


def with_session(inbox: bool) -> Service:
    service = Service("sync-session", session_factory=sessionmaker())

    @service.consumer("book", inbox=inbox).handle(Paid)
    def book(paid: Paid, ctx: Context[Session]) -> None:
        ctx.session.add(Booking(order_no=paid.order))

    return service


def with_async_session(inbox: bool) -> Service:
    service = Service("async-session", session_factory=async_sessionmaker())

    @service.consumer("book", inbox=inbox).handle(Paid)
    async def book(paid: Paid, ctx: AsyncContext[AsyncSession]) -> None:
        ctx.session.add(Booking(order_no=paid.order))
        await ctx.session.flush()

    return service


KINDS = [(with_connection, tables), (with_session, models), (with_async_session, models)]


@pytest.mark.parametrize(("make", "start"), KINDS, ids=lambda value: value.__name__)
def test_the_inbox_makes_them_safe(make: Callable[[bool], Service], start: Any) -> None:
    report = explore(make(True), [ONE, TWO], start=start)
    assert report.ok, str(report)


def test_what_would_be_a_message_becomes_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOTHENDS_RELAY_SOURCE", "message")
    report = explore(with_connection(True), [ONE, TWO], start=tables)
    assert report.ok, str(report)
    assert report.notes == ()


@pytest.mark.parametrize(("make", "start"), KINDS, ids=lambda value: value.__name__)
def test_without_it_they_are_told_apart_from_safe_ones(make: Callable[[bool], Service], start: Any) -> None:
    report = explore(make(False), [ONE], start=start)
    assert {finding.cause for finding in report.findings} == {Cause.NO_MARK}, str(report)
    (finding,) = report.findings
    assert finding.where is not None
    assert finding.where.file == __file__


def calling(once: bool) -> Service:
    service = Service("async-effects")

    @service.consumer("tell").handle(Paid, effects=True)
    async def tell(paid: Paid, ctx: AsyncContext[aiosqlite.Connection]) -> None:
        if once:
            await ctx.once("tell", lambda key: desk.tell(paid.order, key), result=str, if_unknown="repeat")
        else:
            await desk.tell(paid.order)
        db = await ctx.begin()
        await db.execute("update stock set units = units - 1")

    return service


def test_a_call_of_a_coroutine_with_once() -> None:
    report = explore(calling(True), [ONE], start=tables)
    assert report.ok, str(report)


def test_a_call_of_a_coroutine_without() -> None:
    report = explore(calling(False), [ONE], start=tables)
    assert {finding.cause for finding in report.findings} == {Cause.CALL_WITHOUT_KEY}, str(report)
    assert desk.told == []


def test_middleware_and_resources_are_as_in_a_worker() -> None:
    opened: list[str] = []

    @contextlib.asynccontextmanager
    async def lifespan() -> AsyncIterator[str]:
        opened.append("once more")
        yield "resource"

    def middleware(event: Any, ctx: Any, call_next: Any) -> Any:
        ctx.connection.execute("insert into seen values (?)", [f"{ctx.resources} {ctx.message.id}"])
        return call_next(event, ctx)

    service = Service("surrounded", lifespan=lifespan, middleware=[middleware])

    @service.consumer("stock").handle(Paid)
    def take(paid: Paid, ctx: Context[sqlite3.Connection]) -> None:
        ctx.connection.execute("update stock set units = units - ?", [paid.units])

    report = explore(service, [ONE], start=tables)
    assert report.ok, str(report)
    assert opened == []  # a list in the memory of processes that have died


@pytest.mark.parametrize("mode", ["topic", "block"])
def test_retry_topics_and_blocked_partitions(mode: Any) -> None:
    service = Service(f"retries-by-{mode}")

    @service.consumer("stock", retry=Retry(attempts=5, mode=mode)).handle(Paid)
    def take(paid: Paid, ctx: Context[sqlite3.Connection]) -> None:
        ctx.connection.execute("update stock set units = units - ?", [paid.units])

    report = explore(service, [ONE, TWO], start=tables)
    assert report.ok, str(report)


def test_a_consumer_that_acknowledges_first_is_left_alone_and_named() -> None:
    service = Service("telemetry")

    @service.consumer("count", at_most_once=True, inbox=False).handle(Paid)
    def count(paid: Paid, ctx: Context[sqlite3.Connection]) -> None:
        ctx.connection.execute("update stock set units = units - 1")

    report = explore(service, [ONE], start=tables)
    assert "telemetry.count acknowledges first" in report.notes[0]


def test_events_with_a_delay_come_when_their_time_has_come() -> None:
    service = Service("delayed")

    @service.consumer("stock", inbox=False).handle(Paid)
    def take(paid: Paid, ctx: Context[sqlite3.Connection]) -> None:
        ctx.connection.execute("insert into seen values (?)", [paid.order])

    def start(db: sqlite3.Connection) -> None:
        tables(db)
        db.execute("begin")
        service.outbox.add(db, ONE, delay=timedelta(hours=3))

    report = explore(service, start=start)
    assert report.findings, str(report)
    assert any(line.text == "gets planted.paid #1" for line in report.findings[0].story)


async def test_in_a_coroutine_it_says_where_it_belongs() -> None:
    with pytest.raises(RuntimeError, match="from a plain function"):
        explore(with_connection(True), [ONE], start=tables)


def test_modules_that_register_handlers_are_imported(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "explored_app.py").write_text(
        "from bothends import Service\nshop = Service('included', include=['explored_h'])\n")
    (tmp_path / "explored_h.py").write_text(
        "from explored_app import shop\nfrom tests.exploring.planted.events import Paid\n"
        "@shop.consumer('c').handle(Paid)\ndef handle(paid: Paid) -> None:\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import explored_app  # type: ignore[import-not-found]

    assert explore(explored_app.shop, [ONE]).boundaries > 30


def test_a_session_that_the_handler_commits_is_only_flushed() -> None:
    service = Service("committing", session_factory=sessionmaker())

    @service.consumer("book").handle(Paid)
    def book(paid: Paid, ctx: Context[Session]) -> None:
        ctx.session.add(Booking(order_no=paid.order))
        ctx.session.commit()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        report = explore(service, [ONE], start=models)
    assert report.ok, str(report)
