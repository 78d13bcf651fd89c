"""The whole worker: threads, a memory broker, a real database."""

from __future__ import annotations

import asyncio
import threading
import uuid
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from bothends import ConfigError, Retry, Transient
from bothends.brokers.memory import MemoryBroker
from bothends.errors import PositionLost
from bothends.ports import Broker
from bothends.worker import Worker
from bothends.worker.floor import Failed, HandlerStuck
from bothends.worker.forwarding import retry_topic
from bothends.worker.member import ABANDONED_MAX, EXIT_STUCK
from tests.worker.conftest import TOPIC, Desk, Placed
from tests.worker.working import Run, lag, publish, set_back, until, working


@pytest.fixture
def broker() -> Iterator[Broker]:
    broker = MemoryBroker(f"memory://{uuid.uuid4().hex}")
    broker.create_topic(TOPIC, 4)
    yield broker
    broker.close()


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


def test_each_failed_run_is_told_with_its_error(desk: Desk, broker: Broker) -> None:
    def handler(event: Placed, ctx: Any) -> None:
        if ctx.message.id == "1":
            raise ValueError("no such shelf")
        desk.note(ctx)

    told: list[object] = []
    desk.declare(handler, retry=Retry(attempts=2, first_s=0.05, then="hold"))
    publish(broker, desk, [("1", "k"), ("2", "k"), ("3", "other")])
    with working(desk, broker, observe=told.append):
        until(lambda: any(isinstance(record, Failed) and record.outcome == "dead" for record in told))
        until(lambda: desk.effects() == ["3"])
    failed = [record for record in told if isinstance(record, Failed)]
    assert [(f.id, f.outcome, f.attempts) for f in failed] == [("1", "parked", 1), ("1", "dead", 2)]
    assert all("no such shelf" in f.error and f.fingerprint for f in failed)


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


def test_a_sync_handler_that_is_stuck_is_abandoned_and_the_others_go_on(desk: Desk, broker: Broker) -> None:
    release = threading.Event()
    exits: list[int] = []

    def handler(event: Placed, ctx: Any) -> None:
        if event.order == "stuck" and ctx.attempt == 1:
            desk.note(ctx)
            release.wait(30)
        desk.note(ctx)

    desk.declare(handler, timeout_s=0.3, concurrency=1, retry=Retry(attempts=3, first_s=0.05))
    publish(broker, desk, [("1", "a"), ("2", "stuck"), ("3", "b"), ("4", "stuck")])
    with working(desk, broker, exit=exits.append):
        until(lambda: len(desk.effects()) == 4)
        release.set()
        until(lambda: lag(desk, broker) == 0)
    assert sorted(desk.effects()) == ["1", "2", "3", "4"]
    assert dict(desk.attempts())["2"] == 2
    assert exits == []


def test_after_four_stuck_handlers_the_process_ends(desk: Desk, broker: Broker) -> None:
    release = threading.Event()
    exits: list[int] = []
    desk.declare(lambda event, ctx: release.wait(30), timeout_s=0.1, concurrency=1, retry=Retry(attempts=1))
    publish(broker, desk, [(str(n), f"k{n}") for n in range(ABANDONED_MAX)])
    with working(desk, broker, exit=exits.append):
        until(lambda: bool(exits))
    release.set()
    assert exits[0] == EXIT_STUCK
    assert {reason for (reason,) in desk.rows("reason", "dead_letters")} == {"handler_timeout"}


def test_stopping_finishes_what_runs_and_leaves_the_rest(desk: Desk, broker: Broker) -> None:
    entered, release = threading.Event(), threading.Event()

    def handler(event: Placed, ctx: Any) -> None:
        entered.set()
        release.wait(10)
        desk.note(ctx)

    desk.declare(handler, concurrency=1, batch_max=1)
    publish(broker, desk, [("1", "a"), ("2", "a"), ("3", "a")])
    run_ = Run(desk, broker)
    assert entered.wait(10)
    threading.Timer(0.2, release.set).start()
    run_.stop()
    assert desk.effects() == ["1"]
    assert desk.rows("id", "runs") == []
    with working(desk, broker):
        until(lambda: lag(desk, broker) == 0)
    assert desk.attempts() == [("1", 1), ("2", 1), ("3", 1)]


def test_a_handler_longer_than_the_stop_is_released_uncounted_and_never_commits(desk: Desk, broker: Broker) -> None:
    entered, release = threading.Event(), threading.Event()

    def handler(event: Placed, ctx: Any) -> None:
        desk.note(ctx)
        if not release.is_set():
            entered.set()
            release.wait(20)

    desk.declare(handler, concurrency=1)
    publish(broker, desk, [("1", "a")])
    run_ = Run(desk, broker, stop_timeout_s=1.0)
    assert entered.wait(10)
    assert run_.stop() < 3.0
    release.set()
    assert desk.effects() == []
    assert [bool(voided) for (voided,) in desk.rows("voided", "runs")] == [True]  # a stop is no crash
    with working(desk, broker):
        until(lambda: lag(desk, broker) == 0)
    assert desk.attempts() == [("1", 1)]


