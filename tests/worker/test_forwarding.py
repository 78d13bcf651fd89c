"""Retry topics: what is published, and that nothing is acknowledged before the broker has it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from bothends import Retry
from bothends.brokers.memory import MemoryBroker
from bothends.core.consuming import judge
from bothends.core.states import Outcome
from bothends.message import Origin, Record
from bothends.ports import Broker
from bothends.worker.deliveries import ATTEMPTS_HEADER, read
from bothends.worker.floor import Delivered
from bothends.worker.forwarding import Forwarder, due_s, retry_topic
from tests.worker.conftest import TOPIC, Desk, Placed
from tests.worker.working import lag, publish, until, working


@pytest.fixture
def broker() -> Iterator[Broker]:
    broker = MemoryBroker(f"memory://{uuid.uuid4().hex}")
    broker.create_topic(TOPIC, 1)
    yield broker
    broker.close()


def failing(desk: Desk, fails: int) -> list[int]:
    seen: list[int] = []

    def handler(event: Placed, ctx: Any) -> None:
        seen.append(ctx.attempt)
        if ctx.attempt <= fails:
            raise ValueError("no")
        desk.note(ctx)

    desk.declare(handler, retry=Retry(attempts=3, first_s=0.0, mode="topic"))
    return seen


def test_a_missing_retry_topic_holds_the_source_and_runs_nothing_again(desk: Desk, broker: Broker) -> None:
    seen = failing(desk, 1)
    publish(broker, desk, [("1", "a")])
    with working(desk, broker) as worker:
        until(lambda: seen == [1])
        until(lambda: any(slot.busy() for slot in worker._slots))
        assert lag(desk, broker) == 1
        broker.create_topic(retry_topic(TOPIC), 1)
        until(lambda: desk.effects() == ["1"])
        until(lambda: lag(desk, broker) == 0)
    assert seen == [1, 2]
    assert desk.rows("id, state", "inbox") == [("1", "p")]


def test_after_the_last_run_it_is_a_dead_letter_like_any_other(desk: Desk, broker: Broker) -> None:
    broker.create_topic(retry_topic(TOPIC), 1)
    told: list[object] = []
    seen = failing(desk, 99)
    publish(broker, desk, [("1", "a")])
    with working(desk, broker, observe=told.append):
        until(lambda: bool(desk.rows("id", "dead_letters")))
    assert seen == [1, 2, 3]
    assert desk.rows("message_id, attempts, topic", "dead_letters") == [("1", 3, retry_topic(TOPIC))]
    outcomes = [name for record in told if isinstance(record, Delivered) for name in record.outcomes]
    assert outcomes == ["forwarded", "forwarded", "dead"]


def test_headers_of_a_forwarded_record_are_replaced_not_added(desk: Desk, broker: Broker) -> None:
    broker.create_topic(retry_topic(TOPIC), 1)
    failing(desk, 99)
    forwarder = Forwarder(broker, "t", lambda: 1_000.0)
    record = desk.record("1", "a", headers=[("mine", b"1"), ("mine", b"2")])
    for attempt in range(1, 4):
        delivery = read(desk.consumer, record)
        assert delivery.attempts == attempt - 1
        desk_batch_charge(desk, delivery)
        assert forwarder.forward(delivery, lambda: False)
        (record,) = broker.read(retry_topic(TOPIC), partition=0, offset=attempt - 1, max_records=1)
        assert due_s(record) == 1_000.0
        names = [name for name, _ in record.headers]
        assert len(set(names)) == len(names) - 1  # only the sender's own name stands twice
        assert dict(record.headers)[ATTEMPTS_HEADER] == str(attempt).encode()
        assert dict(record.headers)["bothends-origin"].startswith(f"{TOPIC}:0:".encode())
    forwarder.close()


def desk_batch_charge(desk: Desk, delivery: Any) -> None:
    delivery.charge(judge(desk.consumer.retry, ValueError("x" * 5_000), attempts=delivery.attempts))
    delivery.outcome = Outcome.FORWARDED


def test_giving_up_is_no_confirmation(desk: Desk, broker: Broker) -> None:
    failing(desk, 1)
    forwarder = Forwarder(broker, "t", lambda: 0.0)
    delivery = read(desk.consumer, desk.record("1"))
    desk_batch_charge(desk, delivery)
    asked: list[int] = []
    assert not forwarder.forward(delivery, lambda: asked.append(1) or len(asked) > 3)
    forwarder.close()


def test_only_records_of_retry_topics_have_a_time() -> None:
    headers = [("bothends-not-before", b"123.5")]
    assert due_s(Record(Origin("a.retry", 0, 0), None, None, headers, 0)) == 123.5
    assert due_s(Record(Origin("a", 0, 0), None, None, headers, 0)) == 0.0
    for nonsense in (b"", b"soon", b"-5", b"1e400", b"\xff"):
        assert due_s(Record(Origin("a.retry", 0, 0), None, None, [("bothends-not-before", nonsense)], 0)) == 0.0
