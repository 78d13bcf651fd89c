"""A process that dies between any two acts of the engine: delivered again, each effect is there once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bothends import Retry
from bothends.worker.acts import Acts
from bothends.worker.inbox import Batch
from bothends.worker.parking import Drain
from bothends.worker.seats import Seat
from tests.worker.conftest import Booked, Desk, Placed


class Killed(BaseException):
    """The end of the process: nobody catches it."""


def drive_until(acts: Acts[None], seat: Seat, last: int) -> bool:
    """Carries out ``last`` acts and dies; True when the acts ended before."""
    count = 0
    try:
        act = next(acts)
        while True:
            if count == last:
                return False
            count += 1
            try:
                answer = seat.perform(act)
            except Exception as error:
                act = acts.throw(error)
            else:
                act = acts.send(answer)
    except StopIteration:
        return True


def each_death(desk: Desk, make: Callable[[Seat], Acts[None]]) -> int:
    """Lets the process die before each act in turn, the connection with it; the number of deaths."""
    for last in range(200):
        seat = desk.seat()
        seat.connect()
        ended = drive_until(make(seat), seat, last)
        seat.close()  # what was not committed is rolled back
        desk.sql(f"delete from {desk.table('runs')} where consumer = :c returning id", c=desk.plan.number)
        if ended:
            return last
    raise AssertionError("it never ends")


def test_every_window_of_a_batch(desk: Desk) -> None:
    def handler(event: Placed, ctx: Any) -> None:
        desk.note(ctx)
        ctx.emit(Booked(event.order))
        if event.order == "bad":
            raise ValueError

    desk.declare(handler, retry=Retry(attempts=2))
    records = [desk.record("1", "a"), desk.record("2", "bad"), desk.record("3", "bad"), desk.record("4", "c")]
    deaths = each_death(desk, lambda seat: Batch(seat.plan, desk.read(*records)).acts())
    assert deaths > 12
    assert desk.deliver(*records) == ["duplicate"] * 4
    assert sorted(desk.effects()) == ["1", "4"]
    assert [id for (id,) in desk.rows("id", "parked", "position")] == ["2", "3"]
    emitted = desk.sql(f"select count(*) from {desk.table('outbox')} where source = :s", s=desk.service.name)
    assert emitted == [(2,)]


def test_every_window_of_a_drain(desk: Desk) -> None:
    broken = True

    def handler(event: Placed, ctx: Any) -> None:
        if broken and ctx.message.id == "1":
            raise ValueError
        desk.note(ctx)
        ctx.emit(Booked(event.order))
        if ctx.message.id == "3":
            raise ValueError

    desk.declare(handler, retry=Retry(attempts=1 + 1))
    assert desk.deliver(*(desk.record(str(n), "k") for n in range(1, 6))) == ["parked"] * 5
    broken = False

    def drain(seat: Seat) -> Acts[None]:
        desk.forward(400)  # the dead drainer's lease ends, the next retry is due
        leases = desk.run(desk.store.inbox.lease_due(desk.plan.number, "d", lease_s=4.0, most=10))
        return Drain(seat.plan, leases[0]).acts() if leases else iter_nothing()

    deaths = each_death(desk, drain)
    assert deaths > 0
    while desk.drain():
        pass
    assert desk.effects() == ["1", "2", "4", "5"]
    assert [row for row in desk.rows("message_id, attempts", "dead_letters")] == [("3", 2)]
    assert desk.rows("id", "parked") == desk.rows("state", "blocked_keys") == []
    emitted = desk.sql(f"select count(*) from {desk.table('outbox')} where source = :s", s=desk.service.name)
    assert emitted == [(4,)]


def iter_nothing() -> Acts[None]:
    yield from ()


@pytest.mark.parametrize("begins", [True, False])
def test_every_window_of_an_effects_handler(desk: Desk, begins: bool) -> None:
    def handler(event: Placed, ctx: Any) -> None:
        if begins:
            ctx.begin()
            desk.note(ctx)
        ctx.emit(Booked(event.order))

    desk.declare(handler, effects=True)
    record = desk.record("1")
    each_death(desk, lambda seat: Batch(seat.plan, desk.read(record)).acts())
    assert desk.deliver(record) == ["duplicate"]
    assert desk.effects() == (["1"] if begins else [])
    assert desk.sql(f"select count(*) from {desk.table('outbox')} where source = :s", s=desk.service.name) == [(1,)]
