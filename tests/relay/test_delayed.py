"""Delayed events: published when they are due, in nobody's way until then, whatever the date."""

from __future__ import annotations

import pytest

from bothends.errors import Blame
from bothends.relay.events import Dead, Registered
from tests.relay.conftest import Rig
from tests.relay.unruly import refuse


def test_a_future_event_does_not_hold_its_key_and_comes_when_due(rig: Rig) -> None:
    rig.broker.create_topic("t", 1)
    rig.start()
    rig.add("t", b"k", b"later", due_in_s=3600.0)
    rig.add("t", b"k", b"now")
    rig.until(lambda: rig.bodies("t") == [b"now"])
    rig.until(lambda: rig.sql(f"select count(*) from {rig.table('delayed')}") == [(1,)])
    earlier = "- 3601" if rig.sqlite else "- interval '3601 s'"
    rig.sql(f"update {rig.table('delayed')} set deliver_at = deliver_at {earlier} returning seq")
    rig.until(rig.drained)
    assert rig.bodies("t") == [b"now", b"later"]


def test_what_is_due_when_the_cursor_passes_is_published_at_once(rig: Rig) -> None:
    rig.broker.create_topic("t", 1)
    rig.add("t", b"k", b"past", due_in_s=-5.0)
    rig.add("t", b"k", b"now")
    rig.start()
    rig.until(rig.drained)
    assert rig.bodies("t") == [b"past", b"now"]


def test_a_due_event_waits_behind_its_held_key(rig: Rig) -> None:
    rig.broker.create_topic("t", 1)
    rig.broker.judge = lambda record: refuse(Blame.EVENT, "invalid") if record.value == b"bad" else None
    rig.add("t", b"k", b"bad")
    rig.add("t", b"k", b"due", due_in_s=0.2)
    relay = rig.start()
    rig.until(lambda: relay.saw(Dead))
    rig.until(lambda: [row[:2] for row in rig.held()] == [(b"bad", "dead"), (b"due", "behind")])
    rig.broker.judge = lambda record: None
    rig.sql(f"update {rig.table('held')} set owner_request = 'retry' where state = 'dead' returning seq")
    rig.until(rig.drained)
    assert rig.bodies("t") == [b"bad", b"due"]


@pytest.mark.parametrize("request_", ["retry", "skip", "discard"])
def test_a_due_event_that_was_added_before_what_holds_its_key_waits_for_nobody(rig: Rig, request_: str) -> None:
    """It waited for ever once an operator had the other one tried again, which waited for it."""
    rig.broker.create_topic("t", 1)
    rig.broker.judge = lambda record: refuse(Blame.EVENT, "invalid") if record.value == b"bad" else None
    rig.add("t", b"k", b"due", due_in_s=0.5)
    rig.add("t", b"k", b"bad", b"after")
    rig.start()
    rig.until(lambda: rig.bodies("t") == [b"due"])
    rig.until(lambda: [row[:2] for row in rig.held()] == [(b"bad", "dead"), (b"after", "behind")])
    rig.broker.judge = lambda record: None
    rig.sql(f"update {rig.table('held')} set owner_request = '{request_}' where state = 'dead' returning seq")
    rig.until(lambda: rig.bodies("t") == [b"due", *([b"bad"] if request_ == "retry" else []), b"after"])


def test_an_event_that_is_delayed_and_held_goes_out_once_more_and_stops_nobody(rig: Rig) -> None:
    """Read by the log while it was due later, and again by polling, from an older cursor, when it was due and its key held."""
    rig.broker.create_topic("t", 1)
    rig.broker.judge = lambda record: refuse(Blame.EVENT, "invalid") if record.value == b"bad" else None
    rig.add("t", b"k", b"bad")
    rig.add("t", b"k", b"due", due_in_s=600.0)
    running = rig.start()
    rig.until(lambda: running.saw(Dead) and rig.sql(f"select count(*) from {rig.table('delayed')}") == [(1,)])
    fields = "seq, lane, id, source, type, topic, key, body, content_type, time, version, attributes, headers"
    held, delayed = rig.table("held"), rig.table("delayed")
    rig.sql(f"insert into {held} ({fields}, state) select {fields}, 'behind' from {delayed} returning seq")
    rig.sql(f"update {delayed} set deliver_at = {'0' if rig.sqlite else 'now()'} returning seq")
    rig.until(lambda: rig.sql(f"select count(*) from {delayed}") == [(0,)])
    rig.broker.judge = lambda record: None
    rig.sql(f"update {held} set owner_request = 'retry' where state = 'dead' returning seq")
    rig.until(rig.drained)
    assert rig.bodies("t") == [b"bad", b"due"]
    assert len(running.saw(Registered)) == 1


def test_a_delayed_event_that_is_rejected_is_tried_alone_and_counted(rig: Rig) -> None:
    rig.broker.create_topic("t", 1)
    rig.broker.judge = lambda record: refuse(Blame.EVENT, "policy") if record.value == b"bad" else None
    rig.add("t", b"k", b"bad", b"good", due_in_s=0.05)
    rig.start()
    rig.until(lambda: [row[:3] for row in rig.held()] == [(b"bad", "dead", 3), (b"good", "behind", 0)])


@pytest.mark.needs("postgresql")
@pytest.mark.parametrize("source", ["poll", "wal"])
def test_strange_dates_never_break_a_page(request: pytest.FixtureRequest, source: str) -> None:
    pg: Rig = request.getfixturevalue("pg" if source == "poll" else "pg_log")
    pg.broker.create_topic("t", 2)
    for n, date in enumerate(("infinity", "9999-12-31", "294000-01-01", "-infinity")):
        pg.add("t", b"odd%d" % n, b"odd%d" % n, deliver_at=date)
    for n in range(10):
        pg.add("t", b"k%d" % n, b"%d" % n)
    pg.start()
    pg.until(lambda: len(pg.records("t")) == 11)
    assert b"odd3" in pg.bodies("t")
    pg.until(lambda: pg.sql("select count(*) from bothends.delayed") == [(3,)])


def test_a_place_that_comes_back_does_not_hasten_what_is_due_later(rig: Rig) -> None:
    rig.start()
    rig.add("t", b"k", b"now")
    rig.until(lambda: [row[:2] for row in rig.held()] == [(b"now", "place")])
    rig.add("t", b"k", b"later", due_in_s=3600.0)
    rig.until(lambda: rig.sql(f"select count(*) from {rig.table('delayed')}") == [(1,)])
    rig.broker.create_topic("t", 1)
    rig.until(lambda: not rig.held())
    assert rig.bodies("t") == [b"now"]


def test_a_key_that_is_free_again_does_not_hasten_what_is_due_later(rig: Rig) -> None:
    rig.broker.create_topic("t", 1)
    rig.broker.judge = lambda record: refuse(Blame.EVENT, "invalid") if record.value == b"bad" else None
    relay = rig.start()
    rig.add("t", b"k", b"bad")
    rig.until(lambda: relay.saw(Dead))
    rig.add("t", b"k", b"later", due_in_s=3600.0)
    rig.add("t", b"k", b"behind")
    rig.until(lambda: [row[0] for row in rig.held()] == [b"bad", b"behind"])
    assert rig.sql(f"select count(*) from {rig.table('delayed')}") == [(1,)]
    rig.broker.judge = lambda record: None
    rig.sql(f"update {rig.table('held')} set owner_request = 'retry' where state = 'dead' returning seq")
    rig.until(lambda: not rig.held())
    assert rig.bodies("t") == [b"bad", b"behind"]
