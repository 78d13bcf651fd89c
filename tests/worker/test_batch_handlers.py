"""Batch handlers: one call for several messages, what its failure costs, and whose event is whose."""

from __future__ import annotations

from typing import Any

import pytest

from bothends import Permanent, Retry, Transient
from bothends.core.consuming import HandlerTimeout
from bothends.ids import derived_id
from bothends.stores import Store
from bothends.worker.acts import Call
from bothends.worker.async_seats import AsyncSeat
from bothends.worker.inbox import Batch
from bothends.worker.slots import failed_together
from tests.worker.conftest import Booked, Desk, Placed

CALLS = list[list[str]]


def noting(desk: Desk, calls: CALLS, bad: frozenset[str] = frozenset()) -> Any:
    def handler(events: list[Placed], ctx: Any) -> None:
        calls.append([message.id for message in ctx.messages])
        assert [event.order for event in events] == [message.key.decode() for message in ctx.messages]
        desk.note_all(ctx)
        if any(event.order in bad for event in events):
            raise ValueError("bad")

    return handler


def test_one_call_gets_the_batch_in_order_without_duplicates(desk: Desk) -> None:
    calls: CALLS = []
    desk.declare_batch(noting(desk, calls))
    desk.deliver(desk.record("0", "a"))
    copy = desk.record("1", "a")
    records = [copy, desk.record("2", "b"), copy, desk.record("3", "a"), desk.record("0", "a")]
    assert desk.deliver(*records) == ["processed", "processed", "duplicate", "processed", "duplicate"]
    assert calls == [["0"], ["1", "2", "3"]]
    assert desk.effects() == ["0", "1", "2", "3"]
    assert desk.rows("id, state", "inbox") == [("0", "p"), ("1", "p"), ("2", "p"), ("3", "p")]
    assert desk.rows("id", "runs") == []


def test_there_is_no_call_without_messages(desk: Desk) -> None:
    calls: CALLS = []
    desk.declare_batch(noting(desk, calls))
    one = desk.record("1")
    desk.deliver(one)
    assert desk.deliver(one, desk.record("2", body=b"no json")) == ["duplicate", "dead"]
    assert calls == [["1"]]


def test_a_handler_of_events_alone(desk: Desk) -> None:
    seen: list[list[Placed]] = []
    desk.declare_batch(seen.append)
    assert desk.deliver(desk.record("1", "a"), desk.record("2", "b")) == ["processed"] * 2
    assert seen == [[Placed("a"), Placed("b")]]


def test_a_failed_call_is_made_again_one_by_one_and_only_the_bad_one_is_charged(desk: Desk) -> None:
    calls: CALLS = []
    desk.declare_batch(noting(desk, calls, frozenset({"bad"})), retry=Retry(attempts=3))
    records = [desk.record("1", "a"), desk.record("2", "bad"), desk.record("3", "c"), desk.record("4", "bad")]
    batch = Batch(desk.plan, desk.read(*records))
    seat = desk.seat()
    seat.drive(batch.acts())
    seat.close()
    assert [d.outcome.value for d in batch.deliveries if d.outcome] == ["processed", "parked", "processed", "parked"]
    assert calls == [["1", "2", "3", "4"], ["1"], ["2"], ["1"], ["3"]]
    assert desk.attempts() == [("1", 1), ("3", 1)]
    assert desk.rows("id, attempts, reason", "parked") == [("2", 1, "handler_error"), ("4", 0, "behind")]
    assert [failed_together("shop.stock", *parted)[:7] for parted in batch.parted] == [
        ("shop.stock", "apart", "order.placed", "1", 0, "handler_error", "with 4 messages: ValueError: bad"),
    ]


def test_what_fails_only_together_costs_nobody_an_attempt(desk: Desk) -> None:
    def handler(events: list[Placed], ctx: Any) -> None:
        desk.note_all(ctx)
        if len(events) > 1:
            raise Permanent("not more than one")

    desk.declare_batch(handler)
    assert desk.deliver(*(desk.record(str(n), "k") for n in range(3))) == ["processed"] * 3
    assert desk.attempts() == [("0", 1), ("1", 1), ("2", 1)]


def test_a_swallowed_database_error_is_found_in_a_batch_as_well(desk: Desk) -> None:
    def handler(events: list[Placed], ctx: Any) -> None:
        desk.note_all(ctx)
        if any(event.order == "bad" for event in events):
            try:
                ctx.connection.execute("select * from no_such_table")
            except Exception:
                if desk.store.dialect == "sqlite":  # where the transaction goes on
                    raise

    desk.declare_batch(handler, retry=Retry(attempts=1))
    assert desk.deliver(desk.record("1", "a"), desk.record("2", "bad")) == ["processed", "dead"]
    assert desk.effects() == ["1"]


