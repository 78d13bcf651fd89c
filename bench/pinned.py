"""Whether the relay's claims stay as fast while readers pin the database's horizon [S8, R7]."""

from __future__ import annotations

import os
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import psycopg

from bench import places
from bench.children import Child, child, until
from bench.figures import figure, goal, percentile, ratios, report
from bench.latency import LANES, PRODUCERS, produce
from bench.timing import CLAIM, LEASE, SETTLE, TICK_S, cpu_s
from bothends.core.relaying import EVERY_LANE, Stream
from bothends.stores import open_store
from bothends.stores.steps import run

RATE = 800
WINDOW_S, WINDOW_S_QUICK = 30.0, 1.0
READER_WINDOWS = 4
"""So long reads one of the overlapping readers; the next one begins when half of it is over."""
PINNED, PINNED_QUICK = 30, 4
"""Windows with readers."""
COMPARED, COMPARED_QUICK = 4, 2
"""Windows without readers, before them, which are compared with as many at the end. One more goes before: processes and
caches are cold."""
FLAT = 1.5
PROBE_S = 0.05
TABLES = ("outbox", "relay_progress", "relays", "relay_lanes")
_COLUMNS = (
    "s", "claim_p50_ms", "claim_p99_ms", "confirmed_p50_ms", "confirmed_p99_ms", "claim_cpu_us", "empty_p50_ms", "relays_dead",
    "load",
)


@dataclass
class Window:
    """What was looked at when it ended; counters are totals."""

    at: float
    relay_cpu_s: float
    backend_cpu_s: float
    server_cpu_s: float
    bytes: dict[str, int]
    dead: dict[str, int]
    load: float


@dataclass
class Found:
    windows: list[Window] = field(default_factory=list)
    columns: dict[str, list[float]] = field(default_factory=dict)
    """Of each column of the series, one value per window."""


def measure(rounds: int | None = None, quick: bool = False) -> dict[str, Any]:
    window_s, pinned, compared = (
        (WINDOW_S_QUICK, PINNED_QUICK, COMPARED_QUICK) if quick else (WINDOW_S, PINNED, COMPARED))
    found = [one_round(window_s, 1 + compared, pinned) for _ in range(rounds or 1)]
    points = [list(row) for row in zip(*(found[-1].columns[name] for name in _COLUMNS), strict=True)]
    figures: dict[str, dict[str, Any]] = {}
    ratio: dict[str, dict[str, Any]] = {}
    for name, unit, digits in (
        ("claim_p50_ms", "ms", 2), ("claim_p99_ms", "ms", 2), ("settle_p50_ms", "ms", 2), ("lease_p50_ms", "ms", 2),
        ("confirmed_p50_ms", "ms", 2), ("confirmed_p99_ms", "ms", 2), ("empty_p50_ms", "ms", 2),
        ("claim_cpu_us", "µs of the server's CPU", 1), ("relay_cpu_us", "µs of CPU per event", 1),
    ):
        before = [value for each in found for value in each.columns[name][1:1 + compared]]
        last = [value for each in found for value in each.columns[name][-compared:]]
        figures[f"before_{name}"], figures[f"last_{name}"] = figure(before, unit, digits), figure(last, unit, digits)
        ratio[name] = figure(ratios(last, before), "of that before the readers", 3)
    for name in ("claim_p50", "claim_p99", "claim_cpu", "settle_p50"):
        figures[f"{name}_ratio"] = ratio[f"{name}_us" if name == "claim_cpu" else f"{name}_ms"]
    figures["server_cpu_s"] = figure(
        [each.windows[-1].server_cpu_s - each.windows[0].server_cpu_s for each in found], "s of CPU of the server", 1)
    for table in TABLES:
        figures[f"{table}_kb"] = figure([each.windows[-1].bytes[table] / 1024 for each in found], "kB at the end")
    figures["relays_dead"] = figure([each.windows[-1].dead["relays"] for each in found], "dead rows at the end")
    goals = [
        goal("R7", f"{what} at the end", figures[f"{name}_ratio"], "at most", FLAT) for name, what in (
            ("claim_p50", "median claim"), ("claim_p99", "99 of 100 claims"), ("claim_cpu", "CPU of a claim"))
    ]
    return report(
        "Pinned horizon: claims while others read for long",
        f"""{RATE} transactions a second, each a business row and one event, as in the bench of latency; one relay, a process
        of its own. After {1 + compared} windows of {window_s:g} s readers begin to hold snapshots (REPEATABLE READ, one query
        of the business table, then nothing), so that no dead row can be removed, for {pinned * window_s:g} s: one all that
        time, and overlapping ones of {READER_WINDOWS * window_s:g} s, a new one each {READER_WINDOWS * window_s / 2:g} s.
        A claim is the statement that reads a page, settle the one that stores the cursor, lease the one that
        renews it, timed in the relay. The {compared} windows before the readers are compared with the last {compared}, one
        by one. claim_cpu_us is what the relay's server process
        spends per claim, all its other statements included. empty_ is the same statement on an outbox in which nothing ever
        was, from another process, at {1 / PROBE_S:.0f} per second: what the machine's moods do to it.""",
        """Readers read the business's table, not the outbox: one that does (a dump of the whole database) holds up
        rotation as well, and the outbox keeps what it would have dropped until the reader is done. Where `empty_` moves, it is
        the neighbours.""",
        setting={"rate_per_s": RATE, "window_s": window_s, "pinned_s": pinned * window_s, "compared": compared,
                 "reader_s": READER_WINDOWS * window_s, "rounds": rounds or 1},
        figures=figures, goals=goals, series={"columns": list(_COLUMNS), "points": points},
    )


