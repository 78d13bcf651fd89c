"""Page: docs/benchmarks.md and its plots, made from the results and from nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["load", "text", "write"]

HEAD = """\
# Benchmarks

Made by `make bench` from `bench/results/*.json`; do not edit. Each bench measures ours and its reference in one run, turn by
turn, with durable settings (fsync, synchronous_commit, acks=all, idempotent producer). `python -m bench NAME` repeats one.
Figures are medians of the rounds, with the lowest and highest in parentheses. *Load* is the load average over one minute:
before the run (what else was going on) and its mean during it (which includes the run itself). Where the load before a
run is above the number of cores, the figure says more about the neighbours than about this package: measure again.
"""

REFERENCES = ("raw", "one-by-one")
"""Rows among the peers that are nobody's product."""
OWN_PAGES = {"scale": "explanation/scale.md"}
"""Where the figures of a bench are, that has too many for a table."""


def load(names: Sequence[str], results: Path) -> list[dict[str, Any]]:
    """The results that there are, in the order of ``names``."""
    return [
        json.loads(path.read_text()) for name in names if (path := results / f"{name}.json").exists()
    ]


def write(names: Sequence[str], results: Path, page: Path) -> None:
    from bench import plots, scale_page

    found = load(names, results)
    if not found:
        raise SystemExit(f"there is nothing in {results}; measure first")
    plots.goals(found, results / "goals.svg")
    for result in found:
        if result["series"]:
            plots.series(result, results / f"{result['bench']}.svg")
        if result.get("table"):
            plots.peers(result, results / f"{result['bench']}.svg")
    page.write_text(text(found, os.path.relpath(results, page.parent)))
    for result in found:
        if result["bench"] in OWN_PAGES and (own := page.parent / OWN_PAGES[result["bench"]]).exists():
            scale_page.write(result, own)


def text(found: Sequence[dict[str, Any]], results: str) -> str:
    """The page. ``results``: the folder of results, as the page's links name it."""
    parts = [HEAD, _machine(found), "## Goals\n", _goals(found), f"![measured against limit]({results}/goals.svg)\n"]
    parts += [_bench(result, results) for result in found]
    return "\n".join(parts)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def _figure(figure: dict[str, Any]) -> str:
    return f"{_number(figure['median'])} ({_number(figure['min'])} to {_number(figure['max'])})"


def _machine(found: Sequence[dict[str, Any]]) -> str:
    machines = {json.dumps(result["machine"], sort_keys=True): result["machine"] for result in found}
    lines = [
        f"Machine: {m['cpu']}, {m['cores']} cores, {m['memory_gb']} GB, Linux {m['kernel']}; Python {m['python']}, PostgreSQL "
        f"{m['postgresql']}, psycopg {m['psycopg']}, confluent-kafka {m['confluent-kafka']}. Database, broker and everything "
        "measured share it."
        for m in machines.values()
    ]
    return "\n\n".join(lines) + "\n"


def _goals(found: Sequence[dict[str, Any]]) -> str:
    """Every goal with what was measured, the best of the peers where one of them was measured at the same, and the command
    that measures it again."""
    rows = next((result["table"]["rows"] for result in found if result.get("table")), [])
    lines = ["| | Goal | Limit | Measured | | Best peer | Command | Load |", "|---|---|---|---|---|---|---|---|"]
    for result in found:
        load = result["load"]
        for goal in result["goals"]:
            measured = _figure({"median": goal["measured"], **goal})
            lines.append(
                f"| {goal['tag']} | {goal['what']} | {goal['sense']} {_number(goal['limit'])} | {measured} {goal['unit']} "
                f"| {'met' if goal['met'] else '**missed**'} | {_best(rows, goal)} | `make bench-{result['bench']}` "
                f"| {load['before']} before, {load['mean']} during |")
    return "\n".join(lines) + "\n"


