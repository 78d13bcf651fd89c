"""The worker on a real Kafka: rebalances, slow handlers, and an offset that never runs ahead."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from bothends.brokers import open_broker
from bothends.ports import Broker
from tests.worker.conftest import Desk, Placed
from tests.worker.working import Run, publish, until


@pytest.fixture
def topic(topic_prefix: str) -> str:
    return f"{topic_prefix}orders"


@pytest.fixture
def broker(kafka_url: str, topic: str) -> Iterator[Broker]:
    broker = open_broker(kafka_url)
    broker.create_topic(topic, 4)
    yield broker
    broker.delete_topic(topic)
    broker.close()


def lag(desk: Desk, broker: Broker, topic: str) -> int:
    return sum(row.high - max(row.position, row.low) for row in broker.lag(desk.consumer.name, [topic]))


def test_members_come_and_go_and_every_effect_is_there_once_and_in_order(desk: Desk, broker: Broker, topic: str) -> None:
    desk.declare(lambda event, ctx: desk.note(ctx), topic=topic, concurrency=2)
    publish(broker, desk, [(str(n), f"k{n % 31}") for n in range(400)], topic)
    first = Run(desk, broker, member="m-0")
    until(lambda: len(desk.effects()) > 50)
    second = Run(desk, broker, member="m-1")
    publish(broker, desk, [(str(n), f"k{n % 31}") for n in range(400, 800)], topic)
    until(lambda: bool(second.worker.floor.generations))
    first.stop()
    publish(broker, desk, [(str(n), f"k{n % 31}") for n in range(800, 1000)], topic)
    until(lambda: len(desk.effects()) >= 1000, 40)
    until(lambda: lag(desk, broker, topic) == 0)
    second.stop()
    effects = desk.effects()
    assert sorted(map(int, effects)) == list(range(1000))
    for key in range(31):
        mine = [int(id) for id in effects if int(id) % 31 == key]
        assert mine == sorted(mine)


@pytest.mark.parametrize("store", [pytest.param("postgresql", marks=pytest.mark.needs("postgresql"))], indirect=True)
def test_a_partition_that_is_taken_from_a_slow_handler_doubles_nothing(desk: Desk, broker: Broker, topic: str) -> None:
    entered, release = threading.Event(), threading.Event()

    def handler(event: Placed, ctx: Any) -> None:
        desk.note(ctx)
        if event.order == "slow" and not release.is_set():
            entered.set()
            release.wait(20)

    desk.declare(handler, topic=topic, concurrency=2)
    first = Run(desk, broker, member="m-0", stop_timeout_s=3.0)
    publish(broker, desk, [("0", "slow"), *((str(n), f"k{n}") for n in range(1, 40))], topic)
    assert entered.wait(20)
    stopping = threading.Thread(target=first.stop)
    stopping.start()
    second = Run(desk, broker, member="m-1")
    stopping.join(15)
    assert not stopping.is_alive()
    release.set()
    until(lambda: lag(desk, broker, topic) == 0, 40)
    second.stop()
    assert sorted(map(int, desk.effects())) == list(range(40))
    assert {attempt for _, attempt in desk.attempts()} == {1}


