"""Keys that wait: leases, epochs, order against live traffic at every moment, redrives."""

from __future__ import annotations

from typing import Any

import pytest

from bothends import Retry
from bothends.letters import KeyOf
from bothends.stores.inboxes import Lease
from bothends.stores.steps import Sql
from bothends.worker.acts import Released
from bothends.worker.inbox import Batch
from bothends.worker.parking import Drain
from tests.worker.conftest import TOPIC, Desk, Placed

KEY = KeyOf(TOPIC, True, b"k")


def lease(desk: Desk, drainer: str = "d", lease_s: float = 4.0) -> list[Lease]:
    found: list[Lease] = desk.run(desk.store.inbox.lease_due(desk.plan.number, drainer, lease_s=lease_s, most=10))
    return found


def failing_once(desk: Desk, *ids: str, **retry: Any) -> list[bool]:
    """A handler that fails for ``ids`` while the returned list's first item is True."""
    broken = [True]

    def handler(event: Placed, ctx: Any) -> None:
        if broken[0] and ctx.message.id in ids:
            raise ValueError
        desk.note(ctx)

    desk.declare(handler, retry=Retry(**retry))
    return broken


def test_live_messages_never_overtake_a_key_that_is_being_drained(desk: Desk) -> None:
    """A live message of the key is delivered between any two acts of its drainer: parked behind, or after it."""
    broken = failing_once(desk, *(f"a{n}" for n in range(60)))
    next_seat = desk.seat()
    next_seat.connect()
    seat = desk.seat()
    seat.connect()
    if desk.store.dialect == "sqlite":
        next_seat.connection.execute(Sql("pragma busy_timeout = 0"))  # type: ignore[union-attr]
    for at in range(60):
        broken[0] = True
        assert desk.deliver(desk.record(f"a{at}", "k"), desk.record(f"b{at}", "k")) == ["parked", "parked"]
        broken[0] = False
        desk.forward(400)
        acts = Drain(desk.plan, lease(desk)[0]).acts()
        count, pending, ended = 0, [desk.record(f"c{at}", "k")], False
        act = next(acts)
        while not ended:
            if count >= at and pending and try_deliver(desk, pending, next_seat):
                pending.clear()
            count += 1
            try:
                act = acts.send(seat.perform(act))
            except StopIteration:
                ended = True
        if pending:
            assert try_deliver(desk, pending, next_seat)
        while desk.drain(seat=seat):
            pass
        if count < at:
            break
    assert at > 10
    order = [id for id in desk.effects() if id[0] in "abc"]
    assert order == [f"{letter}{n}" for n in range(at + 1) for letter in "abc"]
    seat.close()
    next_seat.close()


def try_deliver(desk: Desk, records: list[Any], seat: Any) -> bool:
    """One try to deliver without waiting for locks; False where one is held."""
    batch = Batch(desk.plan, desk.read(*records))
    batch._lock_timeout = lambda part: 20  # type: ignore[method-assign]
    batch._contention = give_up  # type: ignore[method-assign]
    try:
        seat.drive(batch.acts())
    except Released:
        return False
    return True


def give_up(part: Any, error: BaseException) -> Any:
    raise Released("a lock is held")
    yield


def test_a_drainer_whose_lease_was_taken_commits_nothing(desk: Desk) -> None:
    broken = failing_once(desk, "1")
    desk.deliver(desk.record("1", "k"), desk.record("2", "k"))
    broken[0] = False
    desk.forward(10)
    (first,) = lease(desk, "first")
    assert lease(desk, "second") == []  # one drainer at a time
    desk.forward(60)
    (second,) = lease(desk, "second")
    assert second.epoch == first.epoch + 1
    seat = desk.seat()
    with pytest.raises(Released):
        seat.drive(Drain(desk.plan, first).acts())
    assert desk.effects() == []
    drain = Drain(desk.plan, second)
    seat.drive(drain.acts())
    seat.close()
    assert desk.effects() == ["1", "2"]


def test_leases_are_renewed_given_up_and_distrusted_when_they_end_too_late(desk: Desk) -> None:
    failing_once(desk, "1", first_s=0.0)
    desk.deliver(desk.record("1", "k"))
    inbox, number = desk.store.inbox, desk.plan.number
    (mine,) = lease(desk)
    desk.forward(3)
    desk.run(inbox.renew(number, [mine], lease_s=4.0))
    desk.forward(3)
    assert lease(desk) == []
    desk.run(inbox.give_up(number, mine))
    (again,) = lease(desk)
    assert again.epoch == mine.epoch + 1
    desk.forward(-1000)  # the clock was set back: a lease that ends so late is none
    assert [x.epoch for x in lease(desk)] in ([again.epoch + 1], [])
    desk.forward(1000)
    desk.forward(100)
    assert len(lease(desk)) == 1


def test_a_drain_takes_what_waited_behind_together(desk: Desk) -> None:
    sizes: list[int] = []
    broken = failing_once(desk, "0")
    desk.deliver(*(desk.record(str(n), "k") for n in range(50)))
    broken[0] = False
    seat = desk.seat()
    seat.connect()
    assert seat.connection is not None
    before = seat.connection.commit
    seat.connection.commit = lambda: (sizes.append(1), before())[1]  # type: ignore[method-assign]
    assert desk.drain(seat=seat) == [(str(n), "processed") for n in range(50)]
    seat.close()
    assert len(sizes) <= 3
    assert desk.effects() == [str(n) for n in range(50)]