def _best(rows: Sequence[dict[str, Any]], goal: dict[str, Any]) -> str:
    """Of other people's products, the one that came nearest; nobody else states the other goals. Peers' latency ends at a
    consumer, as ours does in the bench of peers."""
    name, unit, sign = {
        ("S1", "relay against the bare client"): ("drain_per_s", "events/s", -1),
        ("S2", "median, commit to confirmed"): ("p50_ms", "ms", 1),
        ("S2", "99 of 100, commit to confirmed"): ("p99_ms", "ms", 1),
    }.get((goal["tag"], goal["what"].rpartition(": ")[2]), ("", "", 1))
    seen = [
        (sign * row["figures"][name]["median"], row) for row in rows
        if name in row["figures"] and row["version"] and not row["peer"].startswith(("ours", *REFERENCES))
        and (sign < 0 or row["rate_per_s"] == 1000)
    ]
    if not seen:
        return "–"
    _, row = min(seen, key=lambda one: one[0])
    return f"{row['peer']} {_number(row['figures'][name]['median'])} {unit}"


def _bench(result: dict[str, Any], results: str) -> str:
    load = result["load"]
    setting = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in result["setting"].items())
    lines = [
        f"## {result['title']}\n", f"{result['how']}\n", f"Setting: {setting}. Measured {result['measured_at']}, in "
        f"{load['seconds']:.0f} s; load {load['before']} before, {load['mean']} during (at most {load['max']}).\n",
        *_shown(result),
        "", f"What it does not say: {result['silent_on']}\n",
    ]
    if result["series"] or result.get("table"):
        lines.append(f"![{result['title']}]({results}/{result['bench']}.svg)\n")
    return "\n".join(lines)


def _shown(result: dict[str, Any]) -> list[str]:
    """Its figures, as they are shown here."""
    if result["bench"] in OWN_PAGES:
        return [f"Its figures are in [a page of its own]({OWN_PAGES[result['bench']]})."]
    return _peers(result["table"]["rows"]) if result.get("table") else _list(result["figures"])


def _list(figures: dict[str, dict[str, Any]]) -> list[str]:
    return [
        "| Figure | Median (lowest to highest) | Unit |", "|---|---|---|",
        *(f"| {name} | {_figure(figure)} | {figure['unit']} |" for name, figure in figures.items()),
    ]


def _peers(rows: Sequence[dict[str, Any]]) -> list[str]:
    """One row per peer, those that could not be measured with the reason; then what each was set to."""
    return [
        "| Peer | Version | Drain, events/s | Live, events/s | Live, warm, events/s | Written, events/s | p50, ms | p99, ms "
        "| CPU, s per million events: relay | PostgreSQL | Kafka | Memory, MB | Order per key | Durability |",
        "|" + "---|" * 14,
        *(_peer(row) for row in rows), "", "Settings:", "",
        *(f"- {row['peer']}: {row['settings']}; {row['events']:,} events drained" for row in rows),
    ]


def _peer(row: dict[str, Any]) -> str:
    figures = row["figures"]

    def cell(name: str) -> str:
        return _figure(figures[name]) if name in figures else "–"

    def late(name: str) -> str:
        slower = name in figures and row["rate_per_s"] != 1000
        return cell(name) + (f" at {row['rate_per_s']:,}/s" if slower else "")

    begin = f"| {row['peer']} | {row['version']} "
    if row["missing"]:
        reason = row["missing"].replace("|", "/").replace("\n", " ")
        return f"{begin}| not measured: {reason} " + "| " * 9 + f"| {row['order']} | {row['durability']} |"
    seen = f"{figures['swapped']['max']:,} swapped" if figures["swapped"]["max"] else "none swapped"
    cells = [
        cell("drain_per_s"), cell("live_per_s"), cell("live_warm_per_s"), cell("written_per_s"), late("p50_ms"), late("p99_ms"),
        *(cell(name) for name in ("cpu_s", "postgresql_cpu_s", "kafka_cpu_s", "rss_mb")),
        f"{row['order']}; {seen}", row["durability"],
    ]
    return begin + "".join(f"| {text} " for text in cells) + "|"
