"""The tormentor on a world of files, with a fleet of idle processes: what is due is done, counted and told."""

import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bothends.brokers import open_broker
from bothends.demo.faults import Fault
from bothends.demo.processes import Fleet, children_of
from bothends.demo.report import Report
from bothends.demo.rewinding import Rewinding
from bothends.demo.tormentor import Tormentor
from bothends.demo.world import World
from bothends.message import Origin
from bothends.ports import Outgoing, Partition, StartAt

IDLE = "import signal; signal.pause()"
GROUP, TOPIC = "inventory.stock", "orders"


def until(condition: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.01)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path)
    for name in ("relay-1", "relay-2", "work-inventory", "work-payments", "work-analytics"):
        process = fleet.add(name, [], os.environ, tmp_path)
        process.command = [sys.executable, "-c", IDLE]
        process.start()
    yield fleet
    fleet.stop()


@pytest.fixture
def torment(fresh_world: World, fleet: Fleet) -> Callable[..., Tormentor]:
    def make(*faults: Fault) -> Tormentor:
        report = Report(as_json=True)
        return Tormentor(faults, fresh_world, fleet, None, os.environ, report, random.Random(1))

    return make


def handled(world: World, records: int) -> None:
    """So many records of one partition were published and acknowledged by inventory.stock."""
    broker = open_broker(world.broker_url)
    topic, group = world.topics[TOPIC], world.groups[GROUP]
    publisher = broker.publisher("test")
    publisher.send(1, [Outgoing(topic, b"one key", b"%d" % n, []) for n in range(records)])
    until(lambda: publisher.poll(0.1))
    publisher.close(1)
    owned: list[Partition] = []
    subscription = broker.subscribe(
        group, [topic], start=StartAt(), assigned=owned.extend, revoked=lambda partitions, lost: None
    )
    got: list[Origin] = []

    def all_came() -> bool:
        got.extend(record.origin for record in subscription.poll(100, 0.05))
        return len(got) == records

    until(all_came)
    subscription.ack(got)
    subscription.close()
    broker.close()


def position(world: World) -> int:
    return max(lag.position for lag in world.broker.lag(world.groups[GROUP], [world.topics[TOPIC]]))


def test_nothing_is_done_before_its_time(torment: Callable[..., Tormentor], fleet: Fleet) -> None:
    tormentor = torment(Fault(0.5, "kill", "relay-1"))
    tormentor.tick(0.49)
    assert (tormentor.kills, tormentor.idle) == (0, False)
    tormentor.tick(0.5)
    assert (tormentor.kills, tormentor.idle) == (1, True)
    process = fleet.processes["relay-1"].running
    assert process is not None
    assert process.wait(10) == -9


def test_several_may_be_due_at_once(torment: Callable[..., Tormentor]) -> None:
    tormentor = torment(*[Fault(0.1 * n, "kill", name) for n, name in enumerate(("relay-1", "relay-2", "work-payments"))])
    tormentor.tick(0.9)
    assert tormentor.kills == 3


def test_a_kill_waits_until_there_is_something_to_kill(torment: Callable[..., Tormentor], fleet: Fleet) -> None:
    tormentor = torment(Fault(0.1, "kill", "relay-1"), Fault(0.2, "kill", "relay-1"))
    tormentor.tick(0.5)
    tormentor.tick(0.6)
    assert (tormentor.kills, tormentor.idle) == (1, False)
    fleet.tend()
    tormentor.tick(0.7)
    assert (tormentor.kills, tormentor.idle) == (2, True)


def test_a_position_is_moved_back_while_the_workers_are_down(
    torment: Callable[..., Tormentor], fleet: Fleet, fresh_world: World
) -> None:
    handled(fresh_world, 40)
    assert position(fresh_world) == 40
    tormentor = torment(Fault(0.3, "rewind", GROUP, 15))
    workers = fleet.processes["work-inventory"]
    tormentor.tick(0.3)
    assert not workers.wanted

    def over() -> bool:
        tormentor.tick(0.3)
        return tormentor.idle

    until(over)
    assert position(fresh_world) == 25
    assert (tormentor.acks_lost, tormentor.not_done()) == (1, [])
    assert (workers.wanted, workers.started) == (True, 2)


def test_a_position_is_not_moved_below_the_logs_start(fresh_world: World, fleet: Fleet) -> None:
    handled(fresh_world, 7)
    rewinding = Rewinding(fresh_world, GROUP, 500, fleet.processes["work-inventory"])
    until(rewinding.ended)
    assert (rewinding.forgotten, position(fresh_world)) == (7, 0)
    assert "7 -> 0" in rewinding.how


def test_nothing_handled_is_nothing_lost(torment: Callable[..., Tormentor]) -> None:
    tormentor = torment(Fault(0.3, "rewind", GROUP, 15))

    def over() -> bool:
        tormentor.tick(0.3)
        return tormentor.idle

    until(over)
    assert tormentor.acks_lost == 0
    assert tormentor.not_done() == [f"not applied: {GROUP} had no acknowledgements to lose"]


def test_one_outage_at_a_time_and_kills_meanwhile(
    torment: Callable[..., Tormentor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bothends.demo.outages.HOLD_S", 0.2)
    tormentor = torment(
        Fault(0.1, "broker outage"), Fault(0.2, "database outage"), Fault(0.3, "kill", "relay-1")
    )  # fmt: skip
    tormentor.tick(0.9)
    assert (tormentor.kills, tormentor.outages) == (1, 0)

    def over() -> bool:
        tormentor.tick(0.9)
        return tormentor.idle

    until(over)
    assert (tormentor.outages, tormentor.not_done()) == (2, [])


def test_a_server_that_cannot_be_cut_off_is_said_and_not_counted(
    fleet: Fleet, tmp_path: Path
) -> None:
    world = World("demo-x", tmp_path, "postgresql:///x?host=/run/postgresql", "kafka://a:1,b:2")
    tormentor = Tormentor(
        [Fault(0.1, "broker outage"), Fault(0.2, "database outage")], world, fleet, None, os.environ,
        Report(as_json=True), random.Random(1),
    )  # fmt: skip
    tormentor.tick(0.5)
    assert (tormentor.outages, tormentor.idle) == (0, True)
    assert [text.partition(":")[0] for text in tormentor.not_done()] == ["not applied"] * 2


def test_closing_ends_what_was_going_on(torment: Callable[..., Tormentor]) -> None:
    tormentor = torment(Fault(0.1, "database outage"))
    tormentor.tick(0.5)
    holders = [pid for pid in children_of(os.getpid()) if b"lockholder" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert holders
    tormentor.close()
    assert not [pid for pid in holders if Path(f"/proc/{pid}").exists()]
