"""What a key that cannot be handled costs the others: throughput and p99 [S5]."""

from __future__ import annotations

import time
from typing import Any

import psycopg

from bench import places
from bench.children import Child, child, until
from bench.figures import figure, goal, percentile, ratios, report
from bench.shop import body, envelope, publish, stock, warmed
from bothends.ports import Broker, Outgoing

ROUNDS = 5
EVENTS, EVENTS_QUICK = 10_000, 500
KEYS = 1_000
FAILING = 13
PARTITIONS = 4
PACE = 400
"""Events per second while p99 is measured."""
PACED_SECONDS, PACED_SECONDS_QUICK = 8, 1
TICKS_PER_S = 50


def measure(rounds: int | None = None, quick: bool = False) -> dict[str, Any]:
    rounds = rounds or (1 if quick else ROUNDS)
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for number in range(rounds):
        for failing in (False, True) if number % 2 == 0 else (True, False):
            found[failing].append(one_round(
                failing, EVENTS_QUICK if quick else EVENTS, PACED_SECONDS_QUICK if quick else PACED_SECONDS))
    rate = {failing: [rate for rate, _ in each] for failing, each in found.items()}
    p99 = {failing: [ms for _, ms in each] for failing, each in found.items()}
    figures = {
        "healthy_per_s": figure(rate[False], "events/s"), "failing_per_s": figure(rate[True], "events/s"),
        "healthy_p99_ms": figure(p99[False], "ms", 1), "failing_p99_ms": figure(p99[True], "ms", 1),
        "throughput_ratio": figure(ratios(rate[True], rate[False]), "of the healthy rate", 3),
        "p99_ratio": figure(ratios(p99[True], p99[False]), "of the healthy p99", 3),
    }
    return report(
        "A failing key",
        f"""One worker with four slots; {KEYS} keys in turn, an UPDATE per message. With or without one key whose every run
        fails, is retried (0.2 s, growing by half, five runs) and then held; what comes later of it is parked behind it.
        First all events are sent at once, and the rate of the good ones counted; then {PACE} are sent per second, and the
        time from sending to COMMIT of the good ones taken. The order of the two kinds alternates.""",
        """One failing key of a thousand, as after a bad event. Where a large share of all keys fails (a dependency is
        away), each failure costs a rolled back batch, and the rate falls.""",
        setting={"events": EVENTS_QUICK if quick else EVENTS, "keys": KEYS, "paced_per_s": PACE,
                 "paced_seconds": PACED_SECONDS_QUICK if quick else PACED_SECONDS, "rounds": rounds},
        figures=figures,
        goals=[
            goal("S5", "throughput of the other keys", figures["throughput_ratio"], "at least", 0.95),
            goal("S5", "p99 of the other keys", figures["p99_ratio"], "at most", 1.05),
        ],
    )


def one_round(failing: bool, events: int, seconds: int) -> tuple[float, float]:
    """Events per second and p99 in milliseconds of the keys that can be handled."""
    with places.broker() as broker, places.topic(broker, PARTITIONS) as topic, places.database() as url:
        with psycopg.connect(url) as connection:
            stock(connection, KEYS)
        with child(
            "worker", database=url, broker=places.service_url("kafka"), topic=topic, concurrency=4,
            failing=FAILING if failing else None,
        ) as worker:
            until(lambda: worker.assigned == PARTITIONS, worker, timeout_s=60)
            began = time.monotonic()
            publish(broker, topic, [(n % KEYS, n % KEYS) for n in range(events)])
            good = events - (sum(n % KEYS == FAILING for n in range(events)) if failing else 0)
            until(lambda: worker.done >= good, worker)
            rate = good / (worker.at - began)
            pace(broker, topic, seconds, worker, failing)
            return rate, percentile(worker.stop()["latencies"], 99) * 1000


def pace(broker: Broker, topic: str, seconds: int, worker: Child, failing: bool) -> None:
    """Sends ``PACE`` a second, each with its time, and waits for the good ones."""
    before, good, n = worker.done, 1, 0
    publisher = warmed(broker, "bench-pace", Outgoing(topic, b"%d" % KEYS, body(KEYS, 0), envelope("paced")))
    start = time.monotonic()
    for tick in range(seconds * TICKS_PER_S):
        wait_s = start + tick / TICKS_PER_S - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)
        some = []
        for _ in range(PACE // TICKS_PER_S):
            key = n * 7 % KEYS
            good += not (failing and key == FAILING)
            some.append(Outgoing(topic, b"%d" % key, body(key, key, time.monotonic()), envelope(f"paced-{n}")))
            n += 1
        publisher.send(1 + tick, some)
        publisher.poll(0)
    publisher.close(5)
    until(lambda: worker.done >= before + good, worker, timeout_s=60)
