"""Worker, inbox and a one-row effect, against one transaction per message [S3]."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import psycopg

from bench import places
from bench.children import child, until
from bench.figures import figure, goal, ratios, report
from bench.shop import publish, sales, stock

ROUNDS = 5
EVENTS, EVENTS_QUICK = 20_000, 800
EVENTS_SLOW = 8_000
"""The reference is slower, so fewer do."""
ROWS = 1_000
MEMBERS = 4
ROLES = ("one-by-one", "worker", "batch-worker")


def measure(rounds: int | None = None, quick: bool = False) -> dict[str, Any]:
    rounds = rounds or (1 if quick else ROUNDS)
    rates: dict[tuple[str, int], list[float]] = {
        (role, members): [] for members in (1, MEMBERS) for role in ROLES
    }
    for number in range(rounds):
        for role, members in rates:
            events = EVENTS_QUICK if quick else EVENTS_SLOW if role == "one-by-one" else EVENTS
            rates[role, members].append(consume(role, members, events, seed=number))
    figures: dict[str, dict[str, Any]] = {}
    for members in (1, MEMBERS):
        reference = rates["one-by-one", members]
        figures[f"one_by_one_{members}_per_s"] = figure(reference, "events/s")
        for role, suffix in (("worker", ""), ("batch-worker", "_batch")):
            ours = rates[role, members]
            figures[f"worker{suffix}_{members}_per_s"] = figure(ours, "events/s")
            figures[f"ratio{suffix}_{members}"] = figure(ratios(ours, reference), "times one by one", 2)
    return report(
        "Worker: inbox and a one-row effect",
        f"""One UPDATE per message, of one of {ROWS} rows, which four members fight for: messages have keys of their own, so
        nothing but the database orders them. The worker is `Worker` with one slot and batches of at most 100; the reference
        polls the same subscription, decodes with the same code, and commits an inbox row and the UPDATE per message with
        the same driver. With a batch handler the worker makes one UPDATE of all rows that a batch touches. Each member is a
        process, in one group over {MEMBERS} partitions. The clock starts when all are assigned and the first record is
        sent, and stops at the last COMMIT; effects are counted afterwards.""",
        """Handlers that do more per message gain less: what is saved is a COMMIT and two or three round trips. Publishing
        happens within the clock, on the same two processors, for both.""",
        setting={"events": EVENTS_QUICK if quick else EVENTS, "events_one_by_one": EVENTS_QUICK if quick else EVENTS_SLOW,
                 "rows": ROWS, "batch_max": 100, "rounds": rounds},
        figures=figures,
        goals=[
            goal("S3", "one worker against one by one", figures["ratio_1"], "at least", 4.0),
            goal("S3", "one worker with a batch handler against one by one", figures["ratio_batch_1"], "at least", 8.0),
            goal("S3", "four workers on hot rows against four one by one", figures[f"ratio_{MEMBERS}"], "at least", 2.5),
        ],
    )


def consume(role: str, members: int, events: int, seed: int) -> float:
    """Events per second that ``members`` processes handle together."""
    with (
        places.broker() as broker, places.topic(broker, MEMBERS) as topic, places.database() as url,
        contextlib.ExitStack() as stack,
    ):
        with psycopg.connect(url) as connection:
            stock(connection, ROWS)
            connection.execute("create table one_by_one (id text primary key)")
            connection.commit()
        crew = [
            stack.enter_context(child(
                role.removeprefix("batch-"), batch=role.startswith("batch-"), database=url,
                broker=places.service_url("kafka"), topic=topic, concurrency=1))
            for _ in range(members)
        ]
        until(lambda: all(one.assigned == MEMBERS // members for one in crew), *crew, timeout_s=60)
        began = time.monotonic()
        publish(broker, topic, sales(events, ROWS, seed))
        until(lambda: sum(one.done for one in crew) >= events, *crew)
        ended = max(one.at for one in crew)
        for one in crew:
            one.stop()
        with psycopg.connect(url) as connection:
            effects = connection.execute("select -sum(amount) from stock").fetchone()
        if effects != (events,):
            raise SystemExit(f"{role}: {events} events had {effects and effects[0]} effects")
        return events / (ended - began)
