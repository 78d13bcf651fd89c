"""Capacity: what a backlog and two rates mean [M1][M6]. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["drain_s", "rate_per_s"]


def drain_s(waiting: int, in_per_s: float, out_per_s: float) -> float | None:
    """Seconds until nothing waits at these rates: 0 where nothing does, None where it never ends.

    360,000 waiting, 100/s coming and 300/s going take 1,800 s.
    """
    if waiting <= 0:
        return 0.0
    net = out_per_s - in_per_s
    return waiting / net if net > 0 else None


def rate_per_s(ages_s: Sequence[float], counts: Sequence[int] | None = None, *, window_s: float = 60.0) -> float:
    """Events per second over the last ``window_s``, from the ages of the newest observations (youngest first), each of
    which stands for one event or for its number in ``counts``. Where more lie in the window than were looked at, the
    window is as long as they reach."""
    within = [(age, 1 if counts is None else counts[n]) for n, age in enumerate(ages_s) if age <= window_s]
    if not within:
        return 0.0
    cut = len(within) == len(ages_s) and len(ages_s) > 1
    length_s = within[-1][0] if cut else window_s
    return sum(count for _, count in within) / max(length_s, 0.001)