def test_a_failure_in_the_middle_of_a_drain_stops_it_there(desk: Desk) -> None:
    broken = [True]

    def handler(event: Placed, ctx: Any) -> None:
        if (ctx.message.id == "0" and broken[0]) or (ctx.message.id == "3" and ctx.attempt == 1):
            raise ValueError
        desk.note(ctx)

    desk.declare(handler)
    desk.deliver(*(desk.record(str(n), "k") for n in range(6)))
    broken[0] = False
    assert desk.drain() == [("0", "processed"), ("1", "processed"), ("2", "processed"), ("3", "parked")]
    assert desk.rows("id, attempts", "parked", "position") == [("3", 1), ("4", 0), ("5", 0)]
    assert desk.drain() == [("3", "processed"), ("4", "processed"), ("5", "processed")]
    assert desk.attempts() == [("0", 2), ("1", 1), ("2", 1), ("3", 2), ("4", 1), ("5", 1)]


def redrive(desk: Desk, id: str) -> None:
    """As the operator's verb does it: parked again at its old position, attempts from 0, the history kept."""
    s = desk.table
    columns = (
        "consumer, topic, keyed, key, position, source, {id}, type, hash, record_partition, record_offset, timestamp_ms, "
        "record_key, body, headers, history, redrives, dead_letter"
    )
    values = columns.format(id="message_id").replace("redrives, dead_letter", "redrives + 1, id")
    params = {"c": desk.plan.number, "id": id}
    desk.sql(
        f"insert into {s('parked')} ({columns.format(id='id')}) select {values} from {s('dead_letters')} "
        "where consumer = :c and message_id = :id returning 1", **params)
    desk.sql(f"update {s('inbox')} set state = 'k' where consumer = :c and id = :id returning 1", **params)
    desk.sql(f"update {s('dead_letters')} set state = 'redriven' where consumer = :c and message_id = :id returning 1",
             **params)
    now = "clock_timestamp()" if desk.store.dialect == "postgresql" else "0"
    true = "true" if desk.store.dialect == "postgresql" else "1"
    desk.sql(
        f"insert into {s('blocked_keys')} (consumer, topic, keyed, key, next_at) values (:c, :t, {true}, :k, {now}) "
        f"on conflict (consumer, topic, key, keyed) do update set state = 'retrying', next_at = {now} returning 1",
        c=desk.plan.number, t=TOPIC, k=b"k")


def test_a_redrive_that_fails_again_is_the_same_dead_letter_and_one_that_succeeds_is_done(desk: Desk) -> None:
    broken = failing_once(desk, "1", attempts=1, then="hold")
    assert desk.deliver(desk.record("1", "k"), desk.record("2", "k")) == ["dead", "parked"]
    redrive(desk, "1")
    assert desk.drain() == [("1", "dead")]
    assert desk.rows("message_id, state, redrives", "dead_letters") == [("1", "open", 1)]
    assert desk.rows("state", "blocked_keys") == [("held",)]
    redrive(desk, "1")
    broken[0] = False
    assert desk.drain() == [("1", "processed"), ("2", "processed")]
    assert desk.rows("message_id, state", "dead_letters") == [("1", "done")]
    assert desk.effects() == ["1", "2"]
    assert desk.rows("state", "inbox") == [("p",), ("p",)]
    redrive_of_done = desk.deliver(desk.record("1", "k"))
    assert redrive_of_done == ["duplicate"]


def test_a_parked_message_that_was_done_meanwhile_is_dropped_without_a_run(desk: Desk) -> None:
    broken = failing_once(desk, "1")
    desk.deliver(desk.record("1", "k"), desk.record("2", "k"))
    broken[0] = False
    desk.sql(f"update {desk.table('inbox')} set state = 'x' where consumer = :c and id = '1' returning 1", c=desk.plan.number)
    assert desk.drain() == [("1", "duplicate"), ("2", "processed")]
    assert desk.effects() == ["2"]
    assert desk.rows("id", "parked") == desk.rows("state", "blocked_keys") == []


def test_a_letter_that_cannot_be_read_any_more_dies_and_the_key_goes_on(desk: Desk) -> None:
    failing_once(desk, "1")
    desk.deliver(desk.record("1", "k"), desk.record("2", "k"))
    desk.sql(f"update {desk.table('parked')} set body = :b where consumer = :c and id = '1' returning 1", c=desk.plan.number,
             b=b"{")
    assert desk.drain() == [("1", "dead"), ("2", "processed")]
    assert desk.rows("reason, attempts", "dead_letters") == [("undecodable", 1)]


def test_effects_messages_drain_as_well(desk: Desk) -> None:
    def handler(event: Placed, ctx: Any) -> None:
        if ctx.attempt == 1:
            raise ValueError
        ctx.begin()
        desk.note(ctx)

    desk.declare(handler, effects=True)
    assert desk.deliver(desk.record("1", "k"), desk.record("2", "k")) == ["parked", "parked"]
    assert desk.drain() == [("1", "processed"), ("2", "parked")]
    assert desk.drain() == [("2", "processed")]
    assert desk.effects() == ["1", "2"]


def test_what_dies_has_its_place_before_what_is_parked_behind_it(desk: Desk) -> None:
    """In one transaction, too: a redrive puts it back there. Found by the worker model."""
    def handler(event: Placed, ctx: Any) -> None:
        if ctx.message.id == "1":
            raise ValueError("no")
        desk.note(ctx)

    desk.declare(handler, retry=Retry(attempts=1, then="hold"))
    assert desk.deliver(desk.record("0", "b"), desk.record("1", "a"), desk.record("2", "a")) == ["processed", "dead", "parked"]
    [(died,)] = desk.rows("position", "dead_letters")
    [(behind,)] = desk.rows("position", "parked")
    assert died < behind
