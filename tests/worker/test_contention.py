"""Locks, deadlocks and serialization failures: retried at no cost. And how many statements an event may cost."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest

from bothends import Retry
from bothends.errors import StoreUnavailable
from bothends.stores.connection import Connection
from bothends.stores.steps import Result, Sql
from bothends.worker.acts import Call, Released
from bothends.worker.inbox import Batch
from bothends.worker.seats import Seat
from tests.worker.conftest import Booked, Desk, Placed, go_on

only_postgresql = pytest.mark.parametrize(
    "store", [pytest.param("postgresql", marks=pytest.mark.needs("postgresql"))], indirect=True
)


class Counting:
    """A connection that counts what is sent over it."""

    def __init__(self, inner: Connection) -> None:
        self.inner = inner
        self.sent: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def execute(self, statement: Sql) -> Result:
        self.sent.append(statement.text)
        return self.inner.execute(statement)

    def begin_with(self, first: Sql) -> Result:
        self.sent += ["begin", first.text]
        return self.inner.begin_with(first)

    def commit_with(self, gate: Sql) -> None:
        self.sent += [gate.text, "commit"]
        self.inner.commit_with(gate)

    def commit(self) -> None:
        self.sent.append("commit")
        self.inner.commit()


def test_a_full_batch_costs_less_than_a_fifth_of_a_statement_per_event(desk: Desk) -> None:
    desk.declare(lambda event, ctx: ctx.emit(Booked(event.order)))
    seat = desk.seat()
    seat.connect()
    assert seat.connection is not None
    counting = Counting(seat.connection)
    seat.connection = counting
    assert set(desk.deliver(*(desk.record(str(n), f"k{n}") for n in range(100)), seat=seat)) == {"processed"}
    assert len(counting.sent) / 100 <= 0.2, counting.sent
    if desk.store.dialect == "postgresql":
        assert len(counting.sent) <= 7, counting.sent  # mark, begin, admit, look up, emit, gate, commit
    seat.close()


@only_postgresql
def test_a_batch_that_meets_a_lock_goes_on_one_by_one_and_counts_nothing(desk: Desk) -> None:
    name = desk.service.name
    desk.sql("insert into stock values (:a, 1), (:b, 1)", a=f"{name}-a", b=f"{name}-b")
    desk.declare(lambda event, ctx: ctx.connection.execute(
        "update stock set amount = amount - 1 where sku = %s", (f"{name}-{event.order}",)), retry=Retry(attempts=1))
    other = psycopg.connect(desk.store.url)
    other.execute("update stock set amount = amount where sku = %s", (f"{name}-b",))
    seat = desk.seat()
    batch = Batch(seat.plan, desk.read(desk.record("1", "a"), desk.record("2", "b")))
    met = threading.Event()
    original = batch._contention

    def contention(part: Any, contended: Any) -> Any:
        met.set()
        return original(part, contended)

    batch._contention = contention  # type: ignore[method-assign]
    thread = threading.Thread(target=seat.drive, args=(batch.acts(),))
    thread.start()
    assert met.wait(10)
    other.rollback()
    thread.join(10)
    other.close()
    seat.close()
    assert batch.contended
    assert [d.outcome.value for d in batch.deliveries if d.outcome] == ["processed", "processed"]
    assert desk.sql("select amount from stock where sku in (:a, :b)", a=f"{name}-a", b=f"{name}-b") == [(0,), (0,)]


@only_postgresql
@pytest.mark.parametrize("sqlstate", ["40001", "40P01"])
def test_serialization_failures_and_deadlocks_cost_no_attempt_within_a_bound(desk: Desk, sqlstate: str) -> None:
    left = [5]
    seen: list[int] = []

    def handler(event: Placed, ctx: Any) -> None:
        seen.append(ctx.attempt)
        desk.note(ctx)
        if left[0]:
            left[0] -= 1
            ctx.connection.execute(f"do $$ begin raise exception using errcode = '{sqlstate}'; end $$")

    desk.declare(handler, retry=Retry(attempts=3))
    assert desk.deliver(desk.record("1", "a"), desk.record("2", "b")) == ["processed", "processed"]
    assert set(seen) == {1}
    assert sorted(desk.effects()) == ["1", "2"]
    left[0] = 10_000
    assert desk.deliver(desk.record("3", "c")) == ["parked"]  # after the bound it is a failure like any other
    assert desk.rows("id, attempts", "parked") == [("3", 1)]


@only_postgresql
def test_a_serialization_failure_at_commit_runs_the_whole_again(desk: Desk) -> None:
    table = f"late_{desk.service.name.replace('-', '_')}"
    desk.sql(f"create table {table} (n int)")
    desk.sql(f"create sequence {table}_left")
    desk.sql(
        f"create function {table}_fail() returns trigger language plpgsql as $$ begin "
        f"if nextval('{table}_left') <= 5 then raise exception using errcode = '40001'; end if; return null; end $$"
    )
    desk.sql(
        f"create constraint trigger late after insert on {table} deferrable initially deferred for each row "
        f"execute function {table}_fail()"
    )

    def handler(event: Placed, ctx: Any) -> None:
        desk.note(ctx)
        ctx.connection.execute(f"insert into {table} values (1)")

    desk.declare(handler, retry=Retry(attempts=1))
    assert desk.deliver(desk.record("1")) == ["processed"]
    assert desk.attempts() == [("1", 1)]
    assert desk.sql(f"select count(*) from {table}") == [(1,)]


@only_postgresql
def test_when_the_first_of_two_copies_rolls_back_the_second_is_handled(desk: Desk) -> None:
    desk.declare(lambda event, ctx: desk.note(ctx))
    record = desk.record("1")
    first, second = desk.seat(), desk.seat()
    first.connect()
    acts = Batch(first.plan, desk.read(record)).acts()
    act = next(acts)
    while not isinstance(act, Call):  # its inbox row is written, not committed
        act = acts.send(first.perform(act))
    outcome: list[list[str]] = []
    thread = threading.Thread(target=lambda: outcome.append(desk_deliver(desk, record, second)))
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()  # it waits for the first
    first.close()
    thread.join(10)
    second.close()
    assert outcome == [["processed"]]
    assert desk.effects() == ["1"]


def desk_deliver(desk: Desk, record: Any, seat: Seat) -> list[str]:
    deliveries = desk.read(record)
    seat.drive(Batch(seat.plan, deliveries).acts())
    return [d.outcome.value if d.outcome else "open" for d in deliveries]


@only_postgresql
def test_a_connection_that_is_ended_in_a_handler_charges_nobody_and_the_batch_goes_on(desk: Desk) -> None:
    kills = [1]

    def handler(event: Placed, ctx: Any) -> None:
        desk.note(ctx)
        if kills[0] and ctx.message.id == "2":
            kills[0] -= 1
            desk.sql("select pg_terminate_backend(:pid)", pid=ctx.connection.info.backend_pid)
            ctx.connection.execute("select 1")

    desk.declare(handler, retry=Retry(attempts=1))
    seat = desk.seat()
    batch = Batch(seat.plan, desk.read(*(desk.record(str(n), f"k{n}") for n in range(4))))
    with pytest.raises(StoreUnavailable):
        seat.drive(batch.acts())
    seat.drive(batch.acts())
    seat.close()
    assert [d.outcome.value for d in batch.deliveries if d.outcome] == ["processed"] * 4
    assert sorted(desk.effects()) == ["0", "1", "2", "3"]
    assert {attempt for _, attempt in desk.attempts()} == {1}
    assert desk.rows("id", "runs") == []


@only_postgresql
def test_a_transaction_that_the_server_ended_for_silence_counts_as_a_timeout(desk: Desk) -> None:
    silent = [1]

    def handler(event: Placed, ctx: Any) -> None:
        desk.note(ctx)
        if silent[0]:
            silent[0] -= 1
            ctx.connection.execute("set local idle_in_transaction_session_timeout = '50ms'")
            threading.Event().wait(0.3)
            ctx.connection.execute("select 1")

    desk.declare(handler)
    seat = desk.seat()
    batch = Batch(seat.plan, desk.read(desk.record("1")))
    with pytest.raises(StoreUnavailable):
        seat.drive(batch.acts())
    seat.drive(batch.acts())
    seat.close()
    assert desk.rows("id, attempts, reason", "parked") == [("1", 1, "handler_timeout")]


@only_postgresql
def test_it_counts_as_one_also_where_the_handler_asked_nothing_more(desk: Desk) -> None:
    """The gate and COMMIT meet it, in a pipeline: the server says why, and ends the connection."""
    def handler(event: Placed, ctx: Any) -> None:
        desk.note(ctx)
        ctx.connection.execute("set local idle_in_transaction_session_timeout = '50ms'")
        threading.Event().wait(0.3)

    desk.declare(handler, retry=Retry(attempts=1))
    seat = desk.seat()
    batch = Batch(seat.plan, desk.read(desk.record("1")))
    with pytest.raises(StoreUnavailable):
        seat.drive(batch.acts())
    seat.drive(batch.acts())
    seat.close()
    assert desk.rows("message_id, reason", "dead_letters") == [("1", "handler_timeout")]


def test_a_fence_releases_before_the_commit(desk: Desk) -> None:
    given_up = [False]

    def handler(event: Placed, ctx: Any) -> None:
        desk.note(ctx)
        given_up[0] = True

    desk.declare(handler)
    seat = desk.seat(fence=lambda: given_up[0])
    batch = Batch(seat.plan, desk.read(desk.record("1")))
    with pytest.raises(Released):
        seat.drive(batch.acts())
    seat.close()
    assert desk.effects() == []
    assert batch.deliveries[0].outcome is None
    assert desk.rows("id", "runs") == []


def test_a_worker_whose_mark_was_taken_commits_nothing(desk: Desk) -> None:
    def handler(event: Placed, ctx: Any) -> None:
        desk.note(ctx)

    desk.declare(handler)
    seat = desk.seat()
    seat.connect()
    acts = Batch(seat.plan, desk.read(desk.record("1"))).acts()
    act = next(acts)
    answer = seat.perform(act)
    while not isinstance(answer, Result) or not answer.rows:
        act = acts.send(answer)
        answer = seat.perform(act)
    act = acts.send(answer)
    desk.sql(f"delete from {desk.table('runs')} where consumer = :c returning id", c=desk.plan.number)
    with pytest.raises(Released):
        go_on(acts, act, seat)
    seat.close()
    assert desk.effects() == []


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_a_file_that_stays_locked_is_nobodys_fault(desk: Desk) -> None:
    desk.declare(lambda event, ctx: desk.note(ctx), retry=Retry(attempts=1))
    seat = desk.seat()
    seat.connect()
    assert seat.connection is not None
    seat.connection.execute(Sql("pragma busy_timeout = 0"))
    batch = Batch(seat.plan, desk.read(desk.record("1")))
    desk.connection.begin()
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            seat.drive(batch.acts())
    desk.connection.rollback()
    seat.drive(batch.acts())
    seat.close()
    assert desk.attempts() == [("1", 1)]


def test_one_message_and_two_consumers(desk: Desk) -> None:
    other = Desk(desk.store)
    desk.declare(lambda event, ctx: desk.note(ctx))
    failing = [True]

    def handler(event: Placed, ctx: Any) -> None:
        if failing[0]:
            raise ValueError
        other.note(ctx)

    other.declare(handler)
    record = desk.record("1")
    assert (desk.deliver(record), other.deliver(record)) == (["processed"], ["parked"])
    assert (desk.deliver(record), other.deliver(record)) == (["duplicate"], ["duplicate"])
    failing[0] = False
    assert other.drain() == [("1", "processed")]
    assert (desk.effects(), other.effects()) == (["1"], ["1"])
    other.close()
