"""A place that is away holds its own events; a broker that is away holds everything; neither costs an attempt."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from bothends.core.retry import Retry
from bothends.errors import Blame
from bothends.ports import Outgoing
from bothends.relay.events import BrokerPaused, BrokerResumed, PlaceAway, PlaceBack, Registered, Rejected
from bothends.relay.term import Term
from tests.relay.conftest import Rig
from tests.relay.unruly import refuse


def test_a_missing_topic_holds_only_its_own_events(rig: Rig) -> None:
    rig.broker.create_topic("here", 2)
    rig.add("gone", b"k", b"1", b"2")
    rig.add("gone", None, b"n")
    rig.add("here", b"k", b"1", b"2", b"3")
    relay = rig.start()
    rig.until(lambda: rig.bodies("here") == [b"1", b"2", b"3"])
    rig.until(lambda: len(rig.held()) == 3)
    assert {row[1:3] for row in rig.held()} == {("place", 0)}
    rig.until(lambda: "gone" in rig.sql(f"select detail from {rig.table('relays')}")[0][0])
    rig.add("gone", b"k", b"3")
    rig.add("here", b"k", b"4")
    rig.until(lambda: rig.bodies("here", b"k")[-1] == b"4")
    rig.until(lambda: len(rig.held()) == 4)
    rig.broker.create_topic("gone", 2)
    rig.until(rig.drained)
    assert rig.bodies("gone", b"k") == [b"1", b"2", b"3"]
    assert len(rig.records("gone")) == 4
    assert relay.saw(PlaceAway)[0].topic == "gone"
    assert relay.saw(PlaceBack) == [PlaceBack("gone")]
    assert not relay.saw(Rejected)


def test_new_events_do_not_overtake_those_that_wait_for_their_place(rig: Rig) -> None:
    rig.broker.create_topic("t", 1)
    rig.broker.away.add("t")
    relay = rig.start()
    rig.add("t", b"k", *(b"%d" % n for n in range(250)))
    rig.until(lambda: len(rig.held()) == 250)
    back = threading.Event()

    def returns() -> bool:
        if not back.is_set():
            back.set()
            rig.broker.away.clear()
        return bool(relay.saw(PlaceBack))

    rig.until(returns)
    for n in range(250, 400, 10):
        rig.add("t", b"k", *(b"%d" % m for m in range(n, n + 10)))
    rig.until(rig.drained)
    assert rig.bodies("t") == [b"%d" % n for n in range(400)]


def test_a_restart_finds_the_places_that_wait(rig: Rig) -> None:
    rig.add("gone", b"k", b"1", b"2")
    first = rig.start()
    rig.until(lambda: len(rig.held()) == 2)
    first.stop()
    rig.broker.create_topic("gone", 1)
    rig.start()
    rig.until(rig.drained)
    assert rig.bodies("gone") == [b"1", b"2"]


def test_an_event_that_is_itself_bad_does_not_keep_its_place_away(rig: Rig) -> None:
    rig.add("gone", b"bad", b"bad", b"after")
    rig.add("gone", b"good", b"1")
    rig.start()
    rig.until(lambda: len(rig.held()) == 3)
    rig.broker.judge = lambda record: refuse(Blame.EVENT, "invalid") if record.value == b"bad" else None
    rig.broker.create_topic("gone", 1)
    rig.until(lambda: rig.bodies("gone") == [b"1"])
    rig.until(lambda: [row[:2] for row in rig.held()] == [(b"bad", "dead"), (b"after", "behind")])


def test_a_topic_that_refuses_by_record_alone_is_probed_with_one(rig: Rig) -> None:
    """Metadata says that the topic is there; writing is denied all the same."""
    rig.broker.create_topic("t", 1)
    denied = threading.Event()
    denied.set()

    def judge(record: Outgoing):  # type: ignore[no-untyped-def]
        return refuse(Blame.PLACE, "denied") if denied.is_set() and record.topic == "t" else None

    rig.broker.judge = judge
    rig.add("t", b"k", *(b"%d" % n for n in range(50)))
    relay = rig.start()
    rig.until(lambda: rig.broker.alone(b"0") >= 2)
    assert all(rig.broker.alone(b"%d" % n) == 0 for n in range(1, 50))
    denied.clear()
    rig.until(rig.drained)
    assert rig.bodies("t") == [b"%d" % n for n in range(50)]
    assert not relay.saw(Rejected)


def test_an_outage_costs_no_attempt_and_keeps_the_order(rig: Rig) -> None:
    rig.broker.create_topic("t", 4)
    relay = rig.start(silence_s=0.5, in_flight_max=4)
    rig.add("t", b"k0", b"0")
    rig.until(rig.drained)
    rig.broker.down.set()
    rig.connection.begin()
    for n in range(1, 1000):
        rig.connection.execute(rig.insert("t", b"k%d" % (n % 5), b"%d" % n))
    rig.connection.commit()
    rig.until(lambda: relay.saw(BrokerPaused))
    rig.until(lambda: rig.sql(f"select state from {rig.table('relays')}") == [("paused",)])
    handed_over = sum(map(len, rig.broker.sent))
    assert handed_over <= 1 + 4 * 100, "it claimed on although the broker was away"
    assert rig.held() == []
    rig.broker.down.clear()
    rig.until(rig.drained)
    assert relay.saw(BrokerResumed)
    for n in range(5):
        bodies = list(dict.fromkeys(int(b or b"0") for b in rig.bodies("t", b"k%d" % n)))
        assert bodies == sorted(bodies)
        assert len(bodies) == 200
    assert not relay.saw(Rejected)


def test_a_broker_that_fails_records_opens_the_breaker_and_kills_nothing(rig: Rig) -> None:
    rig.broker.create_topic("t", 1)
    failing = threading.Event()
    failing.set()
    rig.broker.judge = lambda record: refuse(Blame.BROKER, "fatal") if failing.is_set() else None
    rig.add("t", b"k", b"1", b"2", b"3")
    relay = rig.start()
    rig.until(lambda: len(relay.saw(BrokerPaused)) >= 2)
    failing.clear()
    rig.until(rig.drained)
    assert rig.bodies("t") == [b"1", b"2", b"3"]
    assert not relay.saw(Rejected)


def test_a_publisher_that_says_nothing_is_given_up(rig: Rig) -> None:
    rig.broker.create_topic("t", 1)
    rig.broker.silent.set()
    rig.add("t", b"k", b"1", b"2")
    relay = rig.start(silence_s=0.2)
    rig.until(lambda: any(p.abandoned for p in rig.broker.publishers))
    rig.broker.silent.clear()
    rig.until(rig.drained)
    bodies = rig.bodies("t")
    assert list(dict.fromkeys(bodies)) == [b"1", b"2"]
    ids = {value: {dict(r.headers)["ce_id"] for r in rig.records("t") if r.value == value} for value in (b"1", b"2")}
    assert all(len(found) == 1 for found in ids.values()), "published again under another id"
    assert not relay.saw(Rejected)


@pytest.mark.parametrize("waiting", [240, 260, 1_100])
def test_a_place_that_is_back_is_looked_through_to_its_end(rig: Rig, waiting: int) -> None:
    """Also where the first hundreds that waited for it belong to a key that waits for another reason."""
    rig.broker.create_topic("t", 1)
    rig.broker.judge = lambda record: refuse(Blame.EVENT, "policy") if record.value == b"bad" else None
    rig.start(publish=Retry(attempts=1, then="hold"))
    rig.add("t", b"hot", b"bad")
    rig.until(lambda: [row[1] for row in rig.held()] == ["dead"])
    rig.broker.away.add("t")
    rig.add("t", b"first", b"0")
    rig.until(lambda: [row[1] for row in rig.held()] == ["dead", "place"])
    rig.add("t", b"hot", *[b"%d" % n for n in range(waiting)])
    rig.add("t", b"cold", b"1", b"2")
    rig.until(lambda: len(rig.held()) == waiting + 4)
    rig.broker.away.clear()
    rig.until(lambda: rig.bodies("t", b"cold") == [b"1", b"2"])
    rig.until(lambda: {row[1] for row in rig.held()} == {"dead", "behind"})


def test_a_broker_that_is_away_costs_no_turns(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """With records on their way too: the relay turned 45,000 times a second, on a processor of its own."""
    turns, plain = 0, Term._turn

    def turn(self: Term, *arguments: Any, **options: Any) -> None:
        nonlocal turns
        turns += 1
        plain(self, *arguments, **options)

    monkeypatch.setattr(Term, "_turn", turn)
    rig.broker.create_topic("t", 1)
    relay = rig.start(silence_s=0.2, lease_s=2.0, renew_s=0.25)
    rig.until(lambda: relay.saw(Registered))
    rig.broker.silent.set()
    rig.broker.down.set()
    rig.add("t", b"k", b"1")
    rig.until(lambda: relay.saw(BrokerPaused))
    rig.until(lambda: len(relay.saw(BrokerPaused)) > 2)
    before, began_s = turns, time.monotonic()
    rig.until(lambda: len(relay.saw(BrokerPaused)) > 4)
    assert (turns - before) / (time.monotonic() - began_s) < 1_500, "a second"
    rig.broker.silent.clear()
    rig.broker.down.clear()
    rig.until(rig.drained)
    assert rig.bodies("t") == [b"1"]