def test_a_commit_of_the_handler_is_found_and_charged_to_whom_it_belongs(desk: Desk) -> None:
    def handler(events: list[Placed], ctx: Any) -> None:
        desk.note_all(ctx)
        if any(event.order == "bad" for event in events):
            ctx.connection.commit()

    desk.declare_batch(handler, retry=Retry(attempts=1))
    assert desk.deliver(desk.record("1", "a"), desk.record("2", "bad")) == ["processed", "dead"]
    assert desk.rows("message_id, reason", "dead_letters") == [("2", "transaction_ended")]
    assert desk.effects() == ["1"]


def test_one_that_has_failed_runs_alone_and_knows_its_attempt_and_what_waited_comes_together(desk: Desk) -> None:
    calls: list[tuple[list[str], int]] = []
    broken = True

    def handler(events: list[Placed], ctx: Any) -> None:
        calls.append(([message.id for message in ctx.messages], ctx.attempt))
        if broken and "1" in calls[-1][0]:
            raise Transient("not yet")
        desk.note_all(ctx)

    desk.declare_batch(handler)
    assert desk.deliver(*(desk.record(str(n), "k") for n in range(1, 5))) == ["parked"] * 4
    broken = False
    calls.clear()
    assert [id for id, _ in desk.drain()] == ["1", "2", "3", "4"]
    assert calls == [(["1"], 2), (["2", "3", "4"], 1)]
    assert desk.effects() == ["1", "2", "3", "4"]
    assert desk.rows("state", "blocked_keys") == desk.rows("id", "parked") == desk.rows("id", "runs") == []


def test_a_drained_batch_that_fails_parts_company_too(desk: Desk) -> None:
    calls: CALLS = []
    bad = {"1"}

    def handler(events: list[Placed], ctx: Any) -> None:
        calls.append([message.id for message in ctx.messages])
        desk.note_all(ctx)
        if bad.intersection(calls[-1]):
            raise ValueError("no")

    desk.declare_batch(handler)
    desk.deliver(*(desk.record(str(n), "k") for n in range(1, 5)))
    calls.clear()
    bad = {"3"}
    assert desk.drain() == [("1", "processed"), ("2", "processed"), ("3", "parked")]
    assert calls == [["1"], ["2", "3", "4"], ["2"], ["3"], ["2"]]
    assert desk.rows("id, attempts", "parked") == [("3", 1), ("4", 0)]
    bad = set()
    assert desk.drain() == [("3", "processed"), ("4", "processed")]
    assert desk.effects() == ["1", "2", "3", "4"]


def test_an_ordinary_handler_beside_it_keeps_the_order_of_a_key(desk: Desk) -> None:
    order: list[str] = []
    desk.declare_batch(lambda events: order.append("+".join(event.order for event in events)))
    desk.consumer.handle(Booked)(lambda booked: order.append(f"booked {booked.order}"))
    records = [
        desk.record("1", "a"), desk.record("2", "b"), desk.record("3", "a", type="order.booked", version=1),
        desk.record("4", "c"), desk.record("5", "a"),
    ]
    assert desk.deliver(*records) == ["processed"] * 5
    assert order == ["a+b+c", "booked a", "a"]


def test_at_most_once_buries_only_the_bad_one(desk: Desk) -> None:
    calls: CALLS = []
    desk.declare_batch(noting(desk, calls, frozenset({"bad"})), at_most_once=True)
    assert desk.deliver(desk.record("1", "a"), desk.record("2", "bad")) == ["processed", "dead"]
    assert desk.effects() == ["1"]


# Events that are emitted

def emitting(desk: Desk, by_message: bool = False) -> Any:
    def handler(events: list[Placed], ctx: Any) -> None:
        for event, message in zip(events, ctx.messages, strict=True):
            for _ in range(event.amount):
                ctx.emit(Booked(event.order), cause=message if by_message else event)

    return handler


@pytest.mark.parametrize("by_message", [False, True])
def test_an_emitted_event_is_its_causes_whatever_the_batch_is(desk: Desk, by_message: bool) -> None:
    desk.declare_batch(emitting(desk, by_message))
    records = [desk.record(str(n), f"o{n}", body=b'{"order":"o%d","amount":2}' % n) for n in range(2)]
    desk.deliver(*records)
    ids = [derived_id("orders", str(n), desk.consumer.name, ordinal) for n in range(2) for ordinal in range(2)]
    found = desk.sql(f"select id, attributes from {desk.table('outbox')} where type = 'order.booked' order by seq")
    ours = [(id, attributes) for id, attributes in found if id in ids]
    assert [id for id, _ in ours] == ids
    assert '"0"' in ours[0][1]
    assert '"1"' in ours[3][1]


