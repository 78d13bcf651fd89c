"""The ordinary way: everything that is committed is published, in order per key, once."""

from __future__ import annotations

import random
import threading
from pathlib import Path

from bothends.errors import ConfigError
from bothends.relay.events import Published, Registered, Stopped
from bothends.wakeup import database_of, ring
from tests.relay.conftest import Rig


def test_events_arrive_in_order_with_their_bytes_and_names(rig: Rig) -> None:
    rig.broker.create_topic("orders", 4)
    relay = rig.start()
    rig.add("orders", b"a", b"1", b"2", b"3")
    rig.add("orders", b"\xff\x00", b"\x00\xff")
    rig.add("orders", None, b"no key")
    rig.until(rig.drained)
    assert rig.bodies("orders", b"a") == [b"1", b"2", b"3"]
    assert rig.bodies("orders", b"\xff\x00") == [b"\x00\xff"]
    assert len(rig.records("orders")) == 5
    record = next(r for r in rig.records("orders") if r.value == b"1")
    headers = dict(record.headers)
    assert headers["ce_source"] == b"test"
    assert headers["ce_type"] == b"thing.happened"
    assert headers["ce_id"].startswith(b"e")
    assert headers["content-type"] == b"application/json"
    rig.until(lambda: sum(p.records for p in relay.saw(Published)) == 5)


def test_a_tombstone_an_empty_body_and_null_are_three_things(rig: Rig) -> None:
    rig.broker.create_topic("t", 1)
    rig.start()
    for body in (None, b"", b"null"):
        rig.add("t", b"k", body)  # type: ignore[arg-type]
    rig.until(rig.drained)
    assert rig.bodies("t") == [None, b"", b"null"]


def test_no_key_and_an_empty_key_differ(rig: Rig) -> None:
    rig.broker.create_topic("t", 3)
    rig.start()
    rig.add("t", b"", *(b"%d" % n for n in range(20)))
    rig.add("t", None, *(b"n%d" % n for n in range(20)))
    rig.until(rig.drained)
    assert rig.bodies("t", b"") == [b"%d" % n for n in range(20)]
    assert sorted(r.value or b"" for r in rig.records("t") if r.key is None) == sorted(b"n%d" % n for n in range(20))


def test_many_keys_over_many_pages(rig: Rig) -> None:
    rig.broker.create_topic("t", 8)
    chance = random.Random(7)
    sent: dict[bytes, list[bytes]] = {}
    rig.start(batch_max=64)
    for n in range(30):
        key = b"k%d" % chance.randrange(40)
        bodies = [b"%d.%d" % (n, m) for m in range(chance.randrange(1, 60))]
        sent.setdefault(key, []).extend(bodies)
        rig.add("t", key, *bodies)
    rig.until(rig.drained)
    for key, bodies in sent.items():
        assert rig.bodies("t", key) == bodies


def test_what_was_there_before_the_relay_started_comes_first(rig: Rig) -> None:
    rig.broker.create_topic("t", 1)
    rig.add("t", b"k", *(b"%d" % n for n in range(300)))
    rig.start()
    rig.add("t", b"k", *(b"%d" % n for n in range(300, 350)))
    rig.until(rig.drained)
    assert rig.bodies("t") == [b"%d" % n for n in range(350)]


def test_a_restart_goes_on_where_the_last_one_stopped(rig: Rig) -> None:
    rig.broker.create_topic("t", 1)
    first = rig.start()
    rig.add("t", b"k", b"1")
    rig.until(rig.drained)
    first.stop()
    assert first.saw(Stopped)[-1].drained
    rig.add("t", b"k", b"2")
    rig.start()
    rig.until(rig.drained)
    assert rig.bodies("t") == [b"1", b"2"]


def test_stopping_frees_the_lanes_at_once(rig: Rig) -> None:
    first = rig.start()
    rig.until(lambda: first.relay.ready.is_set())
    first.stop()
    assert rig.sql(f"select count(*) from {rig.table('relays')}") == [(0,)]
    assert rig.sql(f"select count(*) from {rig.table('relay_lanes')} where relay is null") == [(64,)]


def test_an_outbox_belongs_to_one_broker(rig: Rig) -> None:
    rig.broker.create_topic("t", 1)
    first = rig.start()
    rig.until(lambda: first.relay.ready.is_set())
    first.stop()
    rig.sql(f"update {rig.table('meta')} set value = 'kafka:other' where name = 'broker' returning value")
    refused = rig.start()
    refused.thread.join(10)
    assert isinstance(refused.error, ConfigError)
    assert "kafka:other" in str(refused.error)
    assert "--adopt" in str(refused.error)
    rig.running.remove(refused)
    rig.start(adopt=True)
    rig.add("t", b"k", b"1")
    rig.until(rig.drained)


def test_a_row_of_somebody_else_that_cannot_be_read_stops_nobody(rig: Rig) -> None:
    rig.broker.create_topic("t", 2)
    for n in range(10):
        bad = {3: {"attributes": "{broken"}, 5: {"headers": b"\xff\xff\xff"}}.get(n, {})
        rig.add("t", b"k%d" % n, b'{"truncated' if n == 7 else b"%d" % n, **bad)
    rig.start()
    rig.until(lambda: len(rig.records("t")) == 8)
    rig.until(lambda: len(rig.held()) == 2)
    assert [(body, state, reason) for body, state, _, reason in rig.held()] == [
        (b"3", "dead", "unreadable"), (b"5", "dead", "unreadable")]
    assert b'{"truncated' in rig.bodies("t")


def test_a_ring_wakes_a_relay_that_sleeps(rig: Rig, short_path: Path) -> None:
    where = str(short_path)
    rig.broker.create_topic("t", 1)
    relay = rig.start(runtime_dir=where, poll_idle_s=600.0, poll_busy_s=600.0, renew_s=0.5, lease_s=60.0)
    rig.until(lambda: relay.saw(Registered))
    rang = threading.Event()

    def published() -> bool:
        if not rang.is_set():
            ring(database_of(rig.store.url, rig.store.schema), where)
        return bool(relay.saw(Published))

    rig.add("t", b"k", b"1")
    rig.until(published)
    assert rig.bodies("t") == [b"1"]
