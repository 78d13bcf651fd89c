"""Deaths of the process: which message pays [A13], [F4]."""

from __future__ import annotations

from typing import Any

from bothends import Retry, processes
from bothends.stores.inboxes import OpenRun
from bothends.worker.acts import Do
from bothends.worker.inbox import Batch
from bothends.worker.isolation import Isolation
from bothends.worker.seats import Seat
from bothends.worker.suspects import Suspects
from tests.worker.conftest import Desk, Placed


class Killed(BaseException):
    """The end of the process, inside of a handler."""


def dying(desk: Desk, *ids: str, retry: Retry = Retry()) -> None:
    desk.declare(lambda event, ctx: _die(ctx) if ctx.message.id in ids else desk.note(ctx), retry=retry)


def _die(ctx: Any) -> None:
    raise Killed


class Life(Seat):
    """A process: it dies with its first ``Killed``, and nothing that it had begun is cleaned up."""

    def _call(self, act: Any, connection: Any) -> Any:
        called = super()._call(act, connection)
        if isinstance(called.error, Killed):
            raise called.error
        return called


def live(desk: Desk, records: list[Any], worker: str) -> list[str] | None:
    """One process that reads the marks of dead ones and works; None where it died."""
    plan = desk.new_plan(desk.plan.number, worker)
    plan.suspects.load(desk.run(desk.store.inbox.open_runs(plan.number, worker)))
    seat = Life(plan, isolation=Isolation())
    deliveries = desk.read(*records)
    acts = Batch(plan, deliveries).acts()
    try:
        with seat.sharing():
            seat.connect()
            act = next(acts)
            while True:
                try:
                    answer = seat.perform(act)
                except Exception as error:
                    act = acts.throw(error)
                else:
                    act = acts.send(answer)
    except StopIteration:
        return [d.outcome.value if d.outcome else "open" for d in deliveries]
    except Killed:
        return None
    finally:
        seat.close()


def dead(number: int) -> str:
    """The name of a process of this host that is no more."""
    return f"{processes.this_process().rsplit(':', 2)[0]}:{10**8 + number}:5"


def lives(desk: Desk, records: list[Any]) -> tuple[int, list[str]]:
    """Starts processes until one lives to the end: the number of deaths, and its outcomes."""
    for deaths in range(10):
        if (outcomes := live(desk, records, dead(deaths))) is not None:
            return deaths, outcomes
    raise AssertionError("it kills for ever")


def test_a_killer_in_a_batch_is_found_alone_and_is_dead_after_three_deaths(desk: Desk) -> None:
    dying(desk, "5")
    records = [desk.record(str(n), f"k{n}") for n in range(10)]
    deaths, outcomes = lives(desk, records)
    assert deaths == 3
    assert outcomes[5] == "dead"
    assert desk.rows("message_id, reason, crashes, attempts", "dead_letters") == [("5", "worker_lost", 2, 0)]
    assert sorted(desk.effects(), key=int) == [str(n) for n in range(10) if n != 5]
    assert all(attempt == 1 for _, attempt in desk.attempts())
    assert desk.rows("id", "runs") == []


def test_crashes_none_never_gives_up(desk: Desk) -> None:
    dying(desk, "1", retry=Retry(crashes=None))
    record = desk.record("1")
    for life in range(6):
        assert live(desk, [record], dead(life)) is None
    assert desk.rows("id", "dead_letters") == []
    dying(desk, retry=Retry(crashes=None))
    assert live(desk, [record], dead(9)) == ["processed"]
    assert desk.attempts() == [("1", 1)]


def test_neighbours_of_a_death_run_alone_once_and_are_charged_nothing(desk: Desk) -> None:
    dying(desk, "2")
    records = [desk.record(str(n), f"k{n}") for n in range(4)]
    assert live(desk, records, dead(1)) is None
    dying(desk)  # it was the machine
    assert live(desk, records, dead(2)) == ["processed"] * 4
    assert desk.rows("id", "runs") == []
    assert desk.rows("crashes", "dead_letters") == []


def test_a_mark_whose_connection_lives_charges_nothing() -> None:
    suspects = Suspects()
    suspects.load([OpenRun(1, "w", '[["s","1"]]', True, 1, True), OpenRun(2, "w", '[["s","2"]]', True, 1, False)])
    first, second = suspects.get(("s", "1")), suspects.get(("s", "2"))
    assert first is not None
    assert second is not None
    assert (first.crashes, second.crashes) == (1, 2)


def test_a_shared_mark_goes_with_its_last_message() -> None:
    suspects = Suspects()
    suspects.load([OpenRun(7, "w", '[["s","1"],["s","2"]]', False, 0, False)])
    assert len(suspects) == 2
    assert suspects.any_of([("s", "2"), ("s", "3")])
    assert list(suspects.settled(("s", "1"))) == []
    assert list(suspects.settled(("s", "2"))) == [7]
    assert list(suspects.settled(("s", "2"))) == []


def test_a_process_knows_itself_and_the_dead_of_its_host() -> None:
    assert processes.lives(processes.this_process()) is True
    assert processes.lives(processes.this_process() + "1") is False
    assert processes.lives(dead(1)) is False
    assert processes.lives("elsewhere:1:1") is None


def test_a_suspect_runs_while_nothing_else_does(desk: Desk) -> None:
    quiet: list[bool] = []
    isolation = Isolation()

    def handler(event: Placed, ctx: Any) -> None:
        quiet.append(not isolation.share(lambda: True))
        desk.note(ctx)

    desk.declare(handler)
    plan = desk.plan
    records = [desk.record("1", "a"), desk.record("2", "b")]
    plan.suspects.load([OpenRun(10**9, "dead", '[["orders","1"]]', False, 0, False)])
    seat = Seat(plan, isolation=isolation)
    assert desk.deliver(*records, seat=seat) == ["processed", "processed"]
    seat.close()
    assert quiet == [True, False]
    assert Do.QUIET is not Do.LOUD
