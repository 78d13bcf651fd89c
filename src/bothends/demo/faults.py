"""Faults: what is done to a run, and when: at moments drawn over its progress, not over the clock. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

__all__ = ["KINDS", "Act", "Fault", "Kind", "plan"]

Kind = Literal["none", "crash", "acks", "outage", "all"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Act = Literal["kill", "rewind", "forget", "broker outage", "database outage"]

KILLS_MIN = 5
INVOICES_PER_KILL = 400
REWIND_MAX = 500
_FIRST, _LAST = 0.03, 0.93


class Fault(NamedTuple):
    """``at`` is a progress from 0 to 1. ``target`` names who is hit, ``size`` how far a position is moved back."""

    at: float
    act: Act
    target: str = ""
    size: int = 0


def plan(kind: Kind, seed: int, invoices: int, processes: Sequence[str], consumers: Sequence[str]) -> list[Fault]:
    """The faults of a run, in order of progress. ``processes`` are relays and workers, ``consumers`` whose stored
    positions can be moved. The same seed gives the same plan."""
    rng = random.Random(seed)
    faults: list[Fault] = []
    if kind in ("crash", "all"):
        kills = max(KILLS_MIN, invoices // INVOICES_PER_KILL)
        # Each process in turn, shuffled: a short run kills relays and workers both.
        turns = [rng.sample(list(processes), len(processes)) for _ in range(kills // len(processes) + 1)]
        targets = [name for turn in turns for name in turn][:kills]
        faults += [Fault(_moment(rng), "kill", name) for name in targets]
    if kind in ("acks", "all"):
        faults += [Fault(_moment(rng), "rewind", name, rng.randint(1, REWIND_MAX)) for name in consumers]
        # At once, while orders are being placed; the payments' outbox is at work until the end.
        faults += [Fault(0.0, "forget", "orders"), Fault(_moment(rng) * 0.7, "forget", "payments")]
    if kind in ("outage", "all"):
        faults += [Fault(rng.uniform(0.15, 0.45), "broker outage"), Fault(rng.uniform(0.5, 0.8), "database outage")]
    return sorted(faults, key=lambda fault: fault.at)


def _moment(rng: random.Random) -> float:
    return rng.uniform(_FIRST, _LAST)
