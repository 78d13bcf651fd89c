"""The kit as a whole: its names, and what of a service a harness runs."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

import bothends.testing
from bothends import AsyncContext, ConfigError, Context, ForeignJson, Retry, Service, event
from bothends.ports import Outgoing
from bothends.testing import Harness, case
from bothends.testing.cases import CASE_MARK
from bothends.testing.databases import Database
from tests.testing.shops import OrderPlaced


def test_the_public_names() -> None:
    assert sorted(bothends.testing.__all__) == [
        "AsyncRecordingBatchContext", "AsyncRecordingContext", "Dead", "Finding", "Harness", "RecordingBatchContext",
        "RecordingContext", "Report", "Scenario", "answering", "async_batch_context", "async_context", "batch_context", "case",
        "context", "explore", "recorded",
    ]
    assert not [name for name in bothends.testing.__all__ if name.startswith("Test")], "pytest would collect it"


def test_case_only_marks() -> None:
    def story() -> list[object]:
        return [OrderPlaced("1")]

    assert case(story) is story
    assert getattr(story, CASE_MARK)
    assert story() == [OrderPlaced("1")]
    with pytest.raises(ConfigError, match="@case"):
        case([OrderPlaced("1")])  # type: ignore[type-var]


def add(h: Harness, service: Service, *orders: OrderPlaced) -> None:
    with h.session(service) as session:
        for order in orders:
            service.outbox.add(session, order)
        session.commit()


def test_lifespan_and_middleware_surround_the_handlers() -> None:
    seen: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[str]:
        seen.append("opened")
        yield "resource"
        seen.append("closed")

    def middleware(event: Any, ctx: Any, call_next: Any) -> Any:
        seen.append(f"before {event.order}")
        return call_next(event, ctx)

    service = Service("orders", lifespan=lifespan, middleware=[middleware])

    @service.consumer("mail").handle(OrderPlaced)
    def send(order: OrderPlaced, ctx: Context[Any]) -> None:
        seen.append(ctx.resources)

    with Harness(service) as h:
        add(h, service, OrderPlaced("1"))
        h.settle()
    assert seen == ["opened", "before 1", "resource", "closed"]


def test_middleware_that_raises_around_a_coroutine_is_a_failed_run() -> None:
    def refuse(event: Any, ctx: Any, call_next: Any) -> Any:
        if ctx.attempt == 1:
            raise RuntimeError("not yet")
        return call_next(event, ctx)

    service = Service("orders", middleware=[refuse])
    seen: list[int] = []

    @service.consumer("mail").handle(OrderPlaced)
    async def send(order: OrderPlaced, ctx: AsyncContext[Any]) -> None:
        seen.append(ctx.attempt)

    with Harness(service) as h:
        add(h, service, OrderPlaced("1"))
        h.settle()
        assert h.dead == []
    assert seen == [2]


async def test_a_lifespan_on_the_running_loop() -> None:
    seen: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[list[str]]:
        yield seen
        seen.append("closed")

    service = Service("orders", lifespan=lifespan)

    @service.consumer("mail").handle(OrderPlaced)
    async def send(order: OrderPlaced, ctx: AsyncContext[Any]) -> None:
        ctx.resources.append(order.order)

    async with Harness(service) as h:
        add(h, service, OrderPlaced("1"))
        await h.settle_async()
    assert seen == ["1", "closed"]


def test_a_lifespan_that_fails_leaves_nothing_open() -> None:
    closed = []

    @asynccontextmanager
    async def good() -> AsyncIterator[None]:
        yield
        closed.append("good")

    @asynccontextmanager
    async def bad() -> AsyncIterator[None]:
        raise RuntimeError("no such host")
        yield

    harness = Harness(Service("orders", lifespan=good), Service("mail", lifespan=bad))
    with pytest.raises(RuntimeError, match="no such host"):
        harness.__enter__()
    assert closed == ["good"]


def test_modules_of_include_are_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "handlers_of_a_test.py").write_text("imported = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    with Harness(Service("orders", include=["handlers_of_a_test"])):
        assert "handlers_of_a_test" in sys.modules
    del sys.modules["handlers_of_a_test"]


def test_session_factories_of_both_kinds(database_url: str) -> None:
    orders = Service("orders", session_factory=sessionmaker())
    mail = Service("mail", session_factory=async_sessionmaker())
    kinds: list[str] = []

    @orders.consumer("sync").handle(OrderPlaced)
    def one(order: OrderPlaced, ctx: Context[Session]) -> None:
        kinds.append(type(ctx.session).__name__)

    @mail.consumer("async").handle(OrderPlaced)
    async def two(order: OrderPlaced, ctx: AsyncContext[Any]) -> None:
        kinds.append(type(ctx.session).__name__)

    with Harness(orders, mail, database=database_url) as h:
        add(h, orders, OrderPlaced("1"))
        h.settle()
        assert h.dead == []
    assert kinds == ["Session", "AsyncSession"]


def test_a_factory_that_does_not_fit_is_found_at_the_start() -> None:
    service = Service("orders", session_factory=async_sessionmaker())

    @service.consumer("mail").handle(OrderPlaced)
    def send(order: OrderPlaced) -> None:
        pass

    with pytest.raises(ConfigError, match="sessionmaker"):
        Harness(service).__enter__()


def test_effects_run_once_though_delivered_twice() -> None:
    sent: list[str] = []
    service = Service("orders")

    @service.consumer("mail").handle(OrderPlaced, effects=True)
    def send(order: OrderPlaced, ctx: Context[Any]) -> None:
        ctx.once("letter", lambda key: sent.append(order.order) or "sent", result=str)
        ctx.begin()

    with Harness(service, deliver_twice=True) as h:
        add(h, service, OrderPlaced("1"))
        h.settle()
        assert h.dead == []
    assert sent == ["1"]


def test_records_of_a_foreign_format_are_published_by_the_test() -> None:
    service = Service("crm")
    ledger = service.consumer(
        "ledger", topic="legacy.orders", format=ForeignJson(type="order.placed", id="nr", key="order"))
    seen: list[str] = []

    @ledger.handle(OrderPlaced)
    def book(order: OrderPlaced, ctx: Context[Any]) -> None:
        seen.append(f"{ctx.message.id} {order.order}")

    with Harness(service, deliver_twice=True) as h:
        publisher = h.broker.publisher("test")
        publisher.send(1, [Outgoing("legacy.orders", None, b'{"nr": "n-1", "order": "17"}', [])])
        publisher.close(5.0)
        h.settle()
    assert seen == ["n-1 17"]


def test_a_record_that_cannot_be_decoded_is_dead_and_shown() -> None:
    service = Service("crm")

    @service.consumer("mail", topic="kit.orders").handle(OrderPlaced)
    def send(order: OrderPlaced) -> None:
        pass

    headers = [
        ("ce_id", b"m-1"), ("ce_source", b"shop"), ("ce_type", b"order.placed"), ("ce_specversion", b"1.0"),
        ("content-type", b"application/json"),
    ]
    with Harness(service, deliver_twice=True) as h:
        publisher = h.broker.publisher("test")
        publisher.send(1, [Outgoing("kit.orders", b"1", b'{"order": 17}', headers)])
        publisher.close(5.0)
        h.settle()
        (dead,) = h.dead
    assert (dead.reason, dead.message_id, dead.event) == ("schema", "m-1", None)


def test_services_of_one_outbox_agree_about_publishing() -> None:
    one, two = Service("orders"), Service("mail", publish=Retry(attempts=2))
    with pytest.raises(ConfigError, match="publish="):
        Harness(one, two).__enter__()
    with Harness(one, two, database={"orders": "sqlite:///:memory:kit-a", "mail": "sqlite:///:memory:kit-b"}):
        pass


def test_a_second_harness_on_the_same_database_goes_on_where_the_first_ended(database: Database) -> None:
    """A rolling upgrade in a test: what the old version could not read waits for the new one."""

    @event("order.placed", version=2, key="order", topic="kit.orders")
    @dataclass(frozen=True)
    class Newer:
        order: str
        gift: bool

    seen: list[object] = []

    def services(known: type[Any]) -> tuple[Service, Service]:
        orders, mail = Service("orders"), Service("mail")

        @mail.consumer("mail").handle(known)
        def send(placed: Any) -> None:
            seen.append(placed)

        return orders, mail

    orders, mail = services(OrderPlaced)
    with Harness(orders, mail, database=database.url) as h:
        with h.session() as session:
            orders.outbox.add(session, Newer("1", gift=True))
            session.commit()
        h.settle()
        assert (seen, h.dead) == ([], [])
    orders, mail = services(Newer)
    with Harness(orders, mail, database=database.url) as h:
        h.settle()
        assert (seen, h.dead) == ([Newer("1", gift=True)], [])


def test_a_newer_version_is_dead_when_the_patience_is_over() -> None:
    @event("order.placed", version=2, key="order", topic="kit.orders")
    @dataclass(frozen=True)
    class Newer:
        order: str

    service = Service("orders")

    @service.consumer("mail", schema_patience=timedelta(hours=2)).handle(OrderPlaced)
    def send(order: OrderPlaced) -> None:
        raise AssertionError("a newer version is never handled as an older one")

    with Harness(service) as h:
        with h.session() as session:
            service.outbox.add(session, Newer("1"))
            session.commit()
        h.settle()
        h.advance(timedelta(hours=1)).settle()
        assert h.dead == []
        h.advance(timedelta(hours=1, seconds=1)).settle()
        assert [dead.reason for dead in h.dead] == ["schema"]
