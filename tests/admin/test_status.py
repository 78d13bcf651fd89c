"""Status, health and trace: right numbers, also with nobody at work; bounded; strange rows are shown, not fatal."""

import uuid
from typing import Any

import pytest

from bothends.admin import health
from bothends.admin import status as module
from bothends.admin.amounts import amount, size
from bothends.admin.status import consumer_status, outbox_status
from bothends.admin.trace import trace
from bothends.core.sources import ON_THE_WAY, Facts, Slot, plan
from bothends.ids import derived_id
from bothends.stores.postgresql.relay import PostgresqlRelay
from bothends.stores.postgresql.slots import SlotSteps
from bothends.stores.steps import Sql
from tests.admin.shelf import Shelf


def test_an_empty_database(shelf: Shelf) -> None:
    found = shelf.run(outbox_status(shelf.admin))
    assert (found["waiting"], found["oldest_age_s"], found["drain_s"], found["relays"]) == (0, None, 0.0, [])
    assert shelf.run(consumer_status(shelf.admin)) == []


def test_what_waits_by_topic_with_no_relay_alive(shelf: Shelf) -> None:
    shelf.outbox(3, topic="orders.events")
    shelf.outbox(2, topic="stock.events", key=None)
    found = shelf.run(outbox_status(shelf.admin))
    assert found["waiting"] == 5
    assert not found["at_least"]
    assert {t["topic"]: t["waiting"] for t in found["topics"]} == {"orders.events": 3, "stock.events": 2}
    assert found["oldest_age_s"] > 86_400
    assert found["drain_s"] is None
    [finding] = health.of_outbox("orders", found)
    assert "no relay is alive" in finding.what
    assert "bothends relay" in finding.fix