def one_round(window_s: float, free: int, pinned: int) -> Found:
    """``free`` windows without readers, then ``pinned`` with them."""
    events = int(RATE * (free + pinned) * window_s)
    called, returned = [0.0] * events, [0.0] * events
    found, over = Found(), threading.Event()
    probes: list[tuple[float, float]] = []
    with (
        places.broker() as broker, places.topic(broker, 8) as topic, places.database() as url, places.database() as empty,
        psycopg.connect(url, autocommit=True) as watching,
        child("relay", database=url, broker=places.service_url("kafka"), stamp=True, timed=True) as relay,
    ):
        watching.execute("create table orders (id bigint generated always as identity primary key, customer text)")
        until(lambda: relay.assigned == LANES, relay, timeout_s=60)
        start = time.monotonic() + 0.2
        threads = [
            threading.Thread(target=produce, args=(url, topic, n, start, called, returned, RATE)) for n in range(PRODUCERS)
        ]
        every_s, from_s = READER_WINDOWS * window_s / 2, start + free * window_s
        threads += [
            threading.Thread(target=read, args=(url, every_s, from_s, over)),
            threading.Thread(target=probe, args=(empty, probes, over)),
        ]
        for thread in threads:
            thread.start()
        try:
            for number in range(free + pinned + 1):
                over.wait(max(0.0, start + number * window_s - time.monotonic()))
                found.windows.append(look(watching, relay))
            until(lambda: relay.done >= events, relay, timeout_s=60)
        finally:
            over.set()
            for thread in threads:
                thread.join()
        said = relay.stop()
    confirmed = dict(said["confirmed"])
    after = [(at, confirmed[n] - at) for n, at in enumerate(returned)]
    _columns(found, said["timed"], after, probes)
    return found


def read(url: str, every_s: float, start: float, over: threading.Event) -> None:
    """Holds snapshots from ``start`` until ``over``: the first one all the time, of the later ones two at once."""
    over.wait(max(0.0, start - time.monotonic()))
    with ExitStack() as readers:
        held: list[psycopg.Connection[Any]] = []
        while not over.is_set():
            reader = readers.enter_context(psycopg.connect(url))
            reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            reader.execute("select count(*) from orders")
            held.append(reader)
            if len(held) > 3:
                held.pop(1).close()
            over.wait(every_s)


