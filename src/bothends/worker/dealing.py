"""Dealing: which slot a message goes to. What runs in parallel costs a transaction each, so it is done where it helps.

Messages of one line (a topic's key) that are in hand are on one slot, one after the other. Any other goes to the first slot
that will soon be done with what it has; so quick handlers fill the batches of one slot, and slow ones use them all.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

__all__ = ["SOON_S", "Dealing", "Line"]

Line = tuple[str, bytes]
"""(topic, key)."""
SOON_S = 0.02
_FIRST_S = SOON_S
"""What a message is taken to cost before any was handled: one for each slot."""
_WEIGHT = 0.2
"""Of the newest batch in what a message is said to cost."""


class Dealing:
    """``now_s`` is any clock that runs on, the same one everywhere. Called by any thread."""

    def __init__(self, slots: int) -> None:
        self._lines: dict[Line, list[int]] = {}  # slot, messages on it
        self._loads = [0] * slots
        self._since: list[float | None] = [None] * slots
        self._cost_s = _FIRST_S
        self._lock = threading.Lock()

    def deal(self, line: Line | None, now_s: float) -> int:
        """The slot for one more message (None: of no line). It is on it until ``leave``."""
        with self._lock:
            found = self._lines.get(line) if line is not None else None
            if found is None:
                slot = self._choose(now_s)
                if line is not None:
                    self._lines[line] = [slot, 1]
            else:
                slot = found[0]
                found[1] += 1
            self._loads[slot] += 1
            return slot

    def leave(self, slot: int, lines: Iterable[Line | None]) -> None:
        """One message each has left the slot: it is done, set aside, or nobody's business any more."""
        with self._lock:
            for line in lines:
                self._loads[slot] -= 1
                found = self._lines.get(line) if line is not None else None
                if found is not None and line is not None:
                    found[1] -= 1
                    if not found[1]:
                        del self._lines[line]

    def begin(self, slot: int, now_s: float) -> None:
        """The slot begins a batch."""
        self._since[slot] = now_s

    def end(self, slot: int, now_s: float, messages: int) -> None:
        """It has come through with it, or given it up."""
        with self._lock:
            began_s, self._since[slot] = self._since[slot], None
            if began_s is not None and messages:
                self._cost_s += _WEIGHT * ((now_s - began_s) / messages - self._cost_s)

    def loads(self) -> list[int]:
        """Messages on each slot."""
        return list(self._loads)

    def lines(self) -> int:
        """Lines of which something is in hand."""
        return len(self._lines)

    def _choose(self, now_s: float) -> int:
        best, best_rank = 0, (True, 1 << 62)
        for slot, load in enumerate(self._loads):
            since = self._since[slot]
            late = since is not None and now_s - since > SOON_S
            if not load or (not late and (load + 1) * self._cost_s <= SOON_S):
                return slot
            rank = (late, load)
            if rank < best_rank:
                best, best_rank = slot, rank
        return best
