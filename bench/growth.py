"""Whether an event costs more where much was delivered before: rows, keys, dead letters [S8]."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.sql import SQL, Identifier

from bench import places
from bench.backlog import SMALL, small_backlog
from bench.children import Child, child, until
from bench.counted import seat
from bench.figures import figure, goal, ratios, report
from bench.shop import backlog, records, sales, service, stock
from bothends.worker.deliveries import read
from bothends.worker.inbox import Batch
from bothends.worker.seats import Seat

ROUNDS = 7
SIZES, SIZES_QUICK = (0, 100_000, 1_000_000), (0, 10_000)
"""Delivered rows; a tenth as many keys are held, and as many letters dead, on both sides."""
HANDLED, HANDLED_QUICK = 2_000, 300
ADDED, ADDED_QUICK = 500, 60
LANES = 64
BATCH = 100
ROWS = 1_000


@dataclass
class Site:
    """One database of one size, with its relay."""

    size: int
    connection: psycopg.Connection[Any]
    topic: str
    relay: Child
    seat: Seat
    used: int
    """Numbers of events that are taken."""
    due: int = 0
    """Events that the relay will have published once nothing waits."""


def measure(rounds: int | None = None, quick: bool = False) -> dict[str, Any]:
    sizes = SIZES_QUICK if quick else SIZES
    rounds = rounds or (1 if quick else ROUNDS)
    costs: dict[tuple[str, int], list[float]] = {(what, size): [] for what in ("add", "relay", "handle") for size in sizes}
    with contextlib.ExitStack() as stack:
        sites = [stack.enter_context(site(size)) for size in sizes]
        for number in range(-1, rounds):  # the first one warms up
            for each in sites[number % len(sites):] + sites[:number % len(sites)]:
                found = {
                    "add": adding(each, ADDED_QUICK if quick else ADDED), "relay": relaying(each),
                    "handle": handling(each, HANDLED_QUICK if quick else HANDLED),
                }
                if number >= 0:
                    for what, cost in found.items():
                        costs[what, each.size].append(cost * 1e6)
    figures = {f"{what}_{size}_us": figure(values, "µs per event", 1) for (what, size), values in costs.items()}
    largest = sizes[-1]
    goals = []
    for what in ("add", "relay", "handle"):
        ratio = figures[f"{what}_ratio"] = figure(
            ratios(costs[what, largest], costs[what, 0]), f"of the cost at 0, at {largest:,}", 3)
        goals.append(goal("S8", f"cost of {what} with {largest:,} delivered before", ratio, "at most", 1.10))
    return report(
        "Growth: cost per event against what was delivered before",
        f"""One database per size: so many rows delivered and not yet rotated away in the outbox, so many in the inbox, each
        of a key of its own; a tenth as many dead events that hold their keys in the outbox's store, and as many dead letters
        and held keys in the inbox's. Then, in turn on each: `add` in transactions of their own; backlogs of {SMALL:,} rows
        through a relay to Kafka; and messages of new keys through the inbox engine in batches of {BATCH}.""",
        """The requirement names no number; 10 % is what these measurements can tell from noise. Vacuum has run on
        everything, as autovacuum would have.""",
        setting={"sizes": list(sizes), "handled": HANDLED_QUICK if quick else HANDLED, "relayed": SMALL, "rounds": rounds},
        figures=figures, goals=goals,
        series={"columns": ["delivered", "add_us", "relay_us", "handle_us"], "points": [
            [size, *(figures[f"{what}_{size}_us"]["median"] for what in ("add", "relay", "handle"))] for size in sizes]},
    )


@contextmanager
def site(size: int) -> Iterator[Site]:
    with (
        places.broker() as broker, places.topic(broker, 8) as topic, places.database() as url,
        psycopg.connect(url, autocommit=True) as connection,
    ):
        stock(connection, ROWS)
        with seat(url, topic) as one:
            if size:
                deliver(connection, topic, size, one.plan.number)
            with child("relay", database=url, broker=places.service_url("kafka")) as relay:
                until(lambda: relay.assigned == LANES, relay, timeout_s=60)
                yield Site(size, connection, topic, relay, one, size)
                relay.stop()


def deliver(connection: psycopg.Connection[Any], topic: str, size: int, consumer: int) -> None:
    """What relays and workers leave behind after so many events."""
    backlog(connection, topic, size, keys=size)
    connection.execute(
        "insert into bothends.relay_progress (relay, lanes, hwm, snapshot, published) "
        "select 0, -1, last_value, pg_current_snapshot(), %s from bothends.outbox_seq", [size])
    tenth = size // 10
    connection.execute("set session_replication_role = replica")  # no worker wrote these rows, so its trigger would object
    connection.execute(
        "insert into bothends.held (seq, lane, id, source, type, topic, key, body, time, version, state, attempts, reason) "
        "select seq, get_byte(sha256(dead), 0) & 63, id, source, type, topic, dead, body, time, version, 'dead', 10, "
        "'too_large' from bothends.outbox, convert_to('dead-' || seq, 'UTF8') dead order by seq limit %s", [tenth])
    connection.execute(
        "insert into bothends.inbox (consumer, source, id, hash) "
        "select %s, 'bench', gen_random_uuid()::text, sha256(g::text::bytea) from generate_series(1, %s) g",
        [consumer, size - tenth])
    connection.execute(
        "insert into bothends.inbox (consumer, source, id, state, hash) "
        "select %s, 'bench', 'dead-' || g, 'd', sha256(g::text::bytea) from generate_series(1, %s) g", [consumer, tenth])
    connection.execute(
        "insert into bothends.dead_letters (consumer, reason, fingerprint, source, message_id, type, topic, "
        "record_partition, record_offset, keyed, key, headers, body) "
        "select %s, 'permanent', 'f' || g %% 10, 'bench', 'dead-' || g, 'bench.sold', %s, 0, g, true, "
        "convert_to('dead-' || g, 'UTF8'), '\\x90', '{}' from generate_series(1, %s) g", [consumer, topic, tenth])
    connection.execute(
        "insert into bothends.blocked_keys (consumer, topic, keyed, key, state, next_at) select %s, %s, true, "
        "convert_to('dead-' || g, 'UTF8'), 'held', now() from generate_series(1, %s) g", [consumer, topic, tenth])
    connection.execute("reset session_replication_role")
    for table in ("outbox", "held", "inbox", "dead_letters", "blocked_keys"):
        connection.execute(SQL("vacuum analyze {}").format(Identifier("bothends", table)))


def adding(at: Site, events: int) -> float:
    """Seconds per event that ``add`` takes of its transaction, COMMIT excluded: that is the disk's."""
    add = service().outbox.add
    took = 0.0
    for n in range(at.used, at.used + events):
        with at.connection.transaction():
            began = time.perf_counter()
            add(at.connection, {"n": n}, type="bench.sold", topic=at.topic, key=f"added-{n}")
            took += time.perf_counter() - began
    at.used += events
    at.due += events
    until(lambda: at.relay.done >= at.due, at.relay, timeout_s=120)
    return took / events


def relaying(at: Site) -> float:
    rate = small_backlog(at.connection, at.topic, at.relay, at.used)
    at.used += SMALL
    at.due += SMALL
    return 1 / rate


def handling(at: Site, events: int) -> float:
    """Seconds per message of the inbox engine, with what a slot does around it, and no broker."""
    some = records(sales(events, ROWS, at.used % 1_000_003), at.topic)
    at.used += events
    consumer = at.seat.plan.consumer
    began = time.perf_counter()
    for first in range(0, events, BATCH):
        at.seat.drive(Batch(at.seat.plan, [read(consumer, record) for record in some[first:first + BATCH]]).acts())
    return (time.perf_counter() - began) / events
