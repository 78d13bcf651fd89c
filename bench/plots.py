"""Plots: one picture of all ratios against their goals, one of each series."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

__all__ = ["goals", "peers", "series"]

OURS, GOAL, MISSED = "#2f6f8f", "#333333", "#b5502f"
# Without a date and with fixed ids the same figures give the same file.
_METADATA: dict[str, Any] = {"Date": None}


def _save(figure: Any, path: Path) -> None:
    matplotlib.rcParams["svg.hashsalt"] = "bothends"
    figure.tight_layout()
    figure.savefig(path, metadata=_METADATA)
    plt.close(figure)
    # matplotlib ends lines of path data with blanks, which makes noise in every diff
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")


def goals(results: list[dict[str, Any]], path: Path) -> None:
    """Each goal as a bar: how far the measured value is from its limit, 1 being the limit, with the spread. What has to be
    nothing has no bar."""
    rows = [(result, goal) for result in results for goal in result["goals"] if goal["limit"]]
    figure, axes = plt.subplots(figsize=(9, 0.42 * len(rows) + 1.2))
    for at, (_, goal) in enumerate(rows):
        limit = goal["limit"]
        low, value, high = goal["min"] / limit, goal["measured"] / limit, goal["max"] / limit
        axes.barh(at, value, color=OURS if goal["met"] else MISSED, height=0.6)
        axes.plot([low, high], [at, at], color=GOAL, linewidth=1.2)
    axes.axvline(1.0, color=GOAL, linestyle="--", linewidth=1)
    axes.set_yticks(range(len(rows)), [f"{goal['tag']} {goal['what']} ({goal['sense']})" for _, goal in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, max(2.0, *(min(3.0, goal["max"] / goal["limit"]) for _, goal in rows)) if rows else 2.0)
    axes.set_xlabel("measured / limit (line: lowest to highest round)")
    _save(figure, path)


def series(result: dict[str, Any], path: Path) -> None:
    """The points of one bench: its first column along, the others as lines, each with its own scale from zero."""
    columns, points = result["series"]["columns"], result["series"]["points"]
    figure, panels = plt.subplots(len(columns) - 1, 1, figsize=(8, 1.9 * (len(columns) - 1) + 0.6), sharex=True, squeeze=False)
    for number, panel in enumerate(panels[:, 0], 1):
        panel.plot([p[0] for p in points], [p[number] for p in points], color=OURS, marker="." if len(points) < 20 else None)
        panel.set_ylabel(columns[number])
        panel.set_ylim(bottom=0)
    panels[-1, 0].set_xlabel(columns[0])
    figure.suptitle(result["title"], fontsize=10)
    _save(figure, path)


def peers(result: dict[str, Any], path: Path) -> None:
    """Each peer that was measured: what it drains and publishes live, and its latency; by powers of ten."""
    rows = [row for row in result["table"]["rows"] if not row["missing"]]
    figure, panels = plt.subplots(1, 2, figsize=(9, 0.5 * len(rows) + 1.4), sharey=True)
    for panel, names, title in (
        (panels[0], ("drain_per_s", "live_per_s"), "events/s: backlog (dark), live (light)"),
        (panels[1], ("p99_ms", "p50_ms"), "ms: 99 of 100 (dark), median (light)"),
    ):
        for number, name in enumerate(names):
            for at, row in enumerate(rows):
                if (value := row["figures"].get(name)) is not None:
                    where = at + 0.4 * number - 0.2
                    panel.barh(where, value["median"], color=OURS, alpha=0.45 if number else 1.0, height=0.38)
                    panel.plot([value["min"], value["max"]], [where, where], color=GOAL, linewidth=1.2)
        panel.set_xscale("log")
        panel.set_xlabel(title)
    panels[0].set_yticks(range(len(rows)), [row["peer"] for row in rows], fontsize=8)
    panels[0].invert_yaxis()
    figure.suptitle(result["title"], fontsize=10)
    _save(figure, path)
