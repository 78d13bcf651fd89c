"""Boundaries and faults: where something can go wrong, and what. The table of which fault fits which boundary."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["FAULTS", "RELAY", "WORKER", "Boundary", "Crash", "Fault", "Kind", "Plan", "Where"]

RELAY, WORKER = "relay", "worker"
"""The two processes of an exploration; all consumers share the worker."""


class Kind(enum.Enum):
    """What is about to happen at a boundary."""

    BEGIN = "begin"
    SQL = "sql"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    PUBLISH = "publish"
    DELIVER = "deliver"
    ACK = "acknowledge"
    CALL = "call"


class Fault(enum.Enum):
    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after"
    FAILS = "fails"
    """Raises, and did not happen."""
    HAPPENED = "fails although it happened"
    LOST_ACK = "lost acknowledgement"
    DUPLICATE = "duplicate"
    DELAYED_COPY = "delayed copy"
    REORDER = "reordered"

    @property
    def is_crash(self) -> bool:
        return self in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER)


FAULTS: Mapping[Kind, tuple[Fault, ...]] = {
    Kind.COMMIT: (Fault.HAPPENED, Fault.FAILS),
    Kind.CALL: (Fault.HAPPENED, Fault.FAILS),
    Kind.ACK: (Fault.LOST_ACK,),
    Kind.DELIVER: (Fault.DUPLICATE, Fault.DELAYED_COPY, Fault.REORDER),
    Kind.PUBLISH: (Fault.HAPPENED, Fault.FAILS, Fault.DUPLICATE),
    Kind.SQL: (Fault.FAILS,),
    Kind.BEGIN: (),
    Kind.ROLLBACK: (),
}
"""Beside crashes, which fit everywhere."""


class Crash(BaseException):
    """The process dies here. No error: ``except Exception`` must not stop it, and whoever stops it all the same gets it
    again at the next boundary."""


@dataclass(frozen=True, slots=True)
class Where:
    """A line of the user's code."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Boundary:
    """One boundary of one run. ``number`` counts from 0 over all processes."""

    number: int
    kind: Kind
    process: str
    text: str
    """What is done, in words or as the statement's own text."""
    consumer: str = ""
    message: str = ""
    """``order.paid #1``: the message in hand, by its place in publication."""
    users: bool = False
    """Whether the user's code asks for it."""
    durable: bool = False
    """Whether it leaves something behind that a crash does not undo."""
    where: Where | None = None
    detail: Mapping[str, str] = field(default_factory=dict)


Plan = Mapping[int, Fault]
"""Faults by the number of the boundary; an empty one is the undisturbed run."""
