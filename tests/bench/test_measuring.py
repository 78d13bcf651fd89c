"""The smallest run of each bench against the real services: the keys that the page and others read."""

from __future__ import annotations

import importlib
from typing import Any

import psycopg
import pytest

from bench import growth, places
from bench.__main__ import NAMES
from bench.backlog import growth as memory_growth
from bench.backlog import rates
from bench.children import Sample, child, until
from bench.kill import KINDS, LEFT
from bench.peers.rounds import Sizes
from bench.shop import BODY, backlog, publish, records, sales

FIGURES = {
    "relay": {"client_per_s", "relay_per_s", "ratio", "client_cpu_us", "relay_cpu_us"},
    "latency": {
        f"{source}_{name}" for source in ("poll", "wal", "message") for name in (
            "rate_per_s", "p50_ms", "p99_ms", "max_ms", "with_commit_p50_ms", "with_commit_p99_ms", "commit_p50_ms")},
    "worker": {"one_by_one_1_per_s", "worker_1_per_s", "ratio_1", "one_by_one_2_per_s", "worker_2_per_s", "ratio_2",
               "worker_batch_1_per_s", "ratio_batch_1", "worker_batch_2_per_s", "ratio_batch_2"},
    "enqueue": {"bare_us", "bare+trip_us", "add_us", "pipelined_bare_us", "pipelined_add_us", "add_over_trip",
                "add_over_bare", "pipelined_add_over_bare", "message_us", "pipelined_message_us", "message_over_trip",
                "message_over_bare", "pipelined_message_over_bare"},
    "failing_key": {"healthy_per_s", "failing_per_s", "healthy_p99_ms", "failing_p99_ms", "throughput_ratio", "p99_ratio"},
    "backlog": {"small_per_s", "large_per_s", "slowest_window_per_s", "rss_max_mb", "rss_growth_mb", "ratio"},
    "pinned": {
        *(f"{when}_{what}" for when in ("before", "last") for what in (
            "claim_p50_ms", "claim_p99_ms", "settle_p50_ms", "lease_p50_ms", "confirmed_p50_ms", "confirmed_p99_ms",
            "empty_p50_ms", "claim_cpu_us", "relay_cpu_us")),
        "claim_p50_ratio", "claim_p99_ratio", "claim_cpu_ratio", "settle_p50_ratio", "server_cpu_s", "outbox_kb",
        "relay_progress_kb", "relays_kb", "relay_lanes_kb", "relays_dead",
    },
    "kill": {
        *(f"{kind}_{what}" for kind in ("relay", "worker_supervisor", LEFT) for what in (
            "p50_ms", "p99_ms", "p100_ms", "gap_s")),
        "calm_p50_ms", "calm_p99_ms", "longest_gap_s", "longest_gap_left_s", "doubled",
    },
    "rebalance": {
        *(f"{end}_{what}" for end in ("stopped", "killed") for what in (
            "events", "duplicates", "per_million", "p50_ms", "p99_ms", "max_ms")), "doubled",
    },
    "embedded": {"add_alone_per_s", "add_together_per_s", "relay_per_s", "worker_per_s"},
    "peers": {
        f"{peer}_{what}" for peer in ("raw", "ours-poll", "one-by-one") for what in (
            "drain_per_s", "live_per_s", "live_warm_per_s", "written_per_s", "p50_ms", "p99_ms", "cpu_s",
            "postgresql_cpu_s", "kafka_cpu_s",
            "rss_mb", "swapped", "again")
    } - {"raw_postgresql_cpu_s", "raw_live_per_s", "raw_live_warm_per_s", "raw_written_per_s", "raw_p50_ms", "raw_p99_ms",
         "one-by-one_live_per_s", "one-by-one_live_warm_per_s", "one-by-one_written_per_s"},
}
GOALS = {
    "relay": ["S1"], "latency": ["S2"] * 6, "worker": ["S3"] * 3, "enqueue": ["S4"] * 4, "failing_key": ["S5", "S5"],
    "backlog": ["S6", "S6"], "growth": ["S8"] * 3, "pinned": ["R7"] * 3, "kill": ["S7", "S7", "P3"], "rebalance": ["P3"],
    "embedded": [], "scale": [], "peers": ["S1"],
}
SMALLER: dict[str, dict[str, Any]] = {
    "relay": {"EVENTS_QUICK": 500}, "latency": {"RATE": 100}, "worker": {"EVENTS_QUICK": 80, "MEMBERS": 2},
    "enqueue": {"ROUNDS_QUICK": 1, "ROUND": 2, "WARM_ROUNDS": 0},
    "failing_key": {"EVENTS_QUICK": 60, "KEYS": 20, "PACE": 50},
    "backlog": {"WAITING_QUICK": 3_000, "SMALL": 300},
    "growth": {"SIZES_QUICK": (0, 200), "HANDLED_QUICK": 20, "ADDED_QUICK": 5, "SMALL": 300},
    "pinned": {"RATE": 50},
    "kill": {"RATE_QUICK": 50, "KINDS": {name: KINDS[name] for name in ("relay", "worker_supervisor", LEFT)}},
    "rebalance": {"RATE": 100},
    "scale": {},
    "embedded": {"EVENTS_QUICK": 120, "ALONE_QUICK": 20},
    "peers": {"QUICK": Sizes(backlog=200, live=100, seconds=0.4, warm_seconds=0.1)},
}


