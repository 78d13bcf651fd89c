"""The relay that reads messages: events that are in the log and in no table [R8]."""

from __future__ import annotations

import os
import threading
import time
import uuid
from typing import Any

import pytest

from bothends.drafts import Draft
from bothends.errors import Blame
from bothends.message import Record
from bothends.relay.events import BrokerPaused, Published, SourceChanged
from bothends.stores.postgresql.messages import EVENTS_MAX, pack, prefix
from bothends.stores.steps import Sql
from tests.relay.conftest import Rig, Running
from tests.relay.test_log import SOON, drop_slot, end_sender, reason, slots, source
from tests.relay.unruly import UnrulyPublisher, refuse

pytestmark = pytest.mark.needs("postgresql")


@pytest.fixture
def rig(pg_log: Rig) -> Rig:
    pg_log.source = "message"
    pg_log.broker.create_topic("t", 3)
    return pg_log


def reading(rig: Rig, **settings: Any) -> Running:
    running = rig.start(**SOON | settings)
    rig.until(lambda: source(running) == "message")
    return running


def emit(rig: Rig, topic: str, key: bytes | None, body: bytes | None, **columns: Any) -> Sql:
    values: dict[str, Any] = {
        "id": uuid.uuid4().hex, "source": "test", "type": "thing.happened", "topic": topic, "key": key, "body": body,
        "content_type": "application/json", "time": "2026-01-01T00:00:00.000000Z", "version": 1, "attributes": {},
        "headers": [], "deliver_at": None, "delay_s": None, "strict": False, "given_id": False,
    }
    content = pack([Draft(**values | columns)])
    return Sql("select pg_logical_emit_message(true, :prefix, :content)", {"prefix": prefix("bothends"), "content": content})


def say(rig: Rig, topic: str, key: bytes | None, *bodies: bytes) -> None:
    rig.connection.begin()
    for body in bodies:
        rig.connection.execute(emit(rig, topic, key, body))
    rig.connection.commit()


def arrived(rig: Rig, *bodies: bytes, key: bytes = b"k") -> bool:
    return list(dict.fromkeys(rig.bodies("t", key))) == list(bodies)


def test_messages_arrive_in_commit_order_and_rolled_back_ones_never(rig: Rig) -> None:
    running = reading(rig)
    other = rig.store.connect(name="other")
    other.begin()
    other.execute(emit(rig, "t", b"k", b"never"))
    other.rollback()
    other.begin()
    other.execute(emit(rig, "t", b"k", b"3"))
    say(rig, "t", b"k", b"1", b"2")
    other.commit()
    other.close()
    rig.until(lambda: rig.bodies("t") == [b"1", b"2", b"3"])
    rig.until(lambda: sum(event.records for event in running.saw(Published)) == 3)
    assert rig.sql("select count(*) from bothends.outbox") == [(0,)]


def test_all_that_an_event_has_arrives(rig: Rig) -> None:
    reading(rig)
    headers = [("tenant", b"\xff\x00"), ("tenant", b"two")]
    rig.connection.begin()
    rig.connection.execute(emit(
        rig, "t", b"k", b'{"a": 1}', version=3, attributes={"subject": "s"}, headers=headers))
    rig.connection.execute(emit(rig, "t", None, None, content_type=None))
    rig.connection.commit()
    rig.until(lambda: len(rig.records("t")) == 2)
    by_key: dict[bytes | None, Record] = {record.key: record for record in rig.records("t")}
    assert by_key[b"k"].value == b'{"a": 1}'
    assert [pair for pair in by_key[b"k"].headers if pair[0] == "tenant"] == headers
    assert (b"3", b"s") == (dict(by_key[b"k"].headers)["ce_dataversion"], dict(by_key[b"k"].headers)["ce_subject"])
    assert by_key[None].value is None


