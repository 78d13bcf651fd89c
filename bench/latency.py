"""Commit to confirmed at 1,000 events/s, the relay in a process of its own: polling, and reading the log [S2]."""

from __future__ import annotations

import threading
import time
from typing import Any

import psycopg

from bench import places
from bench.children import child, until
from bench.figures import figure, goal, percentile, report
from bothends import Service
from bothends.settings import Source

ROUNDS = 5
RATE = 1_000
SECONDS, SECONDS_QUICK = 10, 1
WARM_SECONDS = 1
"""Of each round, not counted."""
PRODUCERS = 4
LANES = 64
BODY = {"order_id": 17, "customer": "anna", "note": "x" * 120}


SOURCES: tuple[Source, ...] = ("poll", "wal", "message")
GOALS = {"poll": (6.0, 15.0), "wal": (3.0, 10.0), "message": (3.0, 10.0)}
"""Milliseconds, of the median and of 99 in 100."""
_UNITS = (
    ("rate_per_s", "events/s", 0), ("p50_ms", "ms", 2), ("p99_ms", "ms", 2), ("max_ms", "ms", 1),
    ("with_commit_p50_ms", "ms", 2), ("with_commit_p99_ms", "ms", 2), ("commit_p50_ms", "ms", 2),
)


def measure(rounds: int | None = None, quick: bool = False) -> dict[str, Any]:
    seconds = SECONDS_QUICK if quick else SECONDS
    found: dict[Source, list[dict[str, float]]] = {source: [] for source in SOURCES}
    for _ in range(rounds or (1 if quick else ROUNDS)):
        for source in SOURCES:
            found[source].append(one_round(source, seconds))
    figures = {
        f"{source}_{name}": figure([each[name] for each in found[source]], unit, digits)
        for source in SOURCES for name, unit, digits in _UNITS
    }
    goals = []
    for source, (middle, most) in GOALS.items():
        goals += [
            goal("S2", f"{source}: median, commit to confirmed", figures[f"{source}_p50_ms"], "at most", middle),
            goal("S2", f"{source}: 99 of 100, commit to confirmed", figures[f"{source}_p99_ms"], "at most", most),
        ]
    return report(
        "Latency: commit to confirmed",
        f"""{PRODUCERS} threads of one process write {RATE} transactions a second in all, each a business row and one event,
        evenly spaced. The relay is a process of its own: it polls the table (psycopg has no commit hook, nothing rings), or
        reads the write-ahead log (wal: the table's rows in it; message: events that are nowhere else). The sources take turns.
        Counted is from the return of COMMIT to the moment when the relay's publisher hears of the broker's confirmation, on
        one monotonic clock; with_commit_ counts from the call of COMMIT. Each figure is the median of the rounds'
        percentiles.""",
        """A thread that is woken late after its COMMIT makes an event look faster than it was: with_commit_ is the upper
        bound. Whether the database's disk is quick shows in commit_p50_ms, not in the goal.""",
        setting={"rate_per_s": RATE, "seconds": seconds, "producers": PRODUCERS, "rounds": len(found["poll"])},
        figures=figures, goals=goals,
    )


def one_round(source: Source, seconds: int) -> dict[str, float]:
    with places.broker() as broker, places.topic(broker, 8) as topic, places.database() as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("create table orders (id bigint generated always as identity primary key, customer text)")
        events = RATE * (seconds + WARM_SECONDS)
        called, returned = [0.0] * events, [0.0] * events
        with child("relay", database=url, broker=places.service_url("kafka"), stamp=True, source=source) as relay:
            until(lambda: relay.assigned == LANES and relay.source == source, relay)
            start = time.monotonic() + 0.2
            threads = [
                threading.Thread(target=produce, args=(url, topic, n, start, called, returned, RATE, source))
                for n in range(PRODUCERS)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            until(lambda: relay.done >= events, relay, timeout_s=60)
            confirmed = dict(relay.stop()["confirmed"])
    counted = range(RATE * WARM_SECONDS, events)
    after = [(confirmed[n] - returned[n]) * 1000 for n in counted]
    whole = [(confirmed[n] - called[n]) * 1000 for n in counted]
    return {
        "rate_per_s": len(counted) / (max(returned) - min(returned[n] for n in counted)),
        "p50_ms": percentile(after, 50), "p99_ms": percentile(after, 99), "max_ms": max(after),
        "with_commit_p50_ms": percentile(whole, 50), "with_commit_p99_ms": percentile(whole, 99),
        "commit_p50_ms": percentile([(returned[n] - called[n]) * 1000 for n in counted], 50),
    }


def produce(
    url: str, topic: str, number: int, start: float, called: list[float], returned: list[float], rate: int,
    source: Source = "poll",
) -> None:
    """Every ``PRODUCERS``-th event, each at its time, ``rate`` a second of all producers. What was late is not made up for
    by a burst of one thread alone: the others keep their own times."""
    add = Service("bench", relay_source="message" if source == "message" else "poll").outbox.add
    with psycopg.connect(url) as connection:
        for n in range(number, len(called), PRODUCERS):
            wait_s = start + n / rate - time.monotonic()
            if wait_s > 0:
                time.sleep(wait_s)
            connection.execute("insert into orders (customer) values ('anna')")
            add(connection, BODY, type="bench.sold", topic=topic, key=str(n))
            called[n] = time.monotonic()
            connection.commit()
            returned[n] = time.monotonic()
