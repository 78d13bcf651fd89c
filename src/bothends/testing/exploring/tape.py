"""Tape: one run, boundary by boundary. Everything that can be disturbed passes here, and the plan says what happens."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TypeVar

from bothends.testing.exploring.boundaries import RELAY, Boundary, Crash, Fault, Kind, Plan, Where

__all__ = ["BOUNDARIES_MAX", "Mark", "Runaway", "Tape"]

T = TypeVar("T")

BOUNDARIES_MAX = 20_000
"""Of one run. A case of a few events has some hundreds."""
_FRAMES_MAX = 200


class Runaway(BaseException):
    """A run that does not end."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What happens beside boundaries: a death, a start, an outcome. ``after`` is the number of boundaries before it."""

    after: int
    process: str
    kind: str
    """``fault``, ``dies``, ``starts``, ``ran``, ``outcome``, ``remembers``, ``forgets``, ``waits``, ``undone``."""
    text: str
    consumer: str = ""
    message: str = ""


class Tape:
    """``plan`` holds faults by number. With ``detailed`` each boundary of the user's knows its line (``is_users`` says of a
    file whether it is the user's)."""

    def __init__(
        self, plan: Plan, *, detailed: bool = False, is_users: Callable[[str], bool] = lambda _: False
    ) -> None:
        self.plan = plan
        self.boundaries: list[Boundary] = []
        self.marks: list[Mark] = []
        self.applied: list[Boundary] = []
        """The boundaries whose faults have struck."""
        self.process = RELAY
        self.consumer = self.message = ""
        self.handler: Where | None = None
        """Where the handler that runs now is defined."""
        self.running = False
        """Whether a handler runs: what is asked for is the user's."""
        self.dead = self.over = False
        self._detailed, self._is_users = detailed, is_users
        self._names: dict[tuple[str, str], str] = {}
        self._members: dict[str, tuple[str, ...]] = {}

    def resume(self, before: Tape) -> None:
        """Goes on from where ``before`` stands, whose boundaries and names are this run's as well."""
        self.boundaries, self.marks = list(before.boundaries), list(before.marks)
        self._names, self._members = dict(before._names), dict(before._members)

    # Names

    def name(self, source: str, id: str, type: str) -> str:
        """``order.paid #1``: the same for every copy."""
        found = self._names.get((source, id))
        if found is None:
            found = self._names[(source, id)] = f"{type} #{len(self._names) + 1}"
        return found

    def together(self, names: Sequence[str]) -> str:
        """One name for messages that are in hand together."""
        name = " + ".join(names)
        self._members[name] = tuple(names)
        return name

    def members(self, name: str) -> tuple[str, ...]:
        """The names of the messages that go by ``name``."""
        return self._members.get(name, (name,))

    # Boundaries

    def through(
        self, kind: Kind, text: str, do: Callable[[], T], fail: Callable[[], BaseException], *, users: bool = False,
        durable: bool = False,
    ) -> T:
        """Does ``do()`` as the plan says; ``fail()`` makes the error of a fault that lets it fail."""
        fault = self.arrive(kind, text, users=users, durable=durable)
        if fault is None:
            return do()
        if fault is Fault.FAILS:
            raise fail()
        result = do()
        if fault is Fault.CRASH_AFTER:
            self.die()
        if fault is Fault.HAPPENED:
            raise fail()
        if fault is Fault.DUPLICATE:
            do()
        return result

    def arrive(self, kind: Kind, text: str, *, users: bool = False, durable: bool = False) -> Fault | None:
        """The boundary is reached: the fault that the caller has to carry out, if any. Raises Crash."""
        if self.dead or self.over:
            raise Crash
        number = len(self.boundaries)
        if number >= BOUNDARIES_MAX:
            raise Runaway(f"a run of this case passes more than {BOUNDARIES_MAX} boundaries; give it fewer events")
        where = self._where() if self._detailed and users else None
        boundary = Boundary(
            number, kind, self.process, text, self.consumer, self.message, users, durable, where
        )
        self.boundaries.append(boundary)
        fault = self.plan.get(number)
        if fault is not None:
            self.applied.append(boundary)
            self.mark("fault", fault.value)
            if fault is Fault.CRASH_BEFORE:
                self.die()
        return fault

    def die(self) -> None:
        """The process is gone: nothing of it passes a boundary any more."""
        self.dead = True
        self.mark("dies", "dies")
        raise Crash

    def revive(self) -> None:
        """The explorer has cleared the dead process away."""
        self.dead = self.running = False
        self.consumer = self.message = ""
        self.handler = None

    def mark(self, kind: str, text: str) -> None:
        self.marks.append(Mark(len(self.boundaries), self.process, kind, text, self.consumer, self.message))

    def in_order(self) -> Iterator[Boundary | Mark]:
        """Boundaries and marks as they came."""
        next_mark = 0
        for boundary in self.boundaries:
            while next_mark < len(self.marks) and self.marks[next_mark].after <= boundary.number:
                yield self.marks[next_mark]
                next_mark += 1
            yield boundary
        yield from self.marks[next_mark:]

    def _where(self) -> Where | None:
        """The innermost line of the user's on the stack, else the handler that runs."""
        frame: FrameType | None = sys._getframe(2)
        for _ in range(_FRAMES_MAX):
            if frame is None:
                break
            code = frame.f_code
            if self._is_users(code.co_filename):
                return Where(code.co_filename, frame.f_lineno, code.co_name)
            frame = frame.f_back
        return self.handler
