"""Handlers of a service whose `relay_source` is `message`: what they emit goes into PostgreSQL's log alone [R8][O6]."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from bothends import ConfigError, Context, InvalidEvent, Service
from bothends.brokers import open_broker
from bothends.codecs.cloudevents import unpack_attributes
from bothends.ids import derived_id
from bothends.ports import Outgoing
from bothends.stores import Store
from tests.stores.logs import Log
from tests.worker.conftest import TOPIC, Booked, Desk, Placed

pytestmark = pytest.mark.needs("postgresql")


@pytest.fixture
def log(pg_store: Store) -> Iterator[Log]:
    with closing(Log(pg_store.url)) as found:
        yield found


@pytest.fixture
def desk(pg_store: Store) -> Iterator[Desk]:
    found = Desk(pg_store)
    found.service.outbox.tell("message")
    yield found
    found.connection.close()


def stored(desk: Desk) -> list[Any]:
    return desk.sql(f"select id from {desk.table('outbox')} where source = :source", source=desk.service.name)


def by_message(desk: Desk, *orders: str) -> list[str]:
    seat = desk.seat(replace(desk.plan, by_message=True))
    try:
        return desk.deliver(*(desk.record(order, order) for order in orders), seat=seat)
    finally:
        seat.close()


def test_emitted_messages_commit_with_the_effect_and_derive_their_ids(desk: Desk, log: Log) -> None:
    def handler(event: Placed, ctx: Any) -> None:
        ctx.emit(Booked(event.order))
        desk.service.outbox.add(ctx, Booked(event.order), topic="copies.events")
        if event.order == "bad":
            raise ValueError
        desk.note(ctx)

    desk.declare(handler)
    assert by_message(desk, "a", "bad", "c") == ["processed", "parked", "processed"]
    rows = log.read()
    assert [(row[0].decode(), row[3]) for row in rows] == [
        (derived_id("orders", order, desk.consumer.name, n), ("bookings.events", "copies.events")[n])
        for order in "ac" for n in (0, 1)]
    assert [unpack_attributes(row[9])["causationid"] for row in rows] == ["a", "a", "c", "c"]
    assert stored(desk) == []
    assert by_message(desk, "a") == ["duplicate"]
    assert log.read() == []


def test_one_message_goes_too(desk: Desk, log: Log) -> None:
    desk.declare(lambda event, ctx: ctx.emit(Booked(event.order)))
    assert by_message(desk, "a") == ["processed"]
    assert len(log.read()) == 1


@pytest.mark.parametrize("option", [{"id": "mine"}, {"delay": timedelta(hours=1)}])
def test_what_needs_a_table_is_refused_where_it_is_emitted(desk: Desk, log: Log, option: dict[str, Any]) -> None:
    refused: list[Exception] = []

    def handler(event: Placed, ctx: Any) -> None:
        try:
            desk.service.outbox.add(ctx, Booked(event.order), **option)
        except InvalidEvent as error:
            refused.append(error)
        desk.note(ctx)

    desk.declare(handler)
    assert by_message(desk, "a") == ["processed"]
    assert len(refused) == 1
    assert desk.effects() == ["a"]
    assert log.read() == []


@pytest.fixture
def broker_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A log with one order in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BOTHENDS_RUNTIME_DIR", str(tmp_path / "run"))
    url = f"embedded:///{tmp_path / 'events.db'}"
    with closing(open_broker(url)) as broker:
        broker.create_topic(TOPIC, 1)
        publisher = broker.publisher("test")
        publisher.send(1, [Outgoing(TOPIC, b"o1", b'{"order":"o1"}', [
            ("ce_specversion", b"1.0"), ("ce_id", b"1"), ("ce_source", b"orders"), ("ce_type", b"order.placed"),
            ("ce_dataversion", b"2")])])
        while not publisher.poll(1.0):
            pass
        publisher.close(1.0)
    return url


async def test_a_process_emits_as_its_settings_say(
    pg_store: Store, log: Log, broker_url: str, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOTHENDS_RELAY_SOURCE", "message")
    shop = Service(desk.service.name, database=pg_store.url, broker=broker_url)
    done, loop = asyncio.Event(), asyncio.get_running_loop()

    @shop.consumer("stock").handle(Placed)
    def book(event: Placed, ctx: Context[psycopg.Connection[Any]]) -> None:
        ctx.emit(Booked(event.order))
        loop.call_soon_threadsafe(done.set)

    async with shop.running(relay=False), asyncio.timeout(30):
        await done.wait()
    [row] = log.read()  # drained: it is committed
    assert (row[0].decode(), row[1]) == (derived_id("orders", "1", f"{shop.name}.stock", 0), shop.name)
    assert stored(desk) == []


async def test_a_worker_on_a_database_without_a_log_does_not_start(
    sqlite_store: Store, broker_url: str
) -> None:
    shop = Service("shop", database=sqlite_store.url, broker=broker_url, relay_source="message")
    handle: Callable[[Placed], None] = lambda event: None  # noqa: E731
    shop.consumer("stock").handle(Placed)(handle)
    with pytest.raises(ConfigError, match="only PostgreSQL has a log"):
        async with shop.running(relay=False):
            pytest.fail("it runs")
