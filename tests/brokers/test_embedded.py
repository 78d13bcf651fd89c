"""What only the embedded broker does: several processes on one file, leases, outages of the file, retention."""

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bothends.brokers.embedded import EmbeddedBroker, groups
from bothends.brokers.embedded import file as log_file
from bothends.brokers.embedded.file import boot_clock, boot_id
from bothends.errors import Blame, ConfigError, PublishError
from bothends.message import Origin
from bothends.ports import Outgoing
from bothends.testing.conformance.members import Reader, publish, reports_of, until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.log"


@pytest.fixture
def broker(path: Path) -> Iterator[EmbeddedBroker]:
    broker = EmbeddedBroker(f"embedded:///{path}")
    broker.create_topic("t", 2)
    yield broker
    broker.close()


def numbered(start: int, stop: int) -> list[Outgoing]:
    return [Outgoing("t", b"k%d" % (n % 20), b"%d" % n, []) for n in range(start, stop)]


def run(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(script), *arguments], stdout=subprocess.PIPE, text=True)


@pytest.fixture
def holder(path: Path) -> Iterator[sqlite3.Connection]:
    """Somebody else's connection to the file."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    yield connection
    connection.close()


# Durability


def test_a_commit_has_reached_the_disk(broker: EmbeddedBroker) -> None:
    log = broker.open_log()
    with log._file.reading() as connection:  # type: ignore[attr-defined]
        assert connection.execute("pragma synchronous").fetchone() == (2,)
        assert connection.execute("pragma journal_mode").fetchone() == ("wal",)
    log.close()


def test_relative_and_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    EmbeddedBroker("embedded:///a%20b.log").create_topic("t", 1)
    assert (tmp_path / "a b.log").exists()
    assert EmbeddedBroker(f"embedded:///{tmp_path}/a b.log").topic("t").state == "ok"


def test_somebody_elses_database_is_left_alone(path: Path, holder: sqlite3.Connection) -> None:
    holder.execute("create table orders (id)")
    with pytest.raises(ConfigError, match="no bothends log"):
        EmbeddedBroker(f"embedded:///{path}").create_topic("t", 1)
    assert holder.execute("select name from sqlite_master").fetchall() == [("orders",)]


def test_a_file_that_is_no_database_is_an_outage_that_names_it(path: Path) -> None:
    path.write_bytes(b"not a database " * 100)
    with pytest.raises(PublishError, match=r"events\.log") as refusal:
        EmbeddedBroker(f"embedded:///{path}").ping(0.1)
    assert (refusal.value.blame, refusal.value.reason) == (Blame.BROKER, "corrupt")


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(PublishError, match="folder exists") as refusal:
        EmbeddedBroker(f"embedded:///{tmp_path}/no/events.log").ping(0.1)
    assert refusal.value.blame is Blame.BROKER


def test_a_log_of_a_later_format_is_refused(broker: EmbeddedBroker, holder: sqlite3.Connection) -> None:
    holder.execute("pragma user_version = 99")
    with pytest.raises(ConfigError, match="another version"):
        EmbeddedBroker(broker.url).cluster_id()


def test_the_same_file_is_the_same_broker(broker: EmbeddedBroker, tmp_path: Path) -> None:
    assert EmbeddedBroker(broker.url).cluster_id() == broker.cluster_id()
    assert EmbeddedBroker(f"embedded:///{tmp_path}/other.log").cluster_id() != broker.cluster_id()


# Outages: a process holds the write lock


def test_a_held_lock_is_the_brokers_outage_and_fails_no_event(broker: EmbeddedBroker, holder: sqlite3.Connection) -> None:
    publisher = broker.publisher("p")
    holder.execute("begin immediate")
    for batch in range(3):
        publisher.send(batch, numbered(batch * 10, batch * 10 + 10))
    assert publisher.poll(0.05) == []
    assert publisher.poll(0) == []
    assert publisher.pending() == 30
    assert publisher.broken() is None
    started = time.monotonic()
    with pytest.raises(PublishError) as refusal:
        broker.ping(0.2)
    assert (refusal.value.blame, refusal.value.reason) == (Blame.BROKER, "locked")
    assert time.monotonic() - started < 1.0
    holder.execute("rollback")
    assert reports_of(publisher, 3) == {0: {}, 1: {}, 2: {}}
    publisher.close(1.0)
    assert sum(high for _, high in broker.open_log().ends("t")) == 30


def test_an_abandoned_publisher_has_written_nothing_behind_a_lock(
    broker: EmbeddedBroker, holder: sqlite3.Connection
) -> None:
    publisher = broker.publisher("p")
    holder.execute("begin immediate")
    publisher.send(0, numbered(0, 10))
    started = time.monotonic()
    publisher.abandon()
    assert time.monotonic() - started < 2.0
    holder.execute("rollback")
    assert sum(high for _, high in broker.open_log().ends("t")) == 0


def test_a_full_disk_breaks_the_publisher_is_said_by_a_ping_and_costs_no_record(broker: EmbeddedBroker) -> None:
    publisher = broker.publisher("p")
    log = publisher._log._file._open(1.0)  # type: ignore[attr-defined]
    pinging = broker._log._file._open(1.0)  # type: ignore[attr-defined]
    for connection in (log, pinging):
        connection.execute("pragma max_page_count = 1")  # as few as there are
    publisher.send(1, numbered(0, 20_000))
    assert publisher.poll(0.1) == []
    broken = publisher.broken()
    assert broken is not None
    assert (broken.blame, broken.reason, publisher.pending()) == (Blame.BROKER, "disk_full", 0)
    publisher.abandon()
    with pytest.raises(PublishError) as refusal:
        broker.ping(0.1)
    assert (refusal.value.blame, refusal.value.reason) == (Blame.BROKER, "disk_full")
    pinging.execute("pragma max_page_count = 1000000")
    broker.ping(1.0)
    assert [lag.high for lag in broker.lag("g", ["t"])] == [0, 0]
    again = broker.publisher("p")
    again.send(1, numbered(0, 10))
    assert [report.failures for report in again.close(1.0)] == [{}]


def test_a_full_queue_behind_a_lock_is_said(
    broker: EmbeddedBroker, holder: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bothends.brokers.logs.publisher._QUEUED_MAX", 25)
    monkeypatch.setattr("bothends.brokers.logs.publisher._ROOM_TIMEOUT_S", 0.1)
    publisher = broker.publisher("p")
    holder.execute("begin immediate")
    publisher.send(0, numbered(0, 20))
    with pytest.raises(PublishError) as refusal:
        publisher.send(1, numbered(20, 30))
    assert (refusal.value.blame, refusal.value.reason) == (Blame.BROKER, "full")
    assert publisher.pending() == 20
    holder.execute("rollback")
    publisher.send(1, numbered(20, 30))
    assert reports_of(publisher, 2) == {0: {}, 1: {}}


def test_members_read_on_while_somebody_writes(
    broker: EmbeddedBroker, holder: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_file, "_OPEN_TIMEOUT_S", 0.05)
    publish(broker, numbered(0, 20))
    reader = Reader(broker, "g", "t")
    until(lambda: reader.poll(5), "the first records")
    holder.execute("begin immediate")
    reader.ack()
    started = time.monotonic()
    while time.monotonic() - started < 1.5:
        reader.poll(5, 0.01)
    holder.execute("rollback")
    reader.read(20)
    assert len({r.origin for r in reader.records}) == 20
    assert reader.taken == []
    reader.ack()
    reader.close()
    assert sum(lag.position for lag in broker.lag("g", ["t"])) == 20


# Several processes


WRITER = """
    import sys
    from bothends.brokers import open_broker
    from bothends.ports import Outgoing

    url, name = sys.argv[1:]
    publisher = open_broker(url).publisher(name)
    for batch in range(40):
        publisher.send(batch, [Outgoing("t", name.encode(), b"%d" % (batch * 25 + i), []) for i in range(25)])
        while publisher.pending():
            assert not any(report.failures for report in publisher.poll(1.0))
