"""Figures: what a bench reports. A median never comes without its spread, a ratio never without the goal it is held to."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, Literal

__all__ = ["figure", "goal", "percentile", "ratios", "report"]


def figure(values: Sequence[float], unit: str, digits: int = 0) -> dict[str, Any]:
    """The median of the rounds, the lowest, the highest, and each one."""
    def rounded(value: float) -> float:
        return round(value, digits) if digits else round(value)

    return {
        "unit": unit, "median": rounded(statistics.median(values)), "min": rounded(min(values)), "max": rounded(max(values)),
        "all": [rounded(value) for value in values],
    }


def ratios(ours: Sequence[float], reference: Sequence[float]) -> list[float]:
    """Round by round: neighbours in time share the machine's moods."""
    return [mine / other for mine, other in zip(ours, reference, strict=True)]


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least ``percent`` of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-len(ordered) * percent // 100) - 1))]


def goal(
    tag: str, what: str, measured: dict[str, Any], sense: Literal["at least", "at most"], limit: float
) -> dict[str, Any]:
    """``tag``: the requirement. ``measured``: a figure, whose median counts. Nobody fails by it: it is said."""
    median = measured["median"]
    return {
        "tag": tag, "what": what, "sense": sense, "limit": limit, "measured": median, "min": measured["min"],
        "max": measured["max"], "unit": measured["unit"], "met": median >= limit if sense == "at least" else median <= limit,
    }


def report(
    title: str, how: str, silent_on: str, *, setting: dict[str, Any], figures: dict[str, dict[str, Any]],
    goals: Sequence[dict[str, Any]] = (), series: dict[str, Any] | None = None, table: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """What ``measure`` returns. ``silent_on``: what the figures don't say. ``series``: points for a plot. ``table``: what
    the page shows instead of the list of figures."""
    return {
        "title": title, "how": " ".join(how.split()), "silent_on": " ".join(silent_on.split()), "setting": setting,
        "figures": figures, "goals": list(goals), "series": series or {},
        "table": table or {},
    }
