"""What the design costs at 1,000,000,000 events a day: counted work, measured unit costs, simulated lanes [S8, R1]."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench import counted, places
from bench.figures import figure, report
from bench.lanes import History, history

ROUNDS = 1
TURNS, TURNS_QUICK = 100, 2
EVENTS_PER_DAY = 1_000_000_000
PEAK = 5
"""The busiest second against the mean one."""
DATABASES = (1, 4, 16, 64)
RELAYS, RELAYS_QUICK = (2, 4, 8, 16, 32, 64, 100), (2, 8)
LANES, LANES_QUICK = (64, 10_000), (64, 200)
SEEDS, SEEDS_QUICK = 20, 2
CHILD_ROWS = 1_048_576
FREEZE_XIDS = 200_000_000
"""autovacuum_freeze_max_age: after so many transactions PostgreSQL looks through each table."""
KEPT_DAYS = 8
"""Of inbox rows: seven days of retention in the broker, and what has to be added to it."""
RESULTS = Path(__file__).parent / "results"
MB, GB = 1e6, 1e9


def measure(rounds: int | None = None, quick: bool = False) -> dict[str, Any]:
    turns, seeds = (TURNS_QUICK, SEEDS_QUICK) if quick else (TURNS, SEEDS)
    relays, lanes = (RELAYS_QUICK, LANES_QUICK) if quick else (RELAYS, LANES)
    costs: list[dict[str, counted.Cost]] = []
    rows: list[dict[str, float]] = []
    for _ in range(rounds or ROUNDS):
        with places.database() as url:
            costs.append(counted.measure(url, turns))
            rows.append(counted.row_bytes(url))
    figures = _counts(costs, rows)
    units = {name: figures[name]["median"] for name in figures} | _measured()
    for databases in DATABASES:
        for name, (value, unit, digits) in paper(databases, units).items():
            figures[f"{name}_{databases}"] = figure([value], unit, digits)
    simulated, points = _simulated(relays, lanes, seeds)
    return report(
        "Scale: a thousand million events a day, on paper and by simulation",
        f"""Counted: statements and round trips by libpq's trace, write-ahead log by pg_walinspect (records of our own
        transactions, COMMITs included, page images not), over {turns} turns each of a business transaction without and
        with `add`, of a relay's page, and of a worker's batch with an UPDATE per message. Measured: what the benches
        relay, worker and enqueue found. Calculated from both: {EVENTS_PER_DAY:,} events a day, peaks of {PEAK} times the mean,
        one consumer, spread evenly over so many databases (the last number of a name). Simulated: relays that start within a
        second, one that dies, one that joins, with the decisions of the relay itself, {seeds} times each; on another host
        than the others the dead one's lease has to end first. More lanes than 64 are what so many outboxes have together, or
        what one would have, were the constant another.""",
        """It is arithmetic: rates are of this machine, where database, broker and processes share two processors, and a
        database with other work to do has less. Sums of CPU do not queue; the simulation knows no load.""",
        setting={"events_per_day": EVENTS_PER_DAY, "peak": PEAK, "turns": turns, "seeds": seeds, "kept_days": KEPT_DAYS,
                 **{name: round(value, 2) for name, value in _measured().items()}},
        figures=figures | simulated,
        series={"columns": ["relays", *(f"{what}_of_{n}" for n in lanes for what in ("takeover_s", "handover_s", "spread"))],
                "points": points},
    )


def _counts(costs: list[dict[str, counted.Cost]], rows: list[dict[str, float]]) -> dict[str, dict[str, Any]]:
    figures = {}
    for kind in costs[0]:
        for name, unit in (("statements", "statements"), ("trips", "round trips"), ("wal_bytes", "bytes of log")):
            figures[f"{kind}_{name}"] = figure([getattr(cost[kind], name) for cost in costs], f"{unit} each")
    for table in rows[0]:
        figures[f"{table}_row_bytes"] = figure([row[table] for row in rows], "bytes on disk, indexes included")
    return figures


def _measured() -> dict[str, float]:
    """Unit costs that other benches have found, in their own words."""
    found = {}
    for bench, names in (
        ("relay", ("relay_per_s", "relay_cpu_us")), ("worker", ("worker_1_per_s",)), ("enqueue", ("add_us", "bare_us")),
    ):
        try:
            result = json.loads((RESULTS / f"{bench}.json").read_text())
        except FileNotFoundError:
            raise SystemExit(f"bench/results/{bench}.json is missing; measure {bench} first") from None
        found |= {name: float(result["figures"][name]["median"]) for name in names}
    return found


def paper(databases: int, units: dict[str, float]) -> dict[str, tuple[float, str, int]]:
    """What each of so many databases, and all together, have to bear: value, unit, digits."""
    mean = EVENTS_PER_DAY / 86_400 / databases
    peak = mean * PEAK
    added = units["add_wal_bytes"] - units["bare_wal_bytes"]
    page = units[f"page_of_{counted.PAGE}_wal_bytes"] / counted.PAGE
    handled = units[f"batch_of_{counted.BATCH}_wal_bytes"] / counted.BATCH
    per_day = EVENTS_PER_DAY / databases
    return {
        "peak_per_s": (peak, "events/s of one database", 0),
        "outbox_wal_mb_s": (peak * (added + page) / MB, "MB/s of log at the peak, for the outbox, of one database", 1),
        "inbox_wal_mb_s": (peak * handled / MB, "MB/s of log at the peak, for the consumer, of one database", 1),
        "wal_gb_day": (per_day * (added + page + handled) / GB, "GB of log a day, of one database", 0),
        "child_s": (CHILD_ROWS / peak, "s that a child table of the outbox lasts at the peak", 0),
        "outbox_gb": (3 * CHILD_ROWS * units["outbox_row_bytes"] / GB, "GB of outbox, all three children full", 2),
        "inbox_gb": (per_day * KEPT_DAYS * units["inbox_row_bytes"] / GB, "GB of inbox, of one database", 0),
        "freeze_h": (FREEZE_XIDS / (mean * (1 + 1 / counted.BATCH)) / 3600, "h until transaction ids are frozen", 1),
        "relays": (max(1.0, peak / units["relay_per_s"]), "relays, each as fast as the one measured, per database", 1),
        "relay_cores": (peak * units["relay_cpu_us"] / 1e6, "processors for the relays' own processes, per database", 2),
        "workers": (max(1.0, peak / units["worker_1_per_s"]), "workers of one slot, and at least as many partitions", 1),
        "adding": (peak * (units["add_us"] - units["bare_us"]) / 1e6, "connections that are in `add` at any time", 1),
    }


def _simulated(
    relays: tuple[int, ...], lanes: tuple[int, ...], seeds: int
) -> tuple[dict[str, dict[str, Any]], list[list[float]]]:
    figures: dict[str, dict[str, Any]] = {}
    points: list[list[float]] = []
    for crew in relays:
        point: list[float] = [crew]
        for count in lanes:
            elsewhere = [history(crew, count, seed) for seed in range(seeds)]
            here = [history(crew, count, seed, same_host=True) for seed in range(seeds)]
            name = f"{count}_lanes_{crew}_relays"
            figures |= _of(name, elsewhere) | {
                f"{name}_takeover_here_s": figure(
                    [one.takeover_s for one in here], "s until a dead relay's lanes go on, same host", 2),
            }
            point += [
                max(one.takeover_s for one in elsewhere), max(one.handover_s for one in elsewhere),
                max(one.most - one.least for one in elsewhere)]
        points.append([round(value, 2) for value in point])
    for each in figures.values():
        if len(each.get("all", ())) == seeds:
            del each["all"]
    return figures, points


def _of(name: str, found: list[History]) -> dict[str, dict[str, Any]]:
    return {
        f"{name}_start_s": figure([one.start_s for one in found], "s until all lanes have a relay", 2),
        f"{name}_takeover_s": figure([one.takeover_s for one in found], "s until a dead relay's lanes go on, other host", 2),
        f"{name}_handover_s": figure([one.handover_s for one in found], "s that a lane is nobody's when a relay joins", 2),
        f"{name}_spread": figure([one.most - one.least for one in found], "lanes between the most and the least"),
        f"{name}_idle": figure([one.idle for one in found], "relays without lanes"),
    }