"""

MEMBER = """
    import sys
    from bothends.brokers import open_broker
    from bothends.ports import StartAt

    url, ack = sys.argv[1:]
    nothing = lambda *_: None
    member = open_broker(url).subscribe("g", ["t"], start=StartAt(), assigned=nothing, revoked=nothing)
    while True:
        got = member.poll(10, 0.1)
        if ack == "ack":
            member.ack([r.origin for r in got])
        for record in got:
            print(record.origin.partition, record.origin.offset, flush=True)
"""


def test_writers_of_several_processes_keep_their_own_order(broker: EmbeddedBroker) -> None:
    writers = [run(WRITER, broker.url, f"w{n}") for n in range(3)]
    reader = Reader(broker, "g", "t")
    reader.read(3000, 60.0)
    assert [writer.wait(20) for writer in writers] == [0, 0, 0]
    for n in range(3):
        assert [int(r.value or b"") for r in reader.records if r.key == b"w%d" % n] == list(range(1000))
    for number in (0, 1):
        offsets = [r.origin.offset for r in reader.records if r.origin.partition == number]
        assert offsets == list(range(len(offsets)))
    reader.close()
    for writer in writers:
        assert writer.stdout is not None
        writer.stdout.close()


def test_a_killed_member_is_replaced_within_its_lease(broker: EmbeddedBroker) -> None:
    publish(broker, numbered(0, 40))
    process = run(MEMBER, broker.url, "none")
    assert process.stdout is not None
    assert process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    started = time.monotonic()
    reader = Reader(broker, "g", "t")
    reader.read(40)
    assert time.monotonic() - started < 6.0
    assert len({r.origin for r in reader.records}) == 40
    reader.close()


def test_a_frozen_member_neither_blocks_nor_moves_anything_when_it_thaws(broker: EmbeddedBroker) -> None:
    publish(broker, numbered(0, 40))
    process = run(MEMBER, broker.url, "ack")
    assert process.stdout is not None
    assert process.stdout.readline()
    process.send_signal(signal.SIGSTOP)
    reader = Reader(broker, "g", "t")
    reader.ready(2)
    held = {lag.partition: lag.position for lag in broker.lag("g", ["t"])}
    process.send_signal(signal.SIGCONT)
    until(lambda: reader.poll() is not None and len(reader.held) == 1, "the thawed member has joined again")
    after = {lag.partition: lag.position for lag in broker.lag("g", ["t"])}
    mine = next(iter(reader.held)).number
    assert after[mine] == held[mine], "its late acknowledgement moved nothing that is not its own"
    reader.close()
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_name_that_is_taken_over_fences_the_old_member(broker: EmbeddedBroker) -> None:
    publish(broker, numbered(0, 40))
    first = Reader(broker, "g", "t", member="one")
    first.read(40)
    second = Reader(broker, "g", "t", member="one")
    second.ready(2)
    first.ack()
    with pytest.raises(PublishError) as refusal:
        until(lambda: second.poll() is first.poll(), "the first hears of it")
    assert refusal.value.reason == "fenced"
    assert first.held == set()
    first.close()
    assert sum(max(0, lag.position) for lag in broker.lag("g", ["t"])) == 0
    assert len(second.held) == 2
    second.close()


# Leases are judged by the boot clock


def members_of(holder: sqlite3.Connection) -> list[str]:
    return [name for (name,) in holder.execute("select name from members order by name")]


@pytest.mark.parametrize(("boot", "age_s", "alive"), [
    (None, 0.0, True), (None, 3.0, True), (None, 4.5, False), ("an-earlier-boot", 0.0, False), (None, -60.0, False),
])
def test_leases(broker: EmbeddedBroker, holder: sqlite3.Connection, boot: str | None, age_s: float, alive: bool) -> None:
    reader = Reader(broker, "g", "t", member="one")
    reader.ready(2)
    holder.execute("update members set seen = ?, boot = ?", [boot_clock() - age_s, boot or boot_id()])
    holder.execute("begin immediate")
    groups.bury(holder, "g")
    holder.execute("commit")
    assert members_of(holder) == (["one"] if alive else [])
    assert holder.execute("select count(*) from claims").fetchone() == (2 if alive else 0,)
    reader.close()


def test_the_time_of_day_ends_no_lease(
    broker: EmbeddedBroker, holder: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader(broker, "g", "t", member="one")
    reader.ready(2)
    monkeypatch.setattr(time, "time", lambda: 4_000_000_000.0)
    monkeypatch.setattr(time, "time_ns", lambda: 4_000_000_000_000_000_000)
    holder.execute("begin immediate")
    groups.bury(holder, "g")
    holder.execute("commit")
    assert members_of(holder) == ["one"]
    reader.close()


def test_set_position_waits_for_a_dead_members_lease(broker: EmbeddedBroker, holder: sqlite3.Connection) -> None:
    holder.execute("insert into members values ('g', 'dead', 'x', '[\"t\"]', ?, ?, 1)", [boot_id(), boot_clock() - 3.5])
    broker.set_position("g", Origin("t", 0, 7))
    assert broker.lag("g", ["t"])[0].position == 7


def test_set_position_refuses_while_somebody_reads(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bothends.brokers.logs.broker.LEASE_S", -0.8)
    reader = Reader(broker, "g", "t")
    reader.ready(2)
    with pytest.raises(ConfigError, match="live members"):
        broker.set_position("g", Origin("t", 0, 1))
    reader.close()
    with pytest.raises(PublishError, match="no partition 9"):
        broker.set_position("g", Origin("t", 9, 1))


# Retention


def test_old_records_are_removed_in_steps(path: Path, holder: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bothends.brokers.embedded.records.TRIM_ROWS", 10)
    broker = EmbeddedBroker(f"embedded:///{path}?retention_days=1")
    broker.create_topic("t", 1)
    publish(broker, numbered(0, 35))
    holder.execute("update records set at_ms = at_ms - 90000000 where offset < 25")
    publisher = broker.publisher("p")
    for batch in range(4):
        publisher.send(batch, numbered(batch, batch + 1))
        reports_of(publisher, 1)
    publisher.close(1.0)
    assert broker.lag("g", ["t"])[0][3:] == (25, 39)
    assert holder.execute("select min(offset), count(*) from records").fetchone() == (25, 14)


def test_records_are_kept_for_ever_where_that_is_said(path: Path, holder: sqlite3.Connection) -> None:
    broker = EmbeddedBroker(f"embedded:///{path}?retention_days=0")
    broker.create_topic("t", 1)
    publish(broker, numbered(0, 10))
    holder.execute("update records set at_ms = 0")
    publish(broker, numbered(10, 11))
    assert broker.lag("g", ["t"])[0][3:] == (0, 11)


def test_a_topic_made_anew_is_another_topic(broker: EmbeddedBroker) -> None:
    publish(broker, numbered(0, 10))
    reader = Reader(broker, "g", "t")
    reader.read(10)
    reader.ack()
    broker.delete_topic("t")
    until(lambda: reader.poll() == [] and not reader.held, "the partitions are gone")
    assert reader.taken[-1][1] is True
    broker.create_topic("t", 2)
    publish(broker, numbered(10, 20))
    reader.read(20)
    assert min(r.origin.offset for r in reader.records[10:]) == 0
    reader.close()


# Speed of waking up


def test_a_waiting_member_hears_of_records_at_once(broker: EmbeddedBroker) -> None:
    reader = Reader(broker, "g", "t")
    reader.ready(2)
    publisher = broker.publisher("p")
    waits = []
    for n in range(5):
        sent: list[float] = []

        def send(number: int = n, sent: list[float] = sent) -> None:
            publisher.send(number, numbered(number, number + 1))
            reports_of(publisher, 1)
            sent.append(time.monotonic())

        sender = threading.Timer(0.05, send)
        sender.start()
        assert reader.poll(10, 5.0)
        arrived = time.monotonic()
        sender.join()
        waits.append(arrived - sent[0])
    assert min(waits) < 0.1
    publisher.close(1.0)
    reader.close()
