"""The relay that reads the log, on a real server: whatever happens to its slot, nothing is lost and order is kept [R8]."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from bothends.core.relaying import EVERY_LANE, Stream
from bothends.core.snapshots import Snapshot
from bothends.relay.events import Fenced, Published, Registered, SourceChanged, StoreLost
from bothends.relay.log import Log, Phase
from bothends.stores import Store, open_store
from bothends.stores.connection import Connection
from bothends.stores.postgresql.relay_connection import RelayExecutor
from bothends.stores.postgresql.relay_log import LogSteps
from bothends.stores.schema import apply
from bothends.stores.steps import Sql, Steps, run
from tests.relay.conftest import Rig, Running

pytestmark = pytest.mark.needs("postgresql")
SOON = {"lease_s": 1.0, "renew_s": 0.1}


def source(running: Running) -> str:
    return running.saw(SourceChanged)[-1].source if running.saw(SourceChanged) else ""


def reason(running: Running) -> str:
    return running.saw(SourceChanged)[-1].reason


def slots(rig: Rig) -> list[tuple[str, int | None]]:
    return [(name, pid) for name, pid in rig.sql(
        "select slot_name::text, active_pid from pg_replication_slots where database = current_database()")]


def reading(rig: Rig, **settings: Any) -> Running:
    running = rig.start(**SOON | settings)
    rig.until(lambda: source(running) == "wal")
    return running


@pytest.fixture
def other(pg_log: Rig) -> Iterator[Connection]:
    connection = pg_log.store.connect(name="another session")
    yield connection
    connection.close()


class Writer:
    """Commits events of five keys without pause, in known order, until it is stopped."""

    def __init__(self, rig: Rig) -> None:
        self.rig, self.count = rig, dict.fromkeys([b"a", b"b", b"c", b"d", b"e"], 0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        connection = self.rig.store.connect(name="writer")
        while not self._stop.is_set():
            for key, count in self.count.items():
                connection.begin()
                connection.execute(self.rig.insert("t", key, b"%d" % count))
                connection.execute(self.rig.insert("t", key, b"%d" % (count + 1)))
                connection.commit()
                self.count[key] += 2
        connection.close()

    def written(self) -> int:
        return sum(self.count.values())

    def await_more(self) -> None:
        before = self.written()
        self.rig.until(lambda: self.written() > before + 100)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def check(self) -> None:
        """Nothing is lost, and the first copies of each key are in order."""
        self.rig.until(self.rig.drained)
        for key, count in self.count.items():
            assert list(dict.fromkeys(self.rig.bodies("t", key))) == [b"%d" % n for n in range(count)]


@contextlib.contextmanager
def writing(rig: Rig) -> Iterator[Writer]:
    rig.broker.create_topic("t", 3)
    writer = Writer(rig)
    try:
        yield writer
    finally:
        writer.stop()
    writer.check()


def end_sender(rig: Rig) -> None:
    rig.sql("select pg_terminate_backend(active_pid, 5000) from pg_replication_slots where database = current_database() "
            "and active_pid is not null")


def drop_slot(rig: Rig) -> None:
    """As an operator would: the relay comes back at once, so it may take a few tries."""
    for _ in range(100):
        end_sender(rig)
        with contextlib.suppress(psycopg.errors.ObjectInUse):
            rig.sql("select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = current_database()")
            return
    raise AssertionError("the slot cannot be dropped")


def test_what_was_there_before_the_slot_comes_first_and_everything_once(pg_log: Rig) -> None:
    pg_log.broker.create_topic("t", 4)
    pg_log.add("t", b"k", b"1", b"2")
    running = reading(pg_log)
    pg_log.add("t", b"k", b"3", b"4")
    pg_log.until(pg_log.drained)
    assert pg_log.bodies("t") == [b"1", b"2", b"3", b"4"]
    assert sum(event.records for event in running.saw(Published)) == 4


def test_rolled_back_and_savepoints_and_empty_and_null_bodies(pg_log: Rig, other: Connection) -> None:
    pg_log.broker.create_topic("t", 1)
    reading(pg_log)
    other.begin()
    other.execute(pg_log.insert("t", b"k", b"never"))
    other.rollback()
    other.begin()
    other.execute(pg_log.insert("t", b"k", b"1"))
    other.execute(Sql("savepoint s", rows=False))
    other.execute(pg_log.insert("t", b"k", b"never"))
    other.execute(Sql("rollback to savepoint s", rows=False))
    other.execute(Sql("savepoint s", rows=False))
    other.execute(pg_log.insert("t", b"k", b""))
    other.execute(Sql("release savepoint s", rows=False))
    other.execute(pg_log.insert("t", None, None, version=7, content_type=None, attributes='{"subject": "s"}'))
    other.commit()
    pg_log.until(pg_log.drained)
    assert [record.value for record in pg_log.records("t")] == [b"1", b"", None]
    last = dict(pg_log.records("t")[-1].headers)
    assert (last["ce_subject"], last["ce_dataversion"], last.get("content-type")) == (b"s", b"7", None)


def test_overlapping_transactions_of_one_key_come_in_commit_order(pg_log: Rig, other: Connection) -> None:
    """Polling cannot: the sequence says which was added first, not which committed first."""
    pg_log.broker.create_topic("t", 1)
    reading(pg_log)
    expected = []
    for n in range(20):
        other.begin()
        other.execute(pg_log.insert("t", b"k", b"late %d" % n))
        pg_log.add("t", b"k", b"early %d" % n)
        other.commit()
        expected += [b"early %d" % n, b"late %d" % n]
    pg_log.until(pg_log.drained)
    assert pg_log.bodies("t", b"k") == expected


def test_a_slot_waits_for_open_transactions_and_polling_goes_on(pg_log: Rig, other: Connection) -> None:
    pg_log.broker.create_topic("t", 1)
    other.begin()
    other.execute(pg_log.insert("t", b"old", b"0"))
    running = pg_log.start(**SOON)
    pg_log.until(lambda: slots(pg_log))
    pg_log.add("t", b"k", b"1")
    pg_log.until(lambda: pg_log.bodies("t") == [b"1"])
    assert source(running) == "poll"
    other.commit()
    pg_log.until(lambda: source(running) == "wal")
    pg_log.until(pg_log.drained)
    assert pg_log.bodies("t") == [b"1", b"0"]


def test_the_slot_is_dropped_while_events_commit(pg_log: Rig) -> None:
    with writing(pg_log) as writer:
        running = reading(pg_log)
        for _ in range(3):
            writer.await_more()
            drop_slot(pg_log)
            pg_log.until(lambda: source(running) == "poll")
            pg_log.until(lambda: source(running) == "wal")
        assert [name for name, pid in slots(pg_log) if pid] != []


def test_its_connection_is_ended_again_and_again(pg_log: Rig) -> None:
    with writing(pg_log) as writer:
        running = reading(pg_log)
        for _ in range(5):
            writer.await_more()
            end_sender(pg_log)
            pg_log.until(lambda: source(running) == "wal" and [pid for _, pid in slots(pg_log) if pid])


def test_a_slot_that_was_dropped_and_made_again_while_no_relay_ran_skips_nothing(pg_log: Rig) -> None:
    pg_log.broker.create_topic("t", 1)
    running = reading(pg_log)
    pg_log.add("t", b"k", b"0")
    pg_log.until(pg_log.drained)
    running.stop()
    ((name, _),) = slots(pg_log)
    pg_log.sql("select pg_drop_replication_slot(:name)", name=name)
    pg_log.add("t", b"k", b"1", b"2", b"3")
    pg_log.sql("select pg_create_logical_replication_slot(:name, 'pgoutput')::text", name=name)
    pg_log.add("t", b"k", b"4")
    reading(pg_log)
    pg_log.until(pg_log.drained)
    assert list(dict.fromkeys(pg_log.bodies("t"))) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_relay_that_comes_back_goes_on_where_it_was(pg_log: Rig) -> None:
    """Nothing is published again: where it was is stored at its end."""
    pg_log.broker.create_topic("t", 1)
    running = reading(pg_log)
    pg_log.add("t", b"k", b"0")
    pg_log.until(pg_log.drained)
    running.stop()
    pg_log.add("t", b"k", b"1")
    reading(pg_log)
    pg_log.until(pg_log.drained)
    assert pg_log.bodies("t") == [b"0", b"1"]


def test_one_reads_the_others_stand_by_and_take_over(pg_log: Rig) -> None:
    with writing(pg_log) as writer:
        first = reading(pg_log)
        second, third = pg_log.start(**SOON), pg_log.start(**SOON)
        pg_log.until(lambda: (source(second), source(third)) == ("standby", "standby"))
        writer.await_more()
        first.stop()
        pg_log.until(lambda: sorted((source(second), source(third))) == ["standby", "wal"])
        # And one that is taken for dead, while it lives: it begins anew, and one of the two reads.
        reader = second if source(second) == "wal" else third
        writer.await_more()
        pg_log.until(lambda: pg_log.sql("delete from bothends.relays where source = 'wal' returning id"))
        pg_log.until(lambda: reader.saw(Fenced))
        pg_log.until(lambda: len(reader.saw(Registered)) == 2)
        pg_log.until(lambda: sorted((source(second), source(third))) == ["standby", "wal"])
        writer.await_more()


def test_beside_a_relay_that_was_told_to_poll_all_poll(pg_log: Rig) -> None:
    with writing(pg_log) as writer:
        running = reading(pg_log)
        poller = pg_log.start(source="poll", **SOON)
        pg_log.until(lambda: source(running) == "poll" and "told to read elsewhere" in reason(running))
        writer.await_more()
        poller.stop()
        pg_log.until(lambda: source(running) == "wal")


def test_a_connection_that_ends_while_lanes_are_claimed_wakes_nobody(
    pg_log: Rig, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is at its end is readable for ever: the relay turned round and round until it gave the claim up."""
    turns, plain = 0, Log.wait

    def wait(self: Log, *arguments: Any) -> bool:
        nonlocal turns
        turns += self.phase is Phase.CLAIMING
        return plain(self, *arguments)

    def lease_s() -> float:
        return float(pg_log.sql("select extract(epoch from max(lease_until)) from bothends.relays")[0][0])

    senders = "from pg_stat_activity where backend_type = 'walsender' and datname = current_database()"
    monkeypatch.setattr(Log, "wait", wait)
    monkeypatch.setattr(Log, "_claim", lambda self, now: None)  # others keep their lanes
    pg_log.start(**SOON)
    pg_log.until(lambda: turns)
    pg_log.until(lambda: pg_log.sql(f"select pg_terminate_backend(pid) {senders}"))
    pg_log.until(lambda: not pg_log.sql(f"select 1 {senders}"))
    before, began_s = turns, lease_s()
    pg_log.until(lambda: lease_s() > began_s + 1)
    assert turns - before < 3_000


