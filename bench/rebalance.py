"""Duplicate deliveries while members join and leave a consumer group all the time [P3]."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import psycopg

from bench import places
from bench.children import Child, child, until
from bench.figures import figure, goal, percentile, report
from bench.shop import body, envelope, stock, warmed
from bothends.ports import Broker, Outgoing

RATE = 500
TICKS_PER_S = 50
EVERY_S, EVERY_S_QUICK = 5.0, 2.0
CHANGES, CHANGES_QUICK = 24, 2
"""How often a member joins or leaves, in one run."""
PARTITIONS = 8
ROWS = 100
ENDS = ("stopped", "killed")


@dataclass(frozen=True)
class Found:
    events: int
    duplicates: int
    doubled: int
    latencies: list[float]
    seconds: float


def measure(rounds: int | None = None, quick: bool = False) -> dict[str, Any]:
    every_s, changes = (EVERY_S_QUICK, CHANGES_QUICK) if quick else (EVERY_S, CHANGES)
    figures: dict[str, dict[str, Any]] = {}
    doubled: list[float] = []
    for end in ENDS:
        found = [one_round(end, every_s, changes) for _ in range(rounds or 1)]
        doubled += [each.doubled for each in found]
        figures |= {
            f"{end}_events": figure([each.events for each in found], "events"),
            f"{end}_duplicates": figure([each.duplicates for each in found], "deliveries"),
            f"{end}_per_million": figure(
                [each.duplicates / each.events * 1e6 for each in found], "duplicate deliveries per million events"),
            f"{end}_p50_ms": figure([percentile(each.latencies, 50) * 1000 for each in found], "ms", 1),
            f"{end}_p99_ms": figure([percentile(each.latencies, 99) * 1000 for each in found], "ms", 1),
            f"{end}_max_ms": figure([max(each.latencies) * 1000 for each in found], "ms"),
        }
    figures["doubled"] = figure(doubled, "effects")
    return report(
        "Rebalance: duplicates while the group changes",
        f"""{RATE} events a second go to a topic of {PARTITIONS} partitions, an UPDATE each. One member of the consumer group
        stays; a second one joins, and leaves {every_s:g} s later, so that each {every_s:g} s partitions move, {changes} times.
        It leaves by an orderly stop, or, in a run of its own, by SIGKILL: then the broker notices it after the session timeout
        of 6 s, and the next one joins meanwhile. Duplicates are deliveries that the inbox answered with `duplicate`, as
        the members said until their end. Latency is from sending to COMMIT, of what the members said at theirs. Effects are
        counted in the table that they are made in.""",
        """A member that is killed takes along what it had not said in its last 20 ms, and all its latencies. A duplicate costs
        a round trip and no effect.""",
        setting={"rate_per_s": RATE, "every_s": every_s, "changes": changes, "partitions": PARTITIONS, "rounds": rounds or 1},
        figures=figures,
        goals=[goal("P3", "effects beyond the first of an event, in rebalances", figures["doubled"], "at most", 0)],
    )


def one_round(end: str, every_s: float, changes: int) -> Found:
    with (
        places.broker() as broker, places.topic(broker, PARTITIONS) as topic, places.database() as url, ExitStack() as stack,
    ):
        with psycopg.connect(url) as connection:
            stock(connection, ROWS)

        def member() -> Child:
            return stack.enter_context(child(
                "worker", database=url, broker=places.service_url("kafka"), topic=topic, concurrency=1))

        members = [member()]
        until(lambda: members[0].assigned == PARTITIONS, members[0], timeout_s=60)
        over = threading.Event()
        sent = [0]
        sending = threading.Thread(target=send, args=(broker, topic, over, sent))
        began = time.monotonic()
        sending.start()
        latencies: list[float] = []
        try:
            for number in range(changes):
                over.wait(max(0.0, began + number * every_s - time.monotonic()))
                if number % 2 == 0:
                    members.append(member())
                elif end == "stopped":
                    latencies += members[-1].stop()["latencies"]
                else:
                    members[-1].process.kill()
            over.wait(every_s)
        finally:
            over.set()
            sending.join()
        seconds = time.monotonic() - began
        effects = settled(url, sent[0], members[0])
        latencies += members[0].stop()["latencies"]
        return Found(sent[0], sum(one.duplicates for one in members), effects - sent[0], latencies, seconds)


def settled(url: str, events: int, member: Child) -> int:
    """Waits until every event has its effect; how many effects there are."""
    with psycopg.connect(url, autocommit=True) as connection:
        def effects() -> int:
            row = connection.execute("select -sum(amount) from stock").fetchone()
            assert row is not None
            return int(row[0])

        until(lambda: effects() >= events, member, timeout_s=60)
        return effects()


def send(broker: Broker, topic: str, over: threading.Event, sent: list[int]) -> None:
    """``RATE`` a second, each with its time, until ``over``."""
    publisher = warmed(broker, "bench-rebalance", Outgoing(topic, b"0", body(0, 0), envelope("sold-0")))
    sent[0] = 1
    start, tick = time.monotonic(), 0
    while not over.wait(max(0.0, start + tick / TICKS_PER_S - time.monotonic())):
        some = []
        for _ in range(RATE // TICKS_PER_S):
            n = sent[0]
            some.append(Outgoing(topic, b"%d" % n, body(n, n % ROWS, time.monotonic()), envelope(f"sold-{n}")))
            sent[0] += 1
        tick += 1
        publisher.send(tick, some)
        for batch in publisher.poll(0):
            if batch.failures:
                raise SystemExit(f"the broker refused records: {next(iter(batch.failures.values()))}")
    publisher.close(5)