def test_two_workers_share_the_partitions_and_a_hand_over_doubles_nothing(desk: Desk, broker: Broker) -> None:
    desk.declare(lambda event, ctx: desk.note(ctx), concurrency=2)
    publish(broker, desk, [(str(n), f"k{n % 29}") for n in range(400)])
    first = Run(desk, broker, member="m-0")
    second = Run(desk, broker, member="m-1")
    publish(broker, desk, [(str(n), f"k{n % 29}") for n in range(400, 800)])
    first.stop()
    until(lambda: lag(desk, broker) == 0)
    second.stop()
    effects = desk.effects()
    assert sorted(map(int, effects)) == list(range(800))
    for key in range(29):
        mine = [int(id) for id in effects if int(id) % 29 == key]
        assert mine == sorted(mine)


def test_the_position_never_passes_a_message_that_is_not_committed(desk: Desk, broker: Broker) -> None:
    entered, release = threading.Event(), threading.Event()

    def handler(event: Placed, ctx: Any) -> None:
        if event.order == "slow":
            entered.set()
            release.wait(20)
        desk.note(ctx)

    desk.declare(handler, concurrency=4, batch_max=1)
    single = MemoryBroker(f"memory://{uuid.uuid4().hex}")
    single.create_topic(TOPIC, 1)
    publish(single, desk, [("0", "slow"), *((str(n), f"k{n}") for n in range(1, 30))])
    quick = 30 - sum(1 for n in range(30) if n == 0 or _slot(desk, f"k{n}", 4) == _slot(desk, "slow", 4))
    if desk.store.dialect == "sqlite":
        quick = 0  # one writer: the slow handler holds the file
    run_ = Run(desk, single)
    assert entered.wait(10)
    until(lambda: len(desk.effects()) >= quick)
    assert [row.position for row in single.lag(desk.consumer.name, [TOPIC])] == [0]
    release.set()
    until(lambda: lag(desk, single) == 0)
    run_.stop()
    assert sorted(map(int, desk.effects())) == list(range(30))
    single.close()


def _slot(desk: Desk, key: str, count: int) -> int:
    return zlib.crc32(key.encode(), zlib.crc32(TOPIC.encode())) % count


def test_everything_redelivered_changes_nothing(desk: Desk, broker: Broker) -> None:
    desk.declare(lambda event, ctx: desk.note(ctx))
    publish(broker, desk, [(str(n), f"k{n % 5}") for n in range(50)])
    with working(desk, broker):
        until(lambda: lag(desk, broker) == 0)
    set_back(desk, broker)
    assert lag(desk, broker) == 50
    with working(desk, broker) as worker:
        until(lambda: lag(desk, broker) == 0)
        assert worker.floor.group == desk.consumer.name
    assert sorted(map(int, desk.effects())) == list(range(50))


def test_block_makes_the_partition_wait(desk: Desk, broker: Broker) -> None:
    single = MemoryBroker(f"memory://{uuid.uuid4().hex}")
    single.create_topic(TOPIC, 1)

    def handler(event: Placed, ctx: Any) -> None:
        if ctx.message.id == "2" and ctx.attempt < 3:
            raise Transient("wait")
        desk.note(ctx)

    desk.declare(handler, retry=Retry(attempts=5, first_s=0.2, mode="block"), concurrency=1)
    publish(single, desk, [("1", "a"), ("2", "b"), ("3", "c"), ("4", "a")])
    with working(desk, single):
        until(lambda: lag(desk, single) == 0)
        publish(single, desk, [("5", "c")])
        until(lambda: lag(desk, single) == 0)
    assert desk.effects() == ["1", "2", "3", "4", "5"]
    assert dict(desk.attempts())["2"] == 3
    single.close()