def probe(url: str, noted: list[tuple[float, float]], over: threading.Event) -> None:
    """The claim of a relay that has all lanes of an outbox in which nothing ever was."""
    store = open_store(url)
    steps = store.relay
    connection = store.connect(factory=steps.connection_factory)
    executor = steps.executor(connection)
    row = connection.driver.execute("select pg_current_snapshot()::text").fetchone()
    streams = [Stream(EVERY_LANE, 1, str(row[0]))]
    try:
        while not over.wait(PROBE_S):
            began = time.monotonic()
            streams = run(steps.rows.fetch(streams, limit=2000), executor).streams
            noted.append((time.monotonic(), time.monotonic() - began))
    finally:
        connection.close()


def look(watching: psycopg.Connection[Any], relay: Child) -> Window:
    backends = dict(watching.execute(
        "select pid, application_name from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()",
    ).fetchall())
    tables = watching.execute(
        "select substring(relname from '^(outbox|relay_progress|relays|relay_lanes)(?:_[0-9])?$') as name, "
        "sum(pg_total_relation_size(relid))::bigint, sum(n_dead_tup)::bigint from pg_stat_user_tables "
        "where schemaname = 'bothends' and relname ~ '^(outbox|relay_progress|relays|relay_lanes)(_[0-9])?$' group by name",
    ).fetchall()
    each = {pid: cpu_s(pid) for pid in backends}
    return Window(
        time.monotonic(), cpu_s(relay.process.pid),
        sum(spent for pid, spent in each.items() if backends[pid].startswith("bothends relay")), sum(each.values()),
        {name: size for name, size, _ in tables}, {name: dead for name, _, dead in tables}, round(os.getloadavg()[0], 2),
    )


def _columns(
    found: Found, timed: dict[str, list[tuple[float, float]]], after: list[tuple[float, float]],
    probes: list[tuple[float, float]],
) -> None:
    """What lies between two looks, as one value per window."""
    edges = [window.at for window in found.windows]

    def windowed(noted: list[tuple[float, float]]) -> list[list[float]]:
        parts: list[list[float]] = [[] for _ in edges[1:]]
        number = 0
        for at, value in sorted(noted):
            while number < len(parts) and at >= edges[number + 1]:
                number += 1
            if number < len(parts) and at >= edges[0]:
                parts[number].append(value)
        return parts

    def spread(name: str, noted: list[tuple[float, float]], *percents: int) -> list[list[float]]:
        parts = windowed(noted)
        for percent in percents:
            found.columns[f"{name}_p{percent}_ms"] = [
                round(percentile(part, percent) * 1000, 3) if part else 0.0 for part in parts]
        return parts

    claims = spread("claim", timed[CLAIM], 50, 99)
    spread("settle", timed[SETTLE], 50)
    spread("lease", timed[LEASE], 50)
    events = spread("confirmed", after, 50, 99)
    spread("empty", probes, 50)
    pairs = list(zip(found.windows, found.windows[1:], strict=False))
    columns = found.columns
    columns["claim_cpu_us"] = [
        round(max(TICK_S, b.backend_cpu_s - a.backend_cpu_s) / max(1, len(part)) * 1e6, 1)
        for (a, b), part in zip(pairs, claims, strict=True)]
    columns["relay_cpu_us"] = [
        round(max(TICK_S, b.relay_cpu_s - a.relay_cpu_s) / max(1, len(part)) * 1e6, 1)
        for (a, b), part in zip(pairs, events, strict=True)]
    columns["s"] = [round(b.at - edges[0], 1) for _, b in pairs]
    columns["relays_dead"] = [b.dead["relays"] for _, b in pairs]
    columns["load"] = [b.load for _, b in pairs]
