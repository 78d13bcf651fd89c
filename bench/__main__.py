"""`python -m bench [NAMES...] [--quick] [--json FILE] [--rounds N]`: measure, write results, plots and docs/benchmarks.md.

A goal that is missed is shown, and does not fail the command. ``--quick`` runs the smallest measurement that means
anything, prints it, and writes nothing but FILE.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import machine

NAMES = (
    "relay", "latency", "worker", "enqueue", "failing_key", "backlog", "growth", "pinned", "kill", "rebalance", "embedded",
    "scale", "peers",
)
RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
ROUNDS_MAX = 1000


def run(name: str, rounds: int | None, quick: bool, only: Sequence[str] = ()) -> dict[str, Any]:
    """One bench's report, with the machine and its load while it ran. ``only``: these peers."""
    bench = importlib.import_module(f"bench.{name}")
    with machine.Load() as load:
        measured: dict[str, Any] = bench.measure(rounds, quick, only) if only else bench.measure(rounds, quick)
    return {
        "bench": name, "quick": quick, "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **measured, "load": load.figures(), "machine": machine.describe(),
    }


def summary(result: dict[str, Any]) -> str:
    lines = [f"{result['title']} ({result['load']['seconds']:.0f} s, load {result['load']['mean']})"]
    for name, figure in result["figures"].items():
        lines.append(f"  {name:28} {figure['median']:>12,} {figure['unit']} ({figure['min']:,} to {figure['max']:,})")
    for goal in result["goals"]:
        lines.append(f"  {goal['tag']} {goal['what']}: {goal['measured']} {goal['unit']}, {goal['sense']} {goal['limit']}: "
                     + ("met" if goal["met"] else "MISSED"))
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.partition(":")[2].strip())
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which; without a name all: {' '.join(NAMES)}")
    parser.add_argument("--quick", action="store_true", help="small and inexact; nothing is written to bench/results")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all reports, as one array, to FILE")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds of each bench (default: what it needs)")
    parser.add_argument("--only", metavar="PEERS", help="of the bench `peers`: these, separated by commas")
    parser.add_argument("--page", action="store_true", help="measure nothing: make plots and page from bench/results")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"no such bench: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    if options.rounds is not None and not 1 <= options.rounds <= ROUNDS_MAX:
        parser.error(f"--rounds is 1 to {ROUNDS_MAX}")
    only = options.only.split(",") if options.only else []
    if only and options.names != ["peers"]:
        parser.error("--only goes with the one name peers")
    results = []
    for name in [] if options.page else options.names or NAMES:
        result = run(name, options.rounds, options.quick, only)
        results.append(result)
        print(summary(result), flush=True)
        if not options.quick:
            RESULTS.mkdir(exist_ok=True)
            (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    if not options.quick:
        from bench import page

        page.write(NAMES, RESULTS, PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
