"""Ten million waiting rows: memory, and whether the relay drains them as fast as ten thousand [S6]."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import psycopg

from bench import places
from bench.children import Child, Sample, child, until
from bench.figures import figure, goal, report
from bench.shop import BODY, backlog

WAITING, WAITING_QUICK = 10_000_000, 100_000
CHUNK = 500_000
"""Rows of one transaction that fills."""
SMALL = 10_000
"""The backlog that the rate is compared with."""
SMALL_TIMES = 20
WINDOWS = 20
PARTITIONS = 8
LANES = 64


def measure(rounds: int | None = None, quick: bool = False) -> dict[str, Any]:
    waiting = WAITING_QUICK if quick else WAITING
    small: list[float] = []
    large: list[float] = []
    slowest: list[float] = []
    memory: list[float] = []
    grown: list[float] = []
    points: list[list[float]] = []
    for _ in range(rounds or 1):
        before, drained, after = one_round(waiting, SMALL_TIMES // 5 if quick else SMALL_TIMES)
        small += before + after
        windows = rates(drained)
        large += windows
        slowest.append(min(windows))
        memory.append(max(sample.rss_kb for sample in drained) / 1024)
        grown.append(growth(drained))
        points = [[round(s.at - drained[0].at, 3), s.done, round(s.rss_kb / 1024, 1)] for s in drained]
    figures = {
        "small_per_s": figure(small, "events/s"), "large_per_s": figure(large, "events/s"),
        "slowest_window_per_s": figure(slowest, "events/s"), "rss_max_mb": figure(memory, "MB", 1),
        "rss_growth_mb": figure(grown, "MB", 1),
    }
    ratio = figure([figures["large_per_s"]["median"] / figures["small_per_s"]["median"]], "of the small backlog's rate", 3)
    figures["ratio"] = ratio
    for each in ("small_per_s", "large_per_s"):
        del figures[each]["all"]
    return report(
        f"Backlog: {waiting:,} waiting rows",
        f"""A relay, in a process of its own, is started on {waiting:,} committed rows ({len(BODY)} bytes each, 1,000 keys)
        and drains them to Kafka. Its rate is taken in {WINDOWS} windows of equal numbers of events, its resident memory
        with each batch. Before and after, with the same relay, backlogs of {SMALL:,} rows are written in one transaction
        each and drained; their rate is from the first to the last batch.""",
        """Nothing is written meanwhile. The first window includes the start of a cold relay only where it is the slowest.
        Database, broker and relay share the processors; the rows do not fit into shared_buffers, and come from the kernel's
        cache.""",
        setting={"waiting": waiting, "body_bytes": len(BODY), "windows": WINDOWS, "small": SMALL, "rounds": rounds or 1},
        figures=figures,
        goals=[
            goal("S6", "rate with the large backlog against the small one", ratio, "at least", 0.80),
            goal("S6", "memory of the relay's process", figures["rss_max_mb"], "at most", 200.0),
        ],
        series={"columns": ["s", "events", "rss_mb"], "points": points[:: max(1, len(points) // 200)]},
    )


def one_round(waiting: int, times: int) -> tuple[list[float], list[Sample], list[float]]:
    """Rates with small backlogs, the samples of draining the large one, and small ones again."""
    with (
        places.broker() as broker, places.topic(broker, PARTITIONS) as topic, places.database() as url,
        psycopg.connect(url, autocommit=True) as connection,
    ):
        task = {"database": url, "broker": places.service_url("kafka")}
        first = 0
        with child("relay", **task) as relay:
            until(lambda: relay.assigned == LANES, relay, timeout_s=60)
            before = [small_backlog(connection, topic, relay, first + n * SMALL) for n in range(times)]
            relay.stop()
        first += times * SMALL
        for n in range(first, first + waiting, CHUNK):
            backlog(connection, topic, min(CHUNK, first + waiting - n), first=n)
        connection.execute("select count(*) from bothends.outbox")
        first += waiting
        with child("relay", **task) as relay:
            until(lambda: relay.done >= waiting, relay)
            drained = list(relay.samples)
            after = [small_backlog(connection, topic, relay, first + n * SMALL) for n in range(times)]
            relay.stop()
    return before, drained, after


def small_backlog(connection: psycopg.Connection[Any], topic: str, relay: Child, first: int) -> float:
    """Events per second from the first batch of ``SMALL`` rows to the last."""
    done, at = relay.done, len(relay.samples)
    backlog(connection, topic, SMALL, first=first)
    until(lambda: relay.done >= done + SMALL, relay, timeout_s=120)
    samples = relay.samples[at:]
    if len(samples) < 2:
        return SMALL / max(1e-3, samples[0].at - relay.samples[at - 1].at) if at else float(SMALL)
    return (samples[-1].done - samples[0].done) / max(1e-6, samples[-1].at - samples[0].at)


def rates(samples: list[Sample]) -> list[float]:
    """Events per second of windows with equal numbers of events."""
    total = samples[-1].done - samples[0].done
    marks = [samples[0]]
    for sample in samples[1:]:
        if sample.done - marks[-1].done >= total / WINDOWS:
            marks.append(sample)
    return [(b.done - a.done) / max(1e-6, b.at - a.at) for a, b in pairwise(marks)] or [float(total)]


def growth(samples: list[Sample]) -> float:
    """Megabytes from the end of the first tenth to the highest of the last one."""
    tenth = max(1, len(samples) // 10)
    return (max(s.rss_kb for s in samples[-tenth:]) - max(s.rss_kb for s in samples[:tenth])) / 1024