def test_while_no_relay_runs_the_slot_keeps_them(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bothends.relay.reading.STORE_IDLE_S", 0.1)
    first = reading(rig)
    say(rig, "t", b"k", b"0")
    rig.until(lambda: arrived(rig, b"0"))
    said = rig.sql("select pg_current_wal_insert_lsn()::text")[0][0]
    stored = "select position >= cast(:said as pg_lsn) from bothends.relay_log where messages"
    rig.until(lambda: rig.sql(stored, said=said)[0][0])
    first.stop()
    say(rig, "t", b"k", b"1", b"2")
    second = reading(rig)
    say(rig, "t", b"k", b"3")
    rig.until(lambda: arrived(rig, b"0", b"1", b"2", b"3"))
    assert sum(event.records for event in second.saw(Published)) == 3  # not the first one again


def test_its_sender_is_ended_again_and_again(rig: Rig) -> None:
    reading(rig)
    for n in range(5):
        say(rig, "t", b"k", b"%d" % (2 * n), b"%d" % (2 * n + 1))
        end_sender(rig)
    rig.until(lambda: arrived(rig, *(b"%d" % n for n in range(10))))


def test_a_stand_by_takes_over(rig: Rig) -> None:
    first = reading(rig)
    second = rig.start(**SOON)
    rig.until(lambda: source(second) == "standby")
    say(rig, "t", b"k", b"1")
    first.stop()
    say(rig, "t", b"k", b"2")
    rig.until(lambda: source(second) == "message" and arrived(rig, b"1", b"2"))


def test_a_slot_that_is_gone_is_confessed(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    running = reading(rig)
    say(rig, "t", b"k", b"1")
    rig.until(lambda: arrived(rig, b"1"))
    running.stop()
    drop_slot(rig)
    say(rig, "t", b"k", b"lost")
    reading(rig)
    say(rig, "t", b"k", b"2")
    rig.until(lambda: arrived(rig, b"1", b"2"))
    ((verb, detail),) = rig.sql("select verb, detail from bothends.audit where verb = 'lost the slot'")
    assert verb
    assert "after" in detail
    assert "are lost" in caplog.text


def test_a_slot_of_which_nothing_is_known_is_read_from_where_it_begins(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """A relay that was killed between making it and noting it; or somebody who dropped it and made it again."""
    reading(rig).stop()
    rig.sql("update bothends.relay_log set position = null where messages")
    say(rig, "t", b"k", b"1")
    running = reading(rig)
    rig.until(lambda: arrived(rig, b"1"))
    assert rig.sql("select count(*) from bothends.audit") == [(0,)]
    running.stop()
    ((slot, *_),) = rig.sql("select slot_name from pg_replication_slots where database = current_database()")
    drop_slot(rig)
    say(rig, "t", b"k", b"lost")
    rig.sql("select pg_create_logical_replication_slot(:slot, 'pgoutput')", slot=slot)
    say(rig, "t", b"k", b"2")
    reading(rig)
    rig.until(lambda: arrived(rig, b"1", b"2"))
    assert rig.sql("select count(*) from bothends.audit where verb = 'lost the slot'") == [(1,)]
    assert "are lost" in caplog.text


def test_one_that_is_rejected_holds_its_key_alone_and_order_is_kept(rig: Rig) -> None:
    reading(rig)
    bad = threading.Event()
    bad.set()
    rig.broker.judge = lambda r: refuse(Blame.EVENT) if r.value == b"bad" and bad.is_set() else None
    say(rig, "t", b"k", b"1", b"bad", b"2")
    say(rig, "t", b"other", b"free")
    rig.until(lambda: rig.bodies("t", b"other") == [b"free"])
    rig.until(lambda: len(rig.held()) == 2)
    say(rig, "t", b"k", b"3")
    bad.clear()
    rig.until(lambda: arrived(rig, b"1", b"bad", b"2", b"3"))
    rig.until(lambda: not rig.held())


def test_messages_of_a_topic_that_is_missing_wait_beside_and_others_go_on(rig: Rig) -> None:
    reading(rig)
    rig.broker.away.add("missing")
    rig.broker.judge = lambda r: refuse(Blame.PLACE) if "missing" in rig.broker.away and r.topic == "missing" else None
    say(rig, "missing", b"k", b"1", b"2")
    say(rig, "t", b"k", b"free")
    rig.until(lambda: arrived(rig, b"free") and len(rig.held()) == 2)
    say(rig, "missing", b"k", b"3")
    rig.until(lambda: len(rig.held()) == 3)
    rig.broker.create_topic("missing", 1)
    rig.broker.away.clear()
    rig.until(lambda: rig.bodies("missing") == [b"1", b"2", b"3"])


def test_before_the_budget_is_reached_they_are_put_into_the_table(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker is away, the log grows: nothing of it is lost, its slot keeps no more than it may, and order is kept."""
    monkeypatch.setattr("bothends.relay.log.BUDGET_S", 0.05)
    reading(rig, wal_budget_mb=16)
    say(rig, "t", b"k", b"0")
    rig.until(lambda: arrived(rig, b"0"))
    rig.broker.down.set()
    bulk = rig.store.connect(name="bulk")
    bulk.execute(Sql("create table bulk (x text)", rows=False))
    for n in range(1, 11):
        say(rig, "t", b"k", b"%d" % (2 * n - 1), b"%d" % (2 * n))
        bulk.execute(Sql("insert into bulk select repeat('x', 1000) from generate_series(1, 2000)", rows=False))
    rig.until(lambda: rig.sql("select count(*) from bothends.outbox")[0][0] >= 20)
    assert arrived(rig, b"0")
    rig.broker.down.clear()
    say(rig, "t", b"k", b"21")
    rig.until(lambda: arrived(rig, *(b"%d" % n for n in range(22))))
    assert [name for name, _ in slots(rig) if name.endswith("_m")]
    bulk.execute(Sql("drop table bulk", rows=False))
    bulk.close()


def test_what_cannot_be_put_into_the_table_is_not_done(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its page has left the stream by then; the position must not pass it."""
    monkeypatch.setattr("bothends.relay.log.BUDGET_S", 0.05)
    monkeypatch.setattr("bothends.relay.reading.STORE_BUSY_S", -1.0)  # the position is stored at once
    running = reading(rig, wal_budget_mb=0)
    rig.broker.down.set()
    say(rig, "t", b"k", b"0")
    rig.until(lambda: running.saw(BrokerPaused))
    rig.connection.execute(Sql("alter table bothends.outbox add constraint no_two check (body <> '2')", rows=False))
    say(rig, "t", b"k", b"1")
    say(rig, "t", b"k", b"2")
    rig.until(lambda: any("no_two" in event.reason for event in running.saw(SourceChanged)))
    rig.connection.execute(Sql("alter table bothends.outbox drop constraint no_two", rows=False))
    say(rig, "t", b"k", b"3")
    rig.broker.down.clear()
    rig.until(lambda: arrived(rig, b"0", b"1", b"2", b"3"))


def test_what_lies_in_the_table_goes_too(rig: Rig) -> None:
    reading(rig)
    rig.add("t", b"row", b"1")
    say(rig, "t", b"k", b"2")
    rig.until(lambda: rig.bodies("t", b"row") == [b"1"] and arrived(rig, b"2"))
    rig.until(rig.drained)


def test_somebody_else_s_messages_are_theirs(rig: Rig) -> None:
    reading(rig)
    for name in ("other", "bothends.bothends2", "bothends.bothends.marker"):
        rig.sql("select pg_logical_emit_message(true, :name, 'x')::text", name=name)
    say(rig, "t", b"k", b"1")
    rig.until(lambda: arrived(rig, b"1"))


def test_a_slot_that_was_prepared_keeps_what_is_said_before_the_first_relay(rig: Rig) -> None:
    from bothends.stores.postgresql.slots import SlotSteps
    from bothends.stores.steps import run

    steps = SlotSteps("bothends", messages=True)
    name = run(steps.prepare(), rig.connection)
    assert name
    assert run(steps.prepare(), rig.connection) is None  # once is enough
    say(rig, "t", b"k", b"1", b"2")
    reading(rig)
    rig.until(lambda: arrived(rig, b"1", b"2"))
    assert [slot for slot, _ in slots(rig)] == [name]


def test_a_slot_that_is_gone_is_prepared_anew_and_what_came_in_between_is_confessed(rig: Rig) -> None:
    """Messages were given up and are taken up again: from then on nothing is missed, though no relay runs."""
    from bothends.stores.postgresql.slots import SlotSteps
    from bothends.stores.steps import run

    reading(rig).stop()
    drop_slot(rig)
    assert run(SlotSteps("bothends", messages=True).prepare(), rig.connection)
    say(rig, "t", b"k", b"1")
    reading(rig)
    rig.until(lambda: arrived(rig, b"1"))
    assert rig.sql("select count(*) from bothends.audit where verb = 'lost the slot'") == [(1,)]


def test_a_slot_that_schema_apply_is_still_making_is_left_to_it(rig: Rig) -> None:
    """It waits for open transactions. A relay that starts meanwhile ended it, and said that events were lost."""
    from bothends.stores.postgresql.slots import SlotSteps
    from bothends.stores.steps import run

    other, maker = rig.store.connect(name="open"), rig.store.connect(name="apply")
    other.begin()
    other.execute(Sql("create temporary table old (x text)", rows=False))
    made: list[str | None] = []
    thread = threading.Thread(target=lambda: made.append(run(SlotSteps("bothends", messages=True).prepare(), maker)))
    thread.start()
    rig.until(lambda: slots(rig))
    running = rig.start(**SOON)
    rig.until(lambda: running.saw(SourceChanged) and "making the slot" in reason(running))
    other.rollback()
    thread.join(10)
    assert made == [slots(rig)[0][0]]
    rig.until(lambda: source(running) == "message")
    say(rig, "t", b"k", b"1")
    rig.until(lambda: arrived(rig, b"1"))
    assert rig.sql("select count(*) from bothends.audit where verb = 'lost the slot'") == [(0,)]
    other.close()
    maker.close()


def test_a_message_that_is_none_of_ours_is_a_dead_letter_with_its_bytes_and_holds_nobody(rig: Rig) -> None:
    """Anybody who may connect may write one."""
    reading(rig)
    say(rig, "t", b"k", b"1")
    rig.sql("select pg_logical_emit_message(true, 'bothends.bothends', 'junk'::bytea)::text")
    say(rig, "t", b"k", b"2")
    rig.until(lambda: arrived(rig, b"1", b"2"))
    rig.until(lambda: rig.held() == [(b"junk", "dead", 0, "unreadable")])


def test_a_message_of_more_events_than_anybody_packs_is_none_of_ours(rig: Rig) -> None:
    """A message is handed over whole: one that is larger than the client's queue kept its relay for ever."""
    reading(rig)
    one = Draft("e", "s", "y", "t", b"k", b"b", None, "2026-01-01T00:00:00Z", 1, {}, [], None, None, False, False)
    rig.connection.execute(Sql(
        "select pg_logical_emit_message(false, :prefix, :content)",
        {"prefix": prefix("bothends"), "content": pack([one] * (EVENTS_MAX + 1))}))
    say(rig, "t", b"k", b"1")
    rig.until(lambda: arrived(rig, b"1"))
    rig.until(lambda: [row[1:] for row in rig.held()] == [("dead", 0, "unreadable")])


def test_a_page_that_finds_no_room_is_tried_again_now_and_then(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """More waits in the log, so whoever waits for that turns without pause."""
    refused: list[float] = []
    plain = UnrulyPublisher.send

    def full(self: UnrulyPublisher, batch: int, records: Any) -> None:
        if "probe" not in self.name and room.is_set() is False:
            refused.append(time.monotonic())
            raise refuse(Blame.BROKER, "full")
        plain(self, batch, records)

    room = threading.Event()
    monkeypatch.setattr(UnrulyPublisher, "send", full)
    running = reading(rig, batch_max=10)
    say(rig, "t", b"k", *[b"%d" % n for n in range(100)])
    rig.until(lambda: len(refused) >= 20)
    mean_s = (refused[19] - refused[0]) / 19
    room.set()
    rig.until(lambda: arrived(rig, *[b"%d" % n for n in range(100)]))
    assert mean_s > 0.002, "5 ms are meant"
    running.stop()


@pytest.mark.parametrize("columns", [
    {"key": os.urandom(6000)}, {"topic": "missing" + os.urandom(6000).hex()}, {"id": os.urandom(6000).hex()},
    {"source": os.urandom(6000).hex()},
], ids=lambda columns: str(*columns))
def test_a_message_that_no_index_could_hold_is_none_of_ours(rig: Rig, columns: dict[str, Any]) -> None:
    """It would be held, for its place is away, and never could be: the relay would begin anew for ever."""
    rig.broker.judge = lambda r: refuse(Blame.PLACE) if r.topic.startswith("missing") else None
    reading(rig)
    rig.connection.begin()
    rig.connection.execute(emit(rig, **{"topic": "missing", "key": b"x", "body": b"long"} | columns))
    rig.connection.commit()
    say(rig, "t", b"k", b"1")
    rig.until(lambda: arrived(rig, b"1"))
    rig.until(lambda: [row[1:] for row in rig.held()] == [("dead", 0, "unreadable")])