def test_counts_stop(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COUNT_MAX", 3)
    shelf.outbox(5)
    found = shelf.run(outbox_status(shelf.admin))
    assert found["at_least"]
    assert found["waiting"] == 5
    assert found["topics"][0]["waiting"] == 3


def test_held_dead_and_delayed_are_told_apart(shelf: Shelf) -> None:
    shelf.held(1, "dead", topic="a")
    shelf.held(2, "behind", topic="a")
    shelf.held(3, "place", topic="b")
    found = shelf.run(outbox_status(shelf.admin))
    topics = {t["topic"]: t for t in found["topics"]}
    assert (topics["a"]["dead"], topics["a"]["held"], topics["b"]["held"]) == (1, 1, 1)
    whats = [finding.what for finding in health.of_outbox("orders", found)]
    assert any("topic b is missing" in what for what in whats)
    assert any("1 dead event of topic a" in what for what in whats)


def test_a_live_relay_is_listed_and_a_dead_one_is_not(shelf: Shelf) -> None:
    shelf.relay("alive", left_s=3, state="paused", detail="unreachable")
    shelf.relay("gone", left_s=-3)
    found = shelf.run(outbox_status(shelf.admin))
    assert [(r["name"], r["state"]) for r in found["relays"]] == [("alive", "paused")]
    assert ["paused" in f.what for f in health.of_outbox("orders", found)] == [True]


def test_where_each_relay_reads_and_why(shelf: Shelf) -> None:
    shelf.relay("told", left_s=9, wants="poll")
    shelf.relay("auto", left_s=9, wants="auto", reason="wal_level of the server is not logical")
    shelf.relay("reads", left_s=9, wants="wal", source="wal")
    shelf.relay("waits", left_s=9, wants="wal", source="standby", reason="another relay reads the log")
    found = shelf.run(outbox_status(shelf.admin))
    assert [(r["name"], r["wants"], r["source"], r["reason"]) for r in found["relays"]] == [
        ("told", "poll", "poll", ""), ("auto", "auto", "poll", "wal_level of the server is not logical"),
        ("reads", "wal", "wal", ""), ("waits", "wal", "standby", "another relay reads the log")]
    assert health.of_outbox("orders", found) == []


@pytest.mark.parametrize(("wants", "waits"), [("wal", False), ("message", True)])
def test_a_relay_that_polls_though_it_was_told_to_read_is_a_finding(shelf: Shelf, wants: str, waits: bool) -> None:
    shelf.relay("one", left_s=9, wants=wants, reason="the role has no REPLICATION attribute")
    [finding] = health.of_outbox("orders", shelf.run(outbox_status(shelf.admin)))
    assert f"relay one polls, though relay_source is {wants}: the role has no REPLICATION attribute" in finding.what
    assert ("waits in the log" in finding.what) is waits
    assert finding.fix.startswith("let a superuser run `alter role ... replication` for the relay's role; the relay tries")


@pytest.mark.parametrize("reason", sorted(ON_THE_WAY))
@pytest.mark.parametrize("wants", ["wal", "message"])
def test_a_relay_on_its_way_to_the_log_is_no_finding(shelf: Shelf, wants: str, reason: str) -> None:
    """It takes over from one that died, and waits for its lease."""
    shelf.relay("one", left_s=9, wants=wants, reason=reason)
    assert health.of_outbox("orders", shelf.run(outbox_status(shelf.admin))) == []


ALL_RIGHT = Facts(
    180_000, logical=True, recovering=False, may_replicate=True, slots_free=1, senders_free=1, pollers=0, slot=None,
    position=None)


@pytest.mark.parametrize(("wrong", "fix"), [
    ({"recovering": True}, "URL of the primary"), ({"version": 130_000}, "upgrade the server"),
    ({"logical": False}, "wal_level = logical"), ({"may_replicate": False}, "alter role"),
    ({"pollers": 1}, "the same relay_source"), ({"senders_free": 0}, "raise max_wal_senders"),
    ({"slots_free": 0}, "raise max_replication_slots"),
    ({"slot": Slot(True, None, 0, 0, lost=False)}, "end the transactions"),
])
def test_each_reason_to_poll_has_its_fix(shelf: Shelf, wrong: dict[str, Any], fix: str) -> None:
    act, reason = plan(ALL_RIGHT._replace(**wrong), keeps=True, messages=True)
    assert act == "poll"
    shelf.relay("one", left_s=9, wants="message", reason=reason)
    [finding] = health.of_outbox("orders", shelf.run(outbox_status(shelf.admin)))
    assert fix in finding.fix
    assert "docs/" not in finding.fix


def test_a_database_without_a_log_has_no_slots(shelf: Shelf) -> None:
    assert shelf.run(outbox_status(shelf.admin))["slots"] == []  # nobody has read anything yet


@pytest.mark.needs("postgresql")
def test_slots_and_what_they_hold_back(pg_shelf: Shelf) -> None:
    slot = f"test_{uuid.uuid4().hex}"
    pg_shelf.sql("update {s}.relay_log set slot = :slot, position = '1/16' where not messages", slot=slot)
    [missing] = pg_shelf.run(outbox_status(pg_shelf.admin))["slots"]
    assert missing == {"slot": slot, "carries": "rows", "position": "1/16", "active": False, "wal_status": "missing",
                       "retained_bytes": None, "temporary": False}
    pg_shelf.connection.execute(Sql("select pg_create_logical_replication_slot(:slot, 'pgoutput')", {"slot": slot}))
    try:
        before = pg_shelf.run(outbox_status(pg_shelf.admin))["slots"][0]["retained_bytes"]
        pg_shelf.sql("select pg_logical_emit_message(true, 'somebody', repeat('x', 100000))")
        [there] = pg_shelf.run(outbox_status(pg_shelf.admin))["slots"]
        assert (there["wal_status"], there["active"]) == ("reserved", False)
        assert there["retained_bytes"] >= before + 100_000
    finally:
        pg_shelf.connection.execute(Sql("select pg_drop_replication_slot(:slot)", {"slot": slot}))


@pytest.mark.needs("postgresql")
def test_the_temporary_slot_of_auto_is_listed_beside_what_wal_has_left(pg_shelf: Shelf) -> None:
    pg_shelf.relay("reads", left_s=9, wants="auto", source="wal")
    kept, number = pg_shelf.run(SlotSteps("bothends").name()), pg_shelf.one("select id from {s}.relays")
    pg_shelf.sql("update {s}.relay_log set relay = :relay, slot = :slot where not messages", relay=number, slot=kept)
    pg_shelf.connection.execute(Sql("select pg_create_logical_replication_slot(:slot, 'pgoutput')", {"slot": kept}))
    try:
        pg_shelf.connection.execute(
            Sql("select pg_create_logical_replication_slot(:slot, 'pgoutput', true)", {"slot": f"{kept}_{number}"}))
        status = pg_shelf.run(outbox_status(pg_shelf.admin))
        assert [(s["slot"], s["temporary"], s["active"]) for s in status["slots"]] == [
            (kept, False, False), (f"{kept}_{number}", True, True)]
        [finding] = health.of_outbox("orders", status)  # at once, however little it is
        assert f"no live relay reads slot {kept}, which has rows" in finding.what
        assert "relay reads drops it when it holds back more than wal_budget_mb" in finding.fix
        assert f"select pg_drop_replication_slot('{kept}')" in finding.fix
    finally:
        pg_shelf.connection.execute(Sql("select pg_drop_replication_slot(:slot)", {"slot": kept}))


@pytest.mark.needs("postgresql")
def test_a_slot_of_messages_that_was_lost_is_a_finding_for_days(pg_shelf: Shelf) -> None:
    steps = PostgresqlRelay("bothends").log(messages=True)
    pg_shelf.run(steps.confess("be_m", 0x1_0000_0010, 0x1_0000_0FF0, "there was no slot"))
    status = pg_shelf.run(outbox_status(pg_shelf.admin))
    [lost] = status["slots_lost"]
    assert (lost["slot"], lost["why"], lost["after"]) == ("be_m", "there was no slot", "1/10")
    [finding] = health.of_outbox("orders", status)
    assert "slot be_m was lost (there was no slot): messages that were added between 1/10 and 1/FF0" in finding.what
    pg_shelf.sql("update {s}.audit set at = at - interval '8 days'")
    assert pg_shelf.run(outbox_status(pg_shelf.admin))["slots_lost"] == []


SLOT = {"slot": "be_orders", "carries": "rows", "position": "0/0", "active": False, "wal_status": "reserved",
        "retained_bytes": 3_200_000_000, "temporary": False}
MISSING = SLOT | {"wal_status": "missing", "retained_bytes": None}


@pytest.mark.parametrize(("slot", "wants", "says"), [
    (SLOT, "wal", ""), (SLOT, "", "slot be_orders holds back 3.2 GB of the write-ahead log"),
    (SLOT, "poll", "no live relay reads slot be_orders, which has rows and holds back 3.2 GB of the log"),
    (SLOT, "auto", "no live relay reads slot be_orders, which has rows"),  # it reads, but a slot of its own
    (SLOT, "message", "no live relay reads slot be_orders, which has rows"), (SLOT | {"carries": "messages"}, "message", ""),
    (SLOT | {"carries": "messages"}, "wal", "no live relay reads slot be_orders, which has messages"),
    (SLOT | {"carries": "messages", "retained_bytes": 10}, "poll", "which has messages and holds back 0 kB"),
    (SLOT | {"retained_bytes": 1_000_000}, "poll", "which has rows and holds back 1.0 MB of the log"),
    (SLOT | {"temporary": True, "active": True}, "auto", ""),
    (SLOT | {"carries": "messages", "retained_bytes": 10}, "", "0 kB of the write-ahead log, with the messages in it"),
    (SLOT | {"retained_bytes": 1_000_000}, "", ""), (MISSING, "", ""),
    (MISSING, "poll", ""), (MISSING | {"carries": "messages"}, "poll", ""), (MISSING | {"carries": "messages"}, "auto", ""),
    (SLOT | {"wal_status": "unreserved"}, "wal", "slot be_orders is unreserved"),
    (SLOT | {"wal_status": "lost", "retained_bytes": None}, "wal", "slot be_orders is lost: it held back more than"),
    (SLOT | {"wal_status": "lost", "carries": "messages"}, "message", "the messages that were not read are gone"),
])
def test_what_is_wrong_with_a_slot(shelf: Shelf, slot: dict[str, object], wants: str, says: str) -> None:
    if wants:
        shelf.relay("one", left_s=9, wants=wants, source="standby")
    status = shelf.run(outbox_status(shelf.admin)) | {"slots": [slot]}
    found = health.of_outbox("orders", status)
    assert [says in finding.what for finding in found] == ([True] if says else [])


def test_rates_and_time_to_drain(shelf: Shelf) -> None:
    lanes = -1  # every bit
    snapshot = ", snapshot" if shelf.store.dialect == "postgresql" else ""
    value = ", pg_current_snapshot()" if snapshot else ""
    shelf.outbox(10)
    for ago in (10.0, 5.0):
        shelf.sql(f"insert into {{s}}.relay_progress (relay, lanes, hwm{snapshot}, published, at) "
                  f"values (1, :lanes, 0{value}, 300, {{ago:ago}})", lanes=lanes, ago=ago)
    found = shelf.run(outbox_status(shelf.admin))
    assert found["out_per_s"] == pytest.approx(60, rel=0.1)  # two steps were looked at, and they reach back 10 s
    assert found["waiting"] == 10


def test_what_the_cursor_covers_does_not_wait(shelf: Shelf) -> None:
    if shelf.store.dialect != "postgresql":
        shelf.outbox(1)  # there what was published is deleted
        assert shelf.run(outbox_status(shelf.admin))["waiting"] == 1
        return
    shelf.outbox(4)
    shelf.sql("insert into {s}.relay_progress (relay, lanes, hwm, snapshot) "
              "select 1, -1, max(seq), pg_current_snapshot() from {s}.outbox")
    assert shelf.run(outbox_status(shelf.admin))["waiting"] == 0
    shelf.outbox(2)
    assert shelf.run(outbox_status(shelf.admin))["waiting"] == 2
    # A row whose transaction was running when the cursor was taken is late, not published.
    late = shelf.store.connect()
    late.begin()
    late.execute(shelf.admin.sql("insert into {s}.outbox (id, source, type, topic, time) values ('l', 's', 't', 'x', '')"))
    shelf.sql("insert into {s}.relay_progress (relay, lanes, hwm, snapshot) "
              "select 1, -1, (select last_value from {s}.outbox_seq), pg_current_snapshot()")
    late.commit()
    late.close()
    found = shelf.run(outbox_status(shelf.admin))
    assert {t["topic"]: t["waiting"] for t in found["topics"]} == {"x": 1}


def test_consumers(shelf: Shelf) -> None:
    shelf.consumer("inventory.idle", owner="")
    shelf.letter("m1", age_s=50)
    shelf.letter("m2", fingerprint="other")
    shelf.block(b"k1", "held")
    shelf.block(b"k2", "retrying")
    shelf.block(b"k3", "schema")
    shelf.parked("m3")
    for n in range(3):
        shelf.inbox(f"p{n}", "p", age_s=n)
    idle, stock = shelf.run(consumer_status(shelf.admin))
    assert (idle["consumer"], idle["dead"], idle["parked_keys"], idle["processed_per_s"]) == ("inventory.idle", 0, 0, 0.0)
    assert (stock["dead"], stock["fingerprints"], stock["parked_keys"], stock["held_keys"], stock["parked"]) == (2, 2, 3, 1, 1)
    assert 49 < stock["oldest_dead_age_s"] < 60
    assert stock["processed_per_s"] > 0
    whats = " | ".join(f.what for f in health.of_consumer(stock))
    assert "2 dead letters of 2 kinds" in whats
    assert "team-stock" in whats
    assert "1 key is held" in whats
    assert "newer event version" in whats
    assert health.of_consumer(idle) == []


@pytest.mark.parametrize("time", ["", "not a time", "99999-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "infinity"])
def test_a_strange_time_is_not_fatal(shelf: Shelf, time: str) -> None:
    shelf.outbox(1)
    shelf.sql("update {s}.outbox set time = :time", time=time)
    assert shelf.run(outbox_status(shelf.admin))["waiting"] == 1


def test_the_life_of_one_event(shelf: Shelf) -> None:
    [id_] = shelf.outbox(1)
    shelf.inbox(id_, "d")
    number = shelf.letter(id_, inbox=None)
    caused = derived_id("orders", id_, "inventory.stock", 2)
    shelf.sql("insert into {s}.outbox (id, source, type, topic, time) values (:id, 'inventory', 'stock.updated', 'x', 't')",
              id=caused)
    found = shelf.run(trace(shelf.admin, id_))
    assert [entry["place"] for entry in found] == ["outbox", "inbox", "dead letter", "caused"]
    assert found[1]["state"] == "dead"
    assert found[2]["dead_letter"] == number
    assert found[3]["id"] == caused
    assert shelf.run(trace(shelf.admin, "nobody")) == []


def test_a_life_is_told_in_order_of_time(shelf: Shelf) -> None:
    [id_] = shelf.outbox(1)
    caused = derived_id("orders", id_, "inventory.stock", 0)
    shelf.consumer("eu-inventory.stock")  # ids are derived of the name without its prefix
    shelf.sql("update {s}.consumers set service = 'inventory'")
    shelf.inbox(id_, "p", consumer="eu-inventory.stock", age_s=10)
    shelf.letter(id_, consumer="eu-inventory.stock", inbox=None, age_s=500)
    shelf.letter(id_, consumer="inventory.other", inbox=None, age_s=700)
    shelf.sql("insert into {s}.outbox (id, source, type, topic, time) values (:id, 'inventory', 'stock.updated', 'x', "
              "'2026-01-02T00:00:00Z')", id=caused)
    found = shelf.run(trace(shelf.admin, id_))
    assert [(entry["place"], entry.get("consumer")) for entry in found] == [
        ("outbox", None), ("caused", "eu-inventory.stock"), ("dead letter", "inventory.other"),
        ("dead letter", "eu-inventory.stock"), ("inbox", "eu-inventory.stock")]


def test_sizes() -> None:
    assert [size(n) for n in (0, 999_400, 1_500_000, 999_900_000, 2_000_000_000)] == [
        "0 kB", "999 kB", "1.5 MB", "999.9 MB", "2.0 GB"]


def test_one_is_not_many(shelf: Shelf) -> None:
    assert [amount(n, "relay") for n in (0, 1, 2)] == ["0 relays", "1 relay", "2 relays"]
    shelf.outbox(1)
    shelf.letter("m1")
    shelf.block(b"k2", "schema")
    [outbox] = health.of_outbox("orders", shelf.run(outbox_status(shelf.admin)))
    assert outbox.what == "1 event waits and no relay is alive"
    dead, schema = health.of_consumer(shelf.run(consumer_status(shelf.admin))[0])
    assert dead.what.startswith("1 dead letter of 1 kind, the oldest")
    assert schema.what == "1 key waits for a worker that knows a newer event version"