def test_an_event_needs_a_cause_of_this_call(desk: Desk) -> None:
    said: list[str] = []

    def handler(events: list[Placed], ctx: Any) -> None:
        for arguments in ({}, {"cause": Placed("o1")}, {"cause": None}):
            try:
                ctx.emit(Booked("o1"), **arguments)
            except Exception as error:
                said.append(f"{type(error).__name__}: {error}")
        for name in ("once", "begin", "reading", "message", "nothing"):
            try:
                getattr(ctx, name)
            except Exception as error:
                said.append(f"{type(error).__name__}: {error}")
        try:
            desk.service.outbox.add(ctx, Booked("o1"))
        except TypeError as error:
            said.append(str(error))

    desk.declare_batch(handler)
    assert desk.deliver(desk.record("1")) == ["processed"]
    assert "cause" in said[0]
    assert said[1].startswith("InvalidEvent: cause: this Placed is none of this call's events")
    assert said[2].startswith("InvalidEvent: cause: this NoneType")
    assert [text.partition(" ")[0] for text in said[3:6]] == ["EffectNotAllowed:"] * 3
    assert said[6] == "AttributeError: a batch handler has ctx.messages, in the order of its events"
    assert said[7] == "AttributeError: BatchContext has no 'nothing'"
    assert "ctx.emit(event, cause=...)" in said[8]


# What may happen to the process

def test_stopped_anywhere_and_delivered_again_it_takes_effect_once(desk: Desk) -> None:
    """As if the process died before each act in turn: a new connection, the same records again."""
    desk.declare_batch(noting(desk, []))
    step = 0
    while True:
        step += 1
        records = [desk.record(f"{step}-{n}", f"o{n}") for n in range(3)]
        seat = desk.seat()
        seat.connect()
        acts = Batch(desk.plan, desk.read(*records)).acts()
        act: Any = next(acts)
        try:
            for _ in range(step - 1):
                act = acts.send(seat.perform(act))
        except StopIteration:
            seat.close()
            break
        seat.close()
        desk.deliver(*records)
        assert [id for id in desk.effects() if id.startswith(f"{step}-")] == [f"{step}-{n}" for n in range(3)]
    assert step > 5


def test_a_stuck_batch_is_given_up_and_each_runs_alone(desk: Desk) -> None:
    calls: CALLS = []
    desk.declare_batch(noting(desk, calls))
    batch = Batch(desk.plan, desk.read(desk.record("1", "a"), desk.record("2", "b")))
    left = batch.successor(batch.deliveries, HandlerTimeout("stuck"))
    seat = desk.seat()
    seat.drive(left.acts())
    seat.close()
    assert calls == [["1"], ["2"]]
    assert desk.attempts() == [("1", 1), ("2", 1)]


def test_a_suspect_runs_alone(desk: Desk) -> None:
    """After a death in a batch's call each of its messages runs in a call of its own, so that a second death has an owner."""
    calls: CALLS = []
    desk.declare_batch(noting(desk, calls))
    records = [desk.record("1", "a"), desk.record("2", "b")]
    seat = desk.seat()
    seat.connect()
    acts = Batch(desk.plan, desk.read(*records)).acts()
    act: Any = next(acts)
    while not isinstance(act, Call):
        act = acts.send(seat.perform(act))
    assert len(act.deliveries) == 2
    seat.close()
    plan = desk.new_plan(desk.plan.number, "worker-2")
    plan.suspects.load(desk.run(desk.store.inbox.open_runs(plan.number, plan.worker)))
    assert desk.deliver(*records, seat=desk.seat(plan)) == ["processed"] * 2
    assert calls == [["1"], ["2"]]


async def test_coroutines(store: Store) -> None:
    desk = Desk(store)
    calls: CALLS = []

    async def handler(events: list[Placed], ctx: Any) -> None:
        calls.append([message.id for message in ctx.messages])
        mark = "%s" if store.dialect == "postgresql" else "?"
        for event, message in zip(events, ctx.messages, strict=True):
            await ctx.connection.execute(
                f"insert into log (consumer, id, attempt) values ({mark}, {mark}, {mark})",
                (desk.service.name, message.id, ctx.attempt))
            ctx.emit(Booked(event.order), cause=event)
        if any(event.order == "bad" for event in events):
            raise ValueError("bad")

    desk.declare_batch(handler, retry=Retry(attempts=1))
    deliveries = desk.read(desk.record("1", "a"), desk.record("2", "b"), desk.record("3", "bad"))
    seat = AsyncSeat(desk.plan)
    with seat.sharing():
        await seat.drive(Batch(desk.plan, deliveries).acts())
    await seat.close()
    assert [d.outcome.value for d in deliveries if d.outcome] == ["processed", "processed", "dead"]
    assert calls == [["1", "2", "3"], ["1"], ["2"], ["3"], ["1"], ["2"]]
    assert desk.effects() == ["1", "2"]
    desk.close()


def test_middleware_is_called_once_per_call_with_the_list(desk: Desk) -> None:
    seen: list[int] = []

    def counting(events: Any, ctx: Any, call_next: Any) -> Any:
        seen.append(len(events))
        return call_next(events, ctx)

    desk.service.middleware = (counting,)
    desk.declare_batch(noting(desk, []))
    desk.deliver(desk.record("1", "a"), desk.record("2", "b"))
    assert seen == [2]
