"""The whole worker: threads, a memory broker, a real database."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from bothends import Retry, Transient
from bothends.brokers.memory import MemoryBroker
from bothends.ports import Broker, Outgoing
from bothends.worker import Worker
from tests.worker.conftest import TOPIC, Desk, Placed


def until(what: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Waits for a fact that another thread brings about; the wait ends as soon as it is one."""
    deadline = time.monotonic() + timeout_s
    while not what():
        if time.monotonic() > deadline:
            raise AssertionError("it did not happen in time")
        threading.Event().wait(0.01)


@pytest.fixture
def broker() -> Iterator[Broker]:
    broker = MemoryBroker(f"memory://{uuid.uuid4().hex}")
    broker.create_topic(TOPIC, 4)
    yield broker
    broker.close()


def publish(broker: Broker, desk: Desk, messages: Sequence[tuple[str, str | None]]) -> None:
    publisher = broker.publisher("test")
    records = [desk.record(id, order, body=b'{"order":"x"}') for id, order in messages]
    publisher.send(1, [Outgoing(TOPIC, r.key, r.value, list(r.headers)) for r in records])
    reports = publisher.poll(5)
    while not reports:
        reports = publisher.poll(5)
    assert reports[0].failures == {}
    publisher.close(1)


@contextmanager
def working(desk: Desk, broker: Broker, **options: Any) -> Iterator[Worker]:
    worker = Worker(desk.consumer, desk.store, broker, **options)
    stop, ready = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def target() -> None:
        try:
            worker.run(stop, ready, stop_timeout_s=10)
        except BaseException as error:
            errors.append(error)
            ready.set()

    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield worker
    finally:
        stop.set()
        thread.join(15)
        assert not thread.is_alive()
        if errors:
            raise errors[0]


def lag(desk: Desk, broker: Broker) -> int:
    return sum(row.high - max(row.position, row.low) for row in broker.lag(desk.consumer.name, [TOPIC]))


def test_everything_is_handled_once_and_acknowledged(desk: Desk, broker: Broker) -> None:
    desk.declare(lambda event, ctx: desk.note(ctx), concurrency=3)
    messages = [(str(n), f"k{n % 17}") for n in range(300)]
    publish(broker, desk, messages)
    publish(broker, desk, messages[:100])
    with working(desk, broker):
        until(lambda: lag(desk, broker) == 0)
    effects = desk.effects()
    assert sorted(effects, key=int) == [id for id, _ in messages]
    for key in range(17):
        mine = [int(id) for id in effects if int(id) % 17 == key]
        assert mine == sorted(mine)
    assert desk.rows("id", "runs") == []


def test_a_failing_key_waits_and_comes_back_in_order(desk: Desk, broker: Broker) -> None:
    fails = 2

    def handler(event: Placed, ctx: Any) -> None:
        if ctx.message.id == "1" and ctx.attempt <= fails:
            raise Transient("not yet")
        desk.note(ctx)

    desk.declare(handler, retry=Retry(attempts=5, first_s=0.05))
    publish(broker, desk, [("1", "k"), ("2", "k"), ("3", "other"), ("4", "k")])
    with working(desk, broker):
        until(lambda: len(desk.effects()) == 4)
        publish(broker, desk, [("5", "k")])
        until(lambda: len(desk.effects()) == 5)
    effects = desk.effects()
    assert [id for id in effects if id != "3"] == ["1", "2", "4", "5"]
    assert dict(desk.attempts())["1"] == 3


def test_coroutine_handlers_run_on_the_one_loop(desk: Desk, broker: Broker) -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    loops: set[Any] = set()

    async def handler(event: Placed, ctx: Any) -> None:
        loops.add(asyncio.get_running_loop())
        mark = "%s" if desk.store.dialect == "postgresql" else "?"
        await ctx.connection.execute(
            f"insert into log (consumer, id, attempt) values ({mark}, {mark}, {mark})",
            (desk.service.name, ctx.message.id, ctx.attempt),
        )

    desk.declare(handler)
    publish(broker, desk, [(str(n), f"k{n % 7}") for n in range(100)])
    with working(desk, broker, loop=loop):
        until(lambda: lag(desk, broker) == 0)
    assert sorted(map(int, desk.effects())) == list(range(100))
    assert loops == {loop}
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)
    loop.close()