@pytest.mark.needs("postgresql", "kafka")
@pytest.mark.parametrize("name", NAMES)
def test_the_smallest_run_yields_what_is_documented(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = importlib.import_module(f"bench.{name}")
    for constant, value in SMALLER[name].items():
        monkeypatch.setattr(bench, constant, value)
    monkeypatch.setattr("bench.backlog.SMALL", 300)  # growth uses its small backlogs
    found: dict[str, Any] = bench.measure(1, True)
    assert set(found) == {"title", "how", "silent_on", "setting", "figures", "goals", "series", "table"}
    assert [goal["tag"] for goal in found["goals"]] == GOALS[name]
    for figure in found["figures"].values():
        assert {"unit", "median", "min", "max"} <= set(figure)
        assert figure["min"] <= figure["median"] <= figure["max"]
    if name in FIGURES:
        assert set(found["figures"]) == FIGURES[name]
    elif name == "growth":
        assert {f"{what}_{size}_us" for what in ("add", "relay", "handle") for size in (0, 200)} <= set(found["figures"])
    for row in found["series"].get("points", []):
        assert len(row) == len(found["series"]["columns"])


def test_windows_have_equal_numbers_of_events() -> None:
    samples = [Sample(n * 0.5, n * 100, 1000) for n in range(101)]
    assert rates(samples) == pytest.approx([200.0] * 20)


def test_a_slow_stretch_shows_in_its_window() -> None:
    samples = [Sample(n * 0.5 + (10.0 if n > 50 else 0.0), n * 100, 1000) for n in range(101)]
    assert min(rates(samples)) == pytest.approx(500 / 12.5)


def test_growth_compares_the_first_tenth_with_the_last() -> None:
    samples = [Sample(float(n), n, 10_240 + (20_480 if n == 95 else 0)) for n in range(100)]
    assert memory_growth(samples) == 20.0


def test_sales_repeat_with_their_seed_and_never_share_orders() -> None:
    assert sales(50, 10, 1) == sales(50, 10, 1)
    assert not {order for order, _ in sales(50, 10, 1)} & {order for order, _ in sales(50, 10, 2)}


def test_records_are_read_as_the_event_that_is_handled() -> None:
    from bench.child import consumer_of
    from bench.shop import Sold
    from bothends.worker.deliveries import read

    consumer = consumer_of("t", failing=None, concurrency=1)
    assert [read(consumer, record).event for record in records([(7, 3)], "t")] == [Sold(7, 3)]


@pytest.mark.needs("postgresql", "kafka")
def test_a_child_says_how_far_it_is_and_ends_with_its_input() -> None:
    with places.broker() as broker, places.topic(broker, 2) as topic, places.database() as url:
        with psycopg.connect(url, autocommit=True) as connection:
            backlog(connection, topic, 50)
        with child("relay", database=url, broker=places.service_url("kafka"), stamp=False) as relay:
            until(lambda: relay.done >= 50, relay, timeout_s=60)
            assert relay.assigned == 64
            assert relay.samples[-1].done == 50
            assert relay.samples[-1].rss_kb > 10_000
            assert relay.stop()["cpu_s"] > 0
        found = [record for n in range(2) for record in broker.read(topic, partition=n, offset=0, max_records=100)]
        assert {record.value for record in found} == {BODY}
        assert len(found) == 50


@pytest.mark.needs("postgresql")
def test_a_child_that_breaks_is_noticed() -> None:
    with child("no such role") as broken, pytest.raises(SystemExit, match="broke"):
        until(lambda: broken.done > 0, broken, timeout_s=60)


@pytest.mark.needs("postgresql", "kafka")
def test_places_are_gone_afterwards() -> None:
    with places.broker() as broker:
        with places.topic(broker, 1) as topic:
            publish(broker, topic, sales(3, 2, 1))
            assert broker.topic(topic).state == "ok"
        assert broker.topic(topic).state == "missing"
    with places.database() as url:
        pass
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(url)


@pytest.mark.needs("postgresql", "kafka")
def test_what_was_delivered_before_lies_where_it_is_looked_for() -> None:
    with growth.site(200) as site:
        def count(table: str) -> int:
            row = site.connection.execute(f"select count(*) from bothends.{table}".encode()).fetchone()
            assert row is not None
            return int(row[0])

        assert [count(table) for table in ("outbox", "held", "inbox", "dead_letters", "blocked_keys")] == [200, 20, 200, 20, 20]
        site.due += 5
        with site.connection.transaction():
            backlog(site.connection, site.topic, 5, first=1000)
        until(lambda: site.relay.done >= 5, site.relay, timeout_s=60)
        assert site.relay.done == 5
