"""The relay that reads the log: what it notes as done is done, and what goes beside the stream goes on."""

from __future__ import annotations

from typing import Any

import pytest

from bothends.relay.events import Fenced, SourceChanged
from bothends.relay.log import Log
from bothends.stores.steps import Sql
from tests.relay.conftest import Rig
from tests.relay.test_log import SOON, end_sender, reading, slots, source
from tests.relay.test_log_messages import say

pytestmark = pytest.mark.needs("postgresql")


def test_a_marker_of_an_earlier_stream_is_not_taken_for_this_one_s(pg_log: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream begins again before the first stream's marker. Its cursor must wait for the second one's: else what lies
    between is passed over by whoever goes on from that cursor."""
    rig = pg_log
    rig.broker.create_topic("t", 1)
    writer = rig.store.connect(name="writer")
    bodies = [b"%d" % n for n in range(100)]
    started, streams = Log._started, list[object]()

    def add_before(log: Log, now: float) -> None:
        if log._reading not in streams:
            streams.append(log._reading)
            if len(streams) == 2:
                for body in bodies:  # polling is over, the marker is not yet there
                    writer.begin()
                    writer.execute(rig.insert("t", b"k", body))
                    writer.commit()
        started(log, now)

    def stall(record: Any) -> None:
        if len(streams) == 2 and record.value == b"15":
            rig.broker.silent.set()

    monkeypatch.setattr(Log, "_started", add_before)
    rig.broker.judge = stall
    running = reading(rig, batch_max=10, in_flight_max=2)
    end_sender(rig)
    rig.until(rig.broker.silent.is_set)
    rig.until(lambda: rig.sql("select count(*) from bothends.relay_progress where published >= 10")[0][0])
    rig.sql("delete from bothends.relays returning id")  # as if it had been killed
    rig.until(lambda: running.saw(Fenced))
    rig.broker.silent.clear()
    rig.until(lambda: source(running) == "wal")
    rig.add("t", b"k", b"last")
    rig.until(lambda: b"last" in rig.bodies("t"))
    assert list(dict.fromkeys(rig.bodies("t"))) == [*bodies, b"last"]
    writer.close()


@pytest.mark.parametrize("mode", ["wal", "message"])
def test_a_position_in_another_server_s_log_is_not_believed(pg_log: Rig, mode: Any) -> None:
    """The tables were dumped there and restored here; this log is shorter."""
    rig = pg_log
    rig.source = mode
    rig.broker.create_topic("t", 1)
    rig.sql("update bothends.relay_log set position = 'FFFFFF/0' returning 1")

    def add(body: bytes) -> None:
        if mode == "message":
            say(rig, "t", b"k", body)
        else:
            rig.add("t", b"k", body)

    running = rig.start(**SOON)
    rig.until(lambda: source(running) == mode)
    add(b"1")
    rig.until(lambda: rig.bodies("t") == [b"1"])
    running.stop()
    add(b"2")
    again = rig.start(**SOON)
    rig.until(lambda: source(again) == mode)
    add(b"3")
    rig.until(lambda: list(dict.fromkeys(rig.bodies("t"))) == [b"1", b"2", b"3"])


def test_a_new_slot_that_waits_for_the_broker_keeps_to_its_budget(pg_log: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table cannot be read up to its beginning while the broker is away, maybe for days."""
    monkeypatch.setattr("bothends.relay.log.BUDGET_S", 0.05)
    pg_log.broker.create_topic("t", 1)
    pg_log.broker.down.set()
    pg_log.add("t", b"k", b"1")
    running = pg_log.start(**SOON, wal_budget_mb=16)
    pg_log.until(lambda: any("up to the slot" in event.reason for event in running.saw(SourceChanged)))
    bulk = pg_log.store.connect(name="bulk")
    bulk.execute(Sql("create table bulk (x text)", rows=False))
    bulk.execute(Sql("insert into bulk select repeat('x', 1000) from generate_series(1, 25000)", rows=False))
    pg_log.until(lambda: any("budget" in event.reason for event in running.saw(SourceChanged)))
    pg_log.until(lambda: not slots(pg_log))
    pg_log.broker.down.clear()
    pg_log.until(pg_log.drained)
    bulk.execute(Sql("drop table bulk", rows=False))
    bulk.close()


def test_what_is_due_goes_while_pages_of_the_log_are_on_their_way(pg_log: Rig) -> None:
    """Under load there always are some."""
    def sent(body: bytes) -> bool:
        return any(record.value == body for batch in pg_log.broker.sent for record in batch)

    pg_log.broker.create_topic("t", 1)
    pg_log.broker.create_topic("d", 1)
    reading(pg_log)
    pg_log.add("d", b"d", b"due", due_in_s=3600.0)
    pg_log.until(lambda: pg_log.sql("select count(*) from bothends.delayed") == [(1,)])
    pg_log.broker.silent.set()
    pg_log.add("t", b"k", b"slow")
    pg_log.until(lambda: sent(b"slow"))
    pg_log.sql("update bothends.delayed set deliver_at = deliver_at - interval '3601 s' returning seq")
    pg_log.until(lambda: sent(b"due"))
    pg_log.broker.silent.clear()
    pg_log.until(pg_log.drained)