def test_retry_topics_carry_attempts_and_bodies_and_do_not_grow(desk: Desk, broker: Broker) -> None:
    broker.create_topic(retry_topic(TOPIC), 1)
    seen: list[tuple[int, int, bytes | None]] = []

    def handler(event: Placed, ctx: Any) -> None:
        if event.order == "bad":
            seen.append((ctx.attempt, sum(len(n) + len(v) for n, v in ctx.message.headers), ctx.message.body))
            if ctx.attempt < 6:
                raise ValueError("x" * 10_000)
        desk.note(ctx)

    desk.declare(handler, retry=Retry(attempts=6, first_s=0.02, mode="topic"))
    publish(broker, desk, [("1", "bad"), ("2", "bad-not"), ("3", "c")])
    with working(desk, broker):
        until(lambda: len(desk.effects()) == 3)
    assert [attempt for attempt, _, _ in seen] == [1, 2, 3, 4, 5, 6]
    assert {body for _, _, body in seen} == {b'{"order":"bad"}'}
    assert seen[-1][1] <= seen[1][1] + 1000
    assert desk.rows("id", "parked") == []
    assert retry_topic(retry_topic(TOPIC)) == retry_topic(TOPIC)


def test_a_consumer_that_an_operator_paused_takes_nothing(desk: Desk, broker: Broker) -> None:
    desk.declare(lambda event, ctx: desk.note(ctx))
    number = desk.plan.number
    true = "true" if desk.store.dialect == "postgresql" else "1"
    desk.sql(f"update {desk.table('consumers')} set paused = {true} where id = :id returning id", id=number)
    with working(desk, broker) as worker:
        until(lambda: worker.floor.paused)
        until(lambda: set(worker.floor.generations) == worker._paused != set())
        publish(broker, desk, [("1", "a")])
        false = "false" if desk.store.dialect == "postgresql" else "0"
        assert desk.effects() == []
        desk.sql(f"update {desk.table('consumers')} set paused = {false} where id = :id returning id", id=number)
        until(lambda: lag(desk, broker) == 0)
    assert desk.effects() == ["1"]


def test_a_renamed_consumer_takes_over_position_and_inbox(desk: Desk, broker: Broker) -> None:
    desk.declare(lambda event, ctx: desk.note(ctx))
    publish(broker, desk, [(str(n), "k") for n in range(5)])
    with working(desk, broker):
        until(lambda: lag(desk, broker) == 0)
    desk.service.consumers.clear()
    desk.consumer = desk.service.consumer("renamed", aliases=["stock"])
    desk.consumer.handle(Placed)(lambda event, ctx: desk.note(ctx))
    publish(broker, desk, [("5", "k")])
    with working(desk, broker):
        until(lambda: lag(desk, broker) == 0)
    assert desk.effects() == ["0", "1", "2", "3", "4", "5"]


def test_a_position_that_the_broker_forgot_stops_the_consumer(desk: Desk, broker: Broker) -> None:
    desk.declare(lambda event, ctx: desk.note(ctx))
    publish(broker, desk, [("1", "k")])
    with working(desk, broker):
        until(lambda: lag(desk, broker) == 0)
    other = MemoryBroker(f"memory://{uuid.uuid4().hex}")
    other.create_topic(TOPIC, 4)
    with pytest.raises(PositionLost), working(desk, other) as worker:
        until(lambda: worker._subscription is None)
    other.close()


def test_what_can_never_work_is_refused(desk: Desk, broker: Broker) -> None:
    with pytest.raises(ConfigError, match="no handler"):
        Worker(desk.consumer, desk.store, broker).run(threading.Event(), threading.Event())

    async def handler(event: Placed) -> None: ...

    desk.declare(handler)
    with pytest.raises(ConfigError, match="event loop"):
        Worker(desk.consumer, desk.store, broker).run(threading.Event(), threading.Event())


@pytest.mark.parametrize("stuck", [True, False])
def test_a_batch_handler_that_is_stuck_or_fails_with_several_goes_on_one_by_one(
    desk: Desk, broker: Broker, stuck: bool
) -> None:
    release = threading.Event()
    calls: list[int] = []
    told: list[object] = []

    def handler(events: list[Placed], ctx: Any) -> None:
        calls.append(len(events))
        desk.note_all(ctx)
        if len(events) > 1:
            if stuck:
                release.wait(30)
            raise ValueError("together")

    desk.declare_batch(handler, timeout_s=0.3 if stuck else 30, concurrency=1)
    publish(broker, desk, [("1", "k"), ("2", "k"), ("3", "k")])  # before it starts, so that one poll has all
    with working(desk, broker, observe=told.append):
        until(lambda: len(desk.effects()) == 3)
        until(lambda: lag(desk, broker) == 0)
        release.set()
    assert calls == [3, 1, 1, 1]
    assert desk.attempts() == [("1", 1), ("2", 1), ("3", 1)]
    said = "HandlerTimeout: the handler ran longer than timeout_s=0.3" if stuck else "ValueError: together"
    (failed,) = [one for one in told if isinstance(one, Failed)]
    assert (failed.outcome, failed.error) == ("apart", f"with 3 messages: {said}")
    assert any(isinstance(one, HandlerStuck) for one in told) is stuck