def test_a_slot_that_keeps_too_much_is_dropped_and_polling_takes_over(pg_log: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bothends.relay.log.BUDGET_S", 0.05)
    monkeypatch.setattr("bothends.relay.log.BUDGET_PAUSE_S", 0.5)
    with writing(pg_log) as writer:
        running = reading(pg_log, wal_budget_mb=16)
        other = pg_log.store.connect(name="long")
        other.begin()  # an old transaction: the log is kept from its beginning
        other.execute(Sql("create temporary table big (x text)", rows=False))
        bulk = pg_log.store.connect(name="bulk")
        bulk.execute(Sql("create table bulk (x text)", rows=False))
        bulk.execute(Sql("insert into bulk select repeat('x', 1000) from generate_series(1, 25000)", rows=False))
        pg_log.until(lambda: any("budget" in event.reason for event in running.saw(SourceChanged)))
        pg_log.until(lambda: slots(pg_log) == [] or source(running) == "poll")
        writer.await_more()
        other.rollback()
        pg_log.until(lambda: source(running) == "wal")
        bulk.execute(Sql("drop table bulk", rows=False))
        other.close()
        bulk.close()


@pytest.fixture
def bulky(pg_log: Rig, other: Connection) -> Iterator[None]:
    """The slot of ``wal``, left behind, holds back 25 MB of the log."""
    reading(pg_log).stop()
    other.execute(Sql("create table bulk (x text)", rows=False))
    other.execute(Sql("insert into bulk select repeat('x', 1000) from generate_series(1, 25000)", rows=False))
    yield
    other.execute(Sql("drop table bulk", rows=False))


@pytest.mark.usefixtures("bulky")
@pytest.mark.parametrize("told", ["poll", "message", "auto"])
def test_a_slot_that_was_left_behind_is_dropped_by_those_who_do_not_read_it(
    pg_log: Rig, other: Connection, told: str
) -> None:
    """From wal to poll: nobody else would watch what it keeps."""
    steps = LogSteps(pg_log.store.schema)
    slot, retained = run(steps.unwanted(), other)
    assert [slot] == [name for name, _ in slots(pg_log)]
    assert retained > 16 * 2**20
    pg_log.start(**SOON | {"source": told, "wal_budget_mb": 16})
    pg_log.until(lambda: slot not in [name for name, _ in slots(pg_log)])
    pg_log.until(lambda: pg_log.sql("select slot from bothends.relay_log where not messages") == [("",)])
    assert run(steps.unwanted(), other) == ("", 0)


@pytest.mark.usefixtures("bulky")
def test_a_slot_that_was_left_behind_stays_within_the_budget_or_while_somebody_wants_it(
    pg_log: Rig, other: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bothends.relay.budget.WATCH_S", 0.0)
    asked: list[tuple[str, int]] = []
    unwanted = LogSteps.unwanted

    def counting(self: LogSteps) -> Steps[tuple[str, int]]:
        found = yield from unwanted(self)
        asked.append(found)
        return found

    monkeypatch.setattr(LogSteps, "unwanted", counting)
    poller = pg_log.start(**SOON | {"source": "poll", "wal_budget_mb": 100})
    pg_log.until(lambda: len(asked) > 2)
    poller.stop()
    pg_log.start(**SOON | {"wal_budget_mb": 100})  # it polls beside one that was told to; the slot is its own
    pg_log.until(lambda: pg_log.sql("select count(*) from bothends.relays where wants = 'wal'")[0][0])
    pg_log.start(**SOON | {"source": "poll", "wal_budget_mb": 16}, name="poller")
    asked.clear()
    pg_log.until(lambda: len(asked) > 2)
    assert set(asked) == {("", 0)}
    assert len(slots(pg_log)) == 1


@pytest.mark.usefixtures("bulky")
def test_the_slot_on_record_is_another_database_s_in_a_copy(pg_log: Rig, other: Connection, pg_database: str) -> None:
    """A copy that was made with its database names the slot of the first one: it is not to be dropped from there."""
    (slot, _), = slots(pg_log)
    copy = open_store(pg_database)
    apply(copy)
    connection = copy.connect(name="test")
    connection.execute(Sql("update bothends.relay_log set slot = :slot where not messages", {"slot": slot}, rows=False))
    assert run(LogSteps(copy.schema).unwanted(), connection) == (slot, 0)
    connection.close()


def test_a_poller_that_may_not_drop_the_slot_says_so_and_goes_on(
    pg_log: Rig, plain: Store, bulky: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("bothends.relay.budget.PAUSE_S", 0.05)
    pg_log.broker.create_topic("t", 1)
    running = start_plain(pg_log, plain, source="poll", wal_budget_mb=16)
    pg_log.until(lambda: caplog.text.count("could not be dropped") >= 2)
    pg_log.add("t", b"k", b"1")
    pg_log.until(lambda: pg_log.bodies("t") == [b"1"])
    assert len(running.saw(Registered)) == 1


def test_an_idle_outbox_keeps_no_log_of_a_busy_database(
    pg_log: Rig, other: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bothends.relay.reading.STORE_IDLE_S", 0.1)
    reading(pg_log)
    other.execute(Sql("create table bulk (x text)", rows=False))
    other.execute(Sql("insert into bulk select repeat('x', 1000) from generate_series(1, 5000)", rows=False))
    before = other.execute(Sql("select (pg_current_wal_insert_lsn() - '0/0')::bigint")).rows[0][0]
    confirmed = "select (confirmed_flush_lsn - '0/0')::bigint from pg_replication_slots where database = current_database()"
    pg_log.until(lambda: pg_log.sql(confirmed)[0][0] >= before)
    other.execute(Sql("drop table bulk", rows=False))


def test_auto_reads_the_log_and_leaves_no_slot_behind(pg_log: Rig) -> None:
    with writing(pg_log) as writer:
        running = reading(pg_log, source="auto")
        writer.await_more()
        running.stop()
        pg_log.until(lambda: slots(pg_log) == [])
        reading(pg_log, source="auto")


def test_with_the_broker_away_auto_gives_its_slot_up(pg_log: Rig) -> None:
    with writing(pg_log) as writer:
        running = reading(pg_log, source="auto")
        pg_log.broker.down.set()
        pg_log.until(lambda: source(running) == "poll" and "broker" in reason(running))
        pg_log.until(lambda: slots(pg_log) == [])
        writer.await_more()
        pg_log.broker.down.clear()
        pg_log.until(lambda: source(running) == "wal")


def test_with_the_broker_away_a_slot_that_is_kept_is_kept(pg_log: Rig) -> None:
    with writing(pg_log) as writer:
        running = reading(pg_log)
        pg_log.broker.down.set()
        writer.await_more()
        assert source(running) == "wal"
        pg_log.broker.down.clear()


@pytest.fixture
def plain(pg_log: Rig, other: Connection) -> Iterator[Store]:
    """The same database for a role that may use our tables, and may not replicate."""
    role = f"r{id(pg_log)}"
    other.execute(Sql(f"create role {role} login password 'x'", rows=False))
    for what in ("schema", "all tables in schema", "all sequences in schema"):
        other.execute(Sql(f"grant all on {what} bothends to {role}", rows=False))
    other.execute(Sql(f"grant execute on function pg_control_system() to {role}", rows=False))
    yield open_store(pg_log.store.url.replace("//postgres@", f"//{role}:x@"), pg_log.store.schema)
    pg_log.close()
    other.execute(Sql(f"drop owned by {role}", rows=False))
    other.execute(Sql(f"drop role {role}", rows=False))


def start_plain(rig: Rig, plain: Store, **settings: Any) -> Running:
    own, rig.store = rig.store, plain
    running = rig.start(**SOON | settings)
    rig.store = own
    return running


def test_a_role_that_may_not_replicate_polls_and_says_why(pg_log: Rig, plain: Store) -> None:
    pg_log.broker.create_topic("t", 1)
    pg_log.add("t", b"k", b"1")
    running = start_plain(pg_log, plain)
    pg_log.until(lambda: running.saw(SourceChanged) and "REPLICATION" in reason(running))
    pg_log.until(pg_log.drained)
    assert pg_log.bodies("t") == [b"1"]


@pytest.mark.parametrize("told", ["wal", "message"])
def test_a_role_that_may_not_publish_says_what_the_owner_must_run(
    pg_log: Rig, plain: Store, other: Connection, told: str
) -> None:
    other.execute(Sql(f"alter role {urlsplit(plain.url).username} replication", rows=False))
    running = start_plain(pg_log, plain, source=told)
    pg_log.until(lambda: running.saw(SourceChanged) and "let " in reason(running))
    statement = reason(running).partition(" run: ")[2]
    assert statement.startswith("create publication")
    other.execute(Sql(statement, rows=False))
    pg_log.until(lambda: source(running) == told)


def test_a_stand_by_that_may_not_drop_a_slot_goes_on_standing_by(
    pg_log: Rig, plain: Store, other: Connection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The slot keeps more than this relay was told, and its role may not end it: that is said; nothing begins anew."""
    monkeypatch.setattr("bothends.relay.log.BUDGET_PAUSE_S", 0.05)
    reading(pg_log, wal_budget_mb=1_000_000)
    other.begin()  # an old transaction: the log is kept from its beginning
    other.execute(Sql("create temporary table old (x text)", rows=False))
    bulk = pg_log.store.connect(name="bulk")
    bulk.execute(Sql("create table bulk (x text)", rows=False))
    bulk.execute(Sql("insert into bulk select repeat('x', 1000) from generate_series(1, 25000)", rows=False))
    running = start_plain(pg_log, plain, wal_budget_mb=16)
    pg_log.until(lambda: caplog.text.count("could not be dropped") >= 2)
    assert len(running.saw(Registered)) == 1
    assert not running.saw(StoreLost)
    assert source(running) == "standby"
    other.rollback()
    bulk.execute(Sql("drop table bulk", rows=False))
    bulk.close()


def test_a_large_transaction_is_read_in_pages(pg_log: Rig, other: Connection) -> None:
    pg_log.broker.create_topic("t", 1)
    reading(pg_log, batch_max=100)
    other.execute(Sql(
        "insert into bothends.outbox (id, source, type, topic, key, body, time) select 'big' || n, 's', 't', 't', 'k', "
        "convert_to(n::text, 'UTF8'), '2026-01-01T00:00:00Z' from generate_series(1, 5000) n", rows=False))
    pg_log.until(pg_log.drained)
    assert pg_log.bodies("t") == [b"%d" % n for n in range(1, 5001)]
    assert max(len(batch) for batch in pg_log.broker.sent) <= 100


def test_reading_asks_the_database_for_nothing_per_page(
    pg_log: Rig, monkeypatch: pytest.MonkeyPatch, other: Connection
) -> None:
    """Counted: while 200 transactions come through, only what goes by the clock is asked."""
    asked: list[str] = []
    running = reading(pg_log)
    pg_log.broker.create_topic("t", 1)
    pg_log.add("t", b"k", b"warm")
    pg_log.until(pg_log.drained)
    execute = RelayExecutor.execute

    def counting(self: RelayExecutor, statement: Sql, /) -> Any:
        asked.append(statement.text)
        return execute(self, statement)

    monkeypatch.setattr(RelayExecutor, "execute", counting)
    for n in range(200):
        pg_log.add("t", b"k", b"%d" % n)
    pg_log.until(lambda: sum(event.records for event in running.saw(Published)) >= 201)
    assert not [text for text in asked if "outbox o" in text or "unnest(:hwms" in text]
    assert len([text for text in asked if "pg_logical_emit_message" in text]) < 50


def test_the_slot_of_wal_is_on_record_after_auto_and_before(pg_log: Rig) -> None:
    """Else nobody watches what it keeps."""
    reading(pg_log, source="auto").stop()
    reading(pg_log).stop()
    on_record = [(name,) for name, _ in slots(pg_log)]
    assert pg_log.sql("select slot from bothends.relay_log where not messages") == on_record
    reading(pg_log, source="auto")
    assert pg_log.sql("select slot from bothends.relay_log where not messages") == on_record


def test_what_a_slot_does_not_show_is_polled_before_it_is_read() -> None:
    """A commit may be in the log before it is visible: then neither a later snapshot nor a position tells. The seam does."""
    pages = SimpleNamespace(lanes=EVERY_LANE, caught_up=True, streams=[Stream(EVERY_LANE, 5, "7:9:7")])
    log = Log.__new__(Log)
    log._pipeline = SimpleNamespace(pages=pages)  # type: ignore[assignment]
    log._messages = False
    log.phase, log._seam = Phase.CLAIMING, Snapshot.parse("8:8:")  # 7 had committed, by the log, when the slot was made
    assert not log.holding
    pages.streams = [Stream(EVERY_LANE, 5, "9:9:")]
    assert log.holding
    pages.caught_up = False
    assert not log.holding


PUBLICATION = "bothends_outbox"
CHANGES = {
    "its table taken out and put back": [
        f"alter publication {PUBLICATION} drop table bothends.outbox",
        f"alter publication {PUBLICATION} add table bothends.outbox"],
    "inserts left out": [
        f"alter publication {PUBLICATION} set (publish = 'update')",
        f"alter publication {PUBLICATION} set (publish = 'insert')"],
    "dropped and made again": [
        f"drop publication {PUBLICATION}", f"create publication {PUBLICATION} for table bothends.outbox with "
        "(publish = 'insert', publish_via_partition_root = true)"],
}


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("running", [True, False], ids=["while it is read", "while no relay runs"])
def test_a_publication_that_was_changed_hides_nothing(pg_log: Rig, what: str, running: bool) -> None:
    """What commits while the publication shows less is in no stream; a cursor or a position beyond it would lose it."""
    pg_log.broker.create_topic("t", 1)
    reader = reading(pg_log)
    pg_log.add("t", b"k", b"0")
    pg_log.until(pg_log.drained)
    if not running:
        reader.stop()
    for n, change in enumerate(CHANGES[what]):
        pg_log.sql(f"do $$ begin {change}; end $$")
        pg_log.add("t", b"k", b"%d" % (n + 1))
    if not running:
        reader = reading(pg_log)
    pg_log.add("t", b"k", b"3")
    pg_log.until(pg_log.drained)
    firsts = list(dict.fromkeys(pg_log.bodies("t")))
    # What comes after it may have been read before anybody knew: late is all that it is then.
    assert (sorted(str(body) for body in firsts) if running else [str(body) for body in firsts]) == [
        str(b"%d" % n) for n in range(4)]
    pg_log.until(lambda: source(reader) == "wal")


@pytest.mark.parametrize("definition", [
    "for table bothends.relays with (publish = 'insert', publish_via_partition_root = true)",
    "for table bothends.outbox with (publish = 'insert')",
    "for table bothends.outbox with (publish = 'update', publish_via_partition_root = true)",
    "for table bothends.outbox where (version > 5) with (publish = 'insert', publish_via_partition_root = true)",
])
def test_a_publication_that_does_not_show_the_outbox_is_not_read(pg_log: Rig, definition: str) -> None:
    pg_log.broker.create_topic("t", 1)
    pg_log.sql(f"do $$ begin create publication {PUBLICATION} {definition}; end $$")
    running = pg_log.start(**SOON)
    pg_log.add("t", b"k", b"1", b"2")
    pg_log.until(lambda: running.saw(SourceChanged) and "does not show" in reason(running))
    pg_log.until(pg_log.drained)
    assert pg_log.bodies("t") == [b"1", b"2"]
    assert slots(pg_log) == []
    pg_log.sql(f"do $$ begin drop publication {PUBLICATION}; end $$")
    pg_log.until(lambda: source(running) == "wal")


def test_a_column_that_came_and_went_is_passed_by_a_new_slot(pg_log: Rig) -> None:
    pg_log.broker.create_topic("t", 1)
    running = reading(pg_log)
    pg_log.sql("do $$ begin alter table bothends.outbox add column more int; end $$")
    pg_log.add("t", b"k", b"1")
    pg_log.until(lambda: source(running) == "poll")
    pg_log.sql("do $$ begin alter table bothends.outbox drop column more; end $$")
    pg_log.add("t", b"k", b"2")
    pg_log.until(lambda: source(running) == "wal")
    pg_log.until(pg_log.drained)
    assert list(dict.fromkeys(pg_log.bodies("t"))) == [b"1", b"2"]
