"""The database away, the broker forgetful, a worker frozen: nothing acknowledged, nothing charged, nothing twice."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from bothends import Retry
from bothends.brokers.memory import MemoryBroker
from bothends.demo.proxies import Address, Proxies
from bothends.errors import Blame, PublishError, StoreUnavailable
from bothends.ports import Broker
from bothends.stores import open_store
from bothends.stores.steps import Sql, run
from bothends.worker.acts import Commit
from bothends.worker.inbox import Batch
from tests.worker.conftest import TOPIC, Desk, Placed, go_on
from tests.worker.working import lag, publish, until, working

only_postgresql = pytest.mark.parametrize(
    "store", [pytest.param("postgresql", marks=pytest.mark.needs("postgresql"))], indirect=True
)
only_sqlite = pytest.mark.parametrize("store", ["sqlite"], indirect=True)


@pytest.fixture
def broker() -> Iterator[Broker]:
    broker = MemoryBroker(f"memory://{uuid.uuid4().hex}")
    broker.create_topic(TOPIC, 2)
    yield broker
    broker.close()


@only_postgresql
def test_connections_ended_again_and_again_cost_nothing(desk: Desk, broker: Broker) -> None:
    desk.declare(lambda event, ctx: desk.note(ctx), retry=Retry(attempts=1), batch_max=10)
    publish(broker, desk, [(str(n), f"k{n % 13}") for n in range(300)])
    with working(desk, broker):
        for _ in range(5):
            desk.sql(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name = :name",
                name=f"bothends {desk.consumer.name}",
            )
            threading.Event().wait(0.05)
        until(lambda: lag(desk, broker) == 0)
    effects = desk.effects()
    assert sorted(map(int, effects)) == list(range(300))
    assert {attempt for _, attempt in desk.attempts()} == {1}
    for key in range(13):
        mine = [int(id) for id in effects if int(id) % 13 == key]
        assert mine == sorted(mine)
    assert desk.rows("id", "dead_letters") == []


@only_postgresql
def test_a_transaction_that_the_server_ended_because_it_was_not_heard_is_nobodys_fault(desk: Desk, broker: Broker) -> None:
    """Requests do not get through for longer than a lease, in the middle of a handler: the server ends its transaction for
    silence, as it would for a handler that lets nobody speak [P7]."""
    parts = urlsplit(desk.store.url)
    proxies = Proxies({"database": Address(str(parts.hostname), parts.port or 5432)})
    there = proxies.addresses["database"]
    url = parts._replace(netloc=f"{parts.username}@{there.host}:{there.port}").geturl()
    begun, go, pids = threading.Event(), threading.Event(), [0]

    def handler(event: Placed, ctx: Any) -> None:
        desk.note(ctx)
        if not pids[0]:
            pids[0] = ctx.connection.info.backend_pid
            begun.set()
            assert go.wait(20)
            ctx.connection.execute("select 1")

    def ended() -> bool:
        return desk.sql("select count(*) from pg_stat_activity where pid = :pid", pid=pids[0]) == [(0,)]

    desk.declare(handler, retry=Retry(attempts=1))
    direct, desk.store = desk.store, open_store(url)
    try:
        with working(desk, broker, lease_s=1.0):
            publish(broker, desk, [("1", "a")])
            assert begun.wait(20)
            proxies.silence("database", "requests")
            go.set()
            until(ended)
            proxies.restore("database")
            until(lambda: lag(desk, broker) == 0)
    finally:
        desk.store = direct
        proxies.close()
    assert desk.effects() == ["1"]
    assert desk.attempts() == [("1", 1)]
    assert desk.rows("id", "dead_letters") == desk.rows("id", "parked") == []


def full_disk(desk: Desk, ctx: Any) -> None:
    """What a statement of the handler meets on a full disk: PostgreSQL's error, and SQLite's own, by a limit of pages."""
    if desk.store.dialect == "postgresql":
        ctx.connection.execute("do $$ begin raise exception using errcode = '53100'; end $$")
    try:
        ctx.connection.execute("pragma max_page_count = 1")  # as few as there are
        ctx.connection.execute("insert into log (consumer, id, attempt) values ('', ?, 0)", ("x" * 100_000,))
    finally:
        ctx.connection.execute("pragma max_page_count = 1000000")


def test_a_full_disk_under_a_handler_pauses_consumption_and_charges_nobody(desk: Desk, broker: Broker) -> None:
    left = [5]

    def handler(event: Placed, ctx: Any) -> None:
        desk.note(ctx)
        if left[0]:
            left[0] -= 1
            full_disk(desk, ctx)

    desk.declare(handler, retry=Retry(attempts=1))
    with working(desk, broker):
        publish(broker, desk, [(str(n), f"k{n % 3}") for n in range(9)])
        until(lambda: lag(desk, broker) == 0)
    assert left == [0]
    assert sorted(map(int, desk.effects())) == list(range(9))
    assert {attempt for _, attempt in desk.attempts()} == {1}
    assert desk.rows("id", "dead_letters") == desk.rows("id", "parked") == []


@only_postgresql
def test_another_database_that_is_away_is_the_handlers_affair(desk: Desk, broker: Broker) -> None:
    def handler(event: Placed, ctx: Any) -> None:
        psycopg.connect("postgresql://127.0.0.1:9/nobody", connect_timeout=1)

    desk.declare(handler, retry=Retry(attempts=1))
    assert desk.deliver(desk.record("1", "a")) == ["dead"]


@only_postgresql
def test_a_database_that_lets_nobody_in_pauses_consumption(desk: Desk, broker: Broker) -> None:
    """No connection is let in, and those that are there are ended: as good as away."""
    desk.declare(lambda event, ctx: desk.note(ctx), retry=Retry(attempts=1))
    name = desk.store.url.rpartition("/")[2]
    server = psycopg.connect(desk.store.url.rpartition("/")[0] + "/postgres", autocommit=True)
    with working(desk, broker) as worker:
        publish(broker, desk, [("1", "a")])
        until(lambda: lag(desk, broker) == 0)
        desk.connection.close()
        server.execute(f'alter database "{name}" allow_connections false')
        server.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [name])
        publish(broker, desk, [(str(n), f"k{n}") for n in range(2, 30)])
        until(lambda: any(slot.busy() for slot in worker._slots))
        threading.Event().wait(0.5)
        assert lag(desk, broker) == 28
        server.execute(f'alter database "{name}" allow_connections true')
        until(lambda: lag(desk, broker) == 0)
    server.close()
    desk.connection = desk.store.connect()
    assert sorted(map(int, desk.effects())) == list(range(1, 30))
    assert {attempt for _, attempt in desk.attempts()} == {1}
    assert desk.rows("id", "runs") == []


@only_sqlite
def test_a_broker_that_is_away_at_the_start_is_waited_for(desk: Desk, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.declare(lambda event, ctx: desk.note(ctx))
    publish(broker, desk, [("1", "a")])
    away, subscribe = [2], broker.subscribe

    def subscribe_when_there(*args: Any, **options: Any) -> Any:
        if away[0]:
            away[0] -= 1
            raise PublishError("nobody answers", blame=Blame.BROKER, reason="unreachable")
        return subscribe(*args, **options)

    monkeypatch.setattr(broker, "subscribe", subscribe_when_there)
    with working(desk, broker):
        until(lambda: lag(desk, broker) == 0)
    assert (desk.effects(), away) == (["1"], [0])


@only_sqlite
def test_a_handler_that_has_come_to_its_end_is_not_abandoned_any_more(desk: Desk, broker: Broker) -> None:
    """Between the look at the clock and the replacement it may return: the work would be finished twice."""
    desk.declare(lambda event, ctx: desk.note(ctx))
    with working(desk, broker) as worker:
        [slot] = worker._slots
        assert slot.replace(desk.read(desk.record("x"))[0]) is None
        publish(broker, desk, [("1", "a")])
        until(lambda: lag(desk, broker) == 0)
    assert desk.effects() == ["1"]
    assert (worker.floor.dealing.loads(), worker.floor.dealing.lines()) == ([0], 0)


@only_sqlite
def test_a_locked_file_pauses_consumption(desk: Desk, broker: Broker) -> None:
    desk.declare(lambda event, ctx: desk.note(ctx), retry=Retry(attempts=1))
    with working(desk, broker) as worker:
        publish(broker, desk, [("1", "a")])
        until(lambda: lag(desk, broker) == 0)
        desk.connection.begin()
        publish(broker, desk, [(str(n), f"k{n}") for n in range(2, 10)])
        until(lambda: any(slot.busy() for slot in worker._slots))
        assert lag(desk, broker) == 8
        desk.connection.rollback()
        until(lambda: lag(desk, broker) == 0)
    assert sorted(map(int, desk.effects())) == list(range(1, 10))
    assert {attempt for _, attempt in desk.attempts()} == {1}


@only_postgresql
def test_the_server_ends_a_transaction_whose_worker_says_nothing(desk: Desk) -> None:
    """The settings of each work transaction, and what a zombie finds when it wakes up."""
    desk.declare(lambda event, ctx: desk.note(ctx))
    seat = desk.seat()
    seat.connect()
    assert seat.connection is not None
    acts = Batch(seat.plan, desk.read(desk.record("1"))).acts()
    act = next(acts)
    while not isinstance(act, Commit):  # frozen just before it
        act = acts.send(seat.perform(act))
    found = seat.connection.execute(Sql(
        "select current_setting('idle_in_transaction_session_timeout'), current_setting('tcp_user_timeout')"
    ))
    assert found.rows == [("4s", "4s")] or found.rows == [("4s", "4000")]
    seat.connection.execute(Sql("select set_config('idle_in_transaction_session_timeout', '100ms', true)"))
    pid = seat.connection.driver.info.backend_pid
    until(lambda: desk.sql("select count(*) from pg_stat_activity where pid = :pid", pid=pid) == [(0,)])
    assert desk.deliver(desk.record("1")) == ["processed"]  # somebody else goes on
    with pytest.raises(StoreUnavailable):
        go_on(acts, act, seat)
    seat.close()
    assert desk.effects() == ["1"]


@only_postgresql
def test_who_waits_for_a_frozen_worker_ends_its_transaction(desk: Desk) -> None:
    inbox = desk.store.inbox
    number = desk.plan.number
    frozen, waiting = desk.store.connect(), desk.store.connect()
    run(inbox.mark(number, "elsewhere:1:1", '[["s","1"]]'), frozen)
    frozen.begin()
    frozen.execute(Sql("insert into stock values (:sku, 1) returning 1", {"sku": desk.service.name}))
    pid = waiting.driver.info.backend_pid

    def wait() -> None:
        waiting.execute(Sql("insert into stock values (:sku, 1) on conflict do nothing", {"sku": desk.service.name}))

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: desk.sql("select cardinality(pg_blocking_pids(:pid))", pid=pid) == [(1,)])
    assert desk.run(inbox.end_frozen([pid], "me", 60.0)) == 0  # not silent for long enough
    assert desk.run(inbox.end_frozen([pid], "elsewhere:1:1", 0.0)) == 0  # never our own
    until(lambda: desk.run(inbox.end_frozen([pid], "me", 0.05)) == 1)
    thread.join(10)
    assert not thread.is_alive()
    waiting.close()
    frozen.close()


@only_postgresql
def test_a_slow_handler_that_lives_is_not_taken_for_frozen(desk: Desk, broker: Broker) -> None:
    def handler(event: Placed, ctx: Any) -> None:
        time.sleep(2.5)  # the work itself: longer than two leases
        desk.note(ctx)

    desk.declare(handler, retry=Retry(attempts=1))
    publish(broker, desk, [("1", "a")])
    with working(desk, broker, lease_s=1.0):
        until(lambda: lag(desk, broker) == 0)
    assert desk.attempts() == [("1", 1)]
    assert desk.rows("id", "dead_letters") == []


def test_a_member_that_was_taken_for_dead_begins_anew(desk: Desk, broker: Broker) -> None:
    desk.declare(lambda event, ctx: desk.note(ctx))
    with working(desk, broker) as worker:
        subscription = worker._subscription
        assert subscription is not None
        until(lambda: len(worker.floor.generations) == 2)

        def poll(max_records: int, timeout_s: float) -> list[Any]:
            raise PublishError("taken for dead", blame=Blame.BROKER, reason="fenced")

        subscription.poll = poll  # type: ignore[method-assign]
        until(lambda: worker._subscription is not subscription)
        publish(broker, desk, [("1", "a")])
        until(lambda: lag(desk, broker) == 0)
    assert desk.effects() == ["1"]
