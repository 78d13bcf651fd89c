"""Drawing: which faults a soak applies, and when, from its seed alone. Pure.

Three lines run beside each other: what is done to processes, to the way to the broker, and to the way to the database. Within a
line kinds are dealt like cards, one shuffled pack after the other, so that each comes equally often; moments, targets and
lengths are dice.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

Line = Literal["processes", "broker", "database"]
Kind = Literal[
    "kill", "stop child", "stop tree", "drop", "delay", "silent requests", "silent answers", "lost answers", "outage"
]

Packs = Mapping[Line, Sequence[Kind]]

PROCESS_PACK: Sequence[Kind] = ("kill", "kill", "stop child", "kill", "stop tree")
WAY_PACK: Sequence[Kind] = ("drop", "delay", "silent requests", "silent answers", "lost answers", "outage")
EVERYTHING: Packs = {"processes": PROCESS_PACK, "broker": WAY_PACK, "database": WAY_PACK}
LENGTHS_S: dict[Kind, tuple[float, float]] = {
    "stop child": (5.5, 12.0), "stop tree": (5.5, 12.0),  # longer than the lease (4 s) and the watchdog (5 s)
    "delay": (3.0, 8.0), "silent requests": (2.0, 12.0), "silent answers": (2.0, 12.0),
    "lost answers": (0.05, 0.5),  # a few answers, and then the reset
    "outage": (2.0, 10.0),
}
"""From and to; a kind that is not here is over at once."""
PAUSES_S: dict[Line, tuple[float, float]] = {"processes": (1.0, 5.0), "broker": (4.0, 14.0), "database": (5.0, 16.0)}
"""Between the beginnings of two faults of processes, and between the end of one and the beginning of the next on a way: work
must go on in between."""
DELAY_S = (0.01, 0.4)
FIRST_S = 2.0


class Fault(NamedTuple):
    at_s: float
    """Since the beginning of the load."""
    line: Line
    kind: Kind
    length_s: float = 0.0
    dice: float = 0.0
    """From 0 to 1: which process it hits; how long a delay is."""

    @property
    def name(self) -> str:
        return self.kind if self.line == "processes" else f"{self.line} {self.kind}"


def schedule(seed: int, seconds: float, packs: Packs = EVERYTHING) -> list[Fault]:
    """All faults of a soak that lasts so long, by their time. They end within it."""
    return sorted(
        fault for line, pack in packs.items() for fault in _line(line, pack, random.Random(f"{seed} {line}"), seconds)
    )


def _line(line: Line, pack: Sequence[Kind], rng: random.Random, seconds: float) -> Iterator[Fault]:
    at_s = FIRST_S
    for kind in _dealt(pack, rng):
        at_s += rng.uniform(*PAUSES_S[line])
        length_s = rng.uniform(*LENGTHS_S[kind]) if kind in LENGTHS_S else 0.0
        if at_s + length_s > seconds:
            return
        yield Fault(round(at_s, 2), line, kind, round(length_s, 2), rng.random())
        at_s += length_s if line != "processes" else 0.0


def _dealt(pack: Sequence[Kind], rng: random.Random) -> Iterator[Kind]:
    while True:
        yield from rng.sample(pack, len(pack))
