"""What still waits, on a world of files: in the outbox, then in the log. And the relay that forgets in between."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from bothends.brokers import open_broker
from bothends.demo.events import RUN
from bothends.demo.forgetful import Forgetting
from bothends.demo.producer import place_all
from bothends.demo.seeded import make_orders
from bothends.demo.settling import Waiting, behind, look
from bothends.demo.world import World
from bothends.ports import Lag
from bothends.relay import Relay, RelaySettings
from bothends.relay.events import SourceChanged
from bothends.settings import Source

ORDERS = make_orders(5, 40)


def until(condition: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.01)


def relay_all(world: World) -> None:
    """An ordinary relay, until the outbox is empty."""
    broker = open_broker(world.broker_url)
    stop = threading.Event()
    relay = Relay(world.store("orders"), broker)
    thread = threading.Thread(target=relay.run, args=(stop,))
    thread.start()
    try:
        until(lambda: look(world).outbox == 0)
    finally:
        stop.set()
        thread.join()
        broker.close()


def ids(world: World) -> Counter[str]:
    topic = world.topics["orders"]
    found: Counter[str] = Counter()
    for partition in range(world.broker.topic(topic).partitions):
        for record in world.broker.read(topic, partition=partition, offset=0, max_records=1000):
            found[dict(record.headers)["ce_id"].decode()] += 1
    return found


def test_an_order_waits_in_the_outbox_then_in_the_log(fresh_world: World) -> None:
    assert look(fresh_world) == Waiting()
    assert look(fresh_world).settled
    place_all(iter(ORDERS), lambda: fresh_world.connect("orders"))
    assert look(fresh_world) == Waiting(outbox=40)
    relay_all(fresh_world)
    waiting = look(fresh_world)
    assert waiting == Waiting(lag=3 * 40)  # inventory, payments and analytics each have all of it before them
    assert not waiting.settled


def test_a_relay_that_dies_with_the_confirmation_publishes_again_under_the_same_ids(fresh_world: World) -> None:
    (fresh_world.folder / "logs").mkdir()
    place_all(iter(ORDERS), lambda: fresh_world.connect("orders"))
    forgetting = Forgetting("orders", [], fresh_world.environ({}), fresh_world.folder)
    until(forgetting.ended)
    forgotten = forgetting.close()
    assert 0 < forgotten <= 40
    assert look(fresh_world).outbox == 40  # the log has them, the outbox does not know
    assert sum(ids(fresh_world).values()) >= forgotten
    relay_all(fresh_world)
    found = ids(fresh_world)
    assert len(found) == 40
    assert sum(found.values()) >= 40 + forgotten


def test_nothing_to_publish_is_nothing_forgotten(fresh_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (fresh_world.folder / "logs").mkdir()
    monkeypatch.setattr("bothends.demo.forgetful.PATIENCE_S", 0.0)
    forgetting = Forgetting("orders", [], fresh_world.environ({}), fresh_world.folder)
    until(forgetting.ended)
    assert forgetting.close() == 0


@pytest.mark.parametrize(
    ("position", "low", "high", "left"), [(-1, 0, 7, 7), (-1, 3, 7, 4), (5, 0, 7, 2), (7, 0, 7, 0), (0, 2, 7, 5)]
)
def test_lag_counts_from_the_stored_position(position: int, low: int, high: int, left: int) -> None:
    assert behind(Lag("t", 0, position, low, high)) == left


@pytest.mark.parametrize("one", [Waiting(outbox=1), Waiting(log=1), Waiting(lag=1), Waiting(parked=1)])
def test_anything_that_waits_has_not_settled(one: Waiting) -> None:
    assert not one.settled
    assert (one + Waiting(dead=1)).dead == 1


def test_a_dead_letter_does_not_wait() -> None:
    assert Waiting(dead=1).settled


@pytest.mark.needs("postgresql")
@pytest.mark.parametrize("source", ["wal", "message"])
def test_a_relay_that_reads_the_log_is_seen_to_be_done(
    tmp_path: Path, pg_database: str, monkeypatch: pytest.MonkeyPatch, source: Source
) -> None:
    from bothends.demo import app

    world = World(RUN, tmp_path, pg_database, relay_source=source)
    world.prepare()
    monkeypatch.setattr(app.orders.outbox, "_by_message", source == "message")
    monkeypatch.setattr(app.orders.outbox, "_groups", {})
    stop, reads = threading.Event(), threading.Event()
    broker = open_broker(world.broker_url)

    def observe(record: object) -> None:
        if isinstance(record, SourceChanged) and record.source == source:
            reads.set()

    relay = Relay(world.store("orders"), broker, settings=RelaySettings(source=source), observe=observe)
    thread = threading.Thread(target=relay.run, args=(stop,))
    thread.start()
    try:
        assert reads.wait(30)
        place_all(iter(ORDERS), lambda: world.connect("orders"))
        marks: dict[str, str] = {}
        # Not sooner than everything is in the topic; that nothing was handled is all that is left.
        until(lambda: look(world, marks) == Waiting(lag=3 * 40, log=source == "message"))
        assert sorted(ids(world).values()) == [1] * 40
    finally:
        stop.set()
        thread.join()
        broker.close()
    world.remove()
    world.close()


@pytest.mark.needs("postgresql")
def test_a_message_waits_until_a_relay_is_done_with_its_place_in_the_log(
    tmp_path: Path, pg_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bothends.demo import app

    world = World(RUN, tmp_path, pg_database, relay_source="message")
    world.prepare()
    monkeypatch.setattr(app.orders.outbox, "_by_message", True)
    monkeypatch.setattr(app.orders.outbox, "_groups", {})
    place_all(iter(ORDERS), lambda: world.connect("orders"))
    marks: dict[str, str] = {}

    def done(service: str, position: str) -> None:
        with world.connected(service) as db:
            db.execute(
                f'update "{world.schema_of(service)}".relay_log set position = %s where messages',  # type: ignore[arg-type]
                [position])

    with world.connected("orders") as db:
        before = db.execute("select pg_current_wal_insert_lsn()::text").fetchone()[0]
    first = look(world, marks)
    assert (first.outbox, first.settled, list(marks)) == (0, False, [world.schema_of("orders")])
    assert first.log > 40 * 100  # from the log's beginning on
    done("orders", before)
    with world.connected("orders") as db:
        db.execute("select pg_logical_emit_message(true, 'somebody', 'else')")
    assert 0 < look(world, marks).log < first.log  # the mark stays where it was
    done("orders", marks[world.schema_of("orders")])
    second = look(world, marks)  # nothing more comes to the payments: their place is noted
    assert (second.settled, list(marks)) == (False, [world.schema_of("orders"), world.schema_of("payments")])
    done("payments", "FFFFFFFF/0")
    assert look(world, marks) == Waiting()
    assert not look(world).settled  # without marks nobody knows
    world.remove()
    world.close()
