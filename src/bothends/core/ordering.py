"""Settling: which position of a partition may be stored, when records are settled in any order.

A log's position says "everything before me is done". Records are handed out in log order but settle out of order, so the
position may only move over an unbroken run of settled records. Offsets may have gaps (transaction markers, compaction,
retention), so a run is unbroken over the records that were *handed out*, not over the integers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

__all__ = ["UNSETTLED_MAX", "Run", "Runs"]

P = TypeVar("P", bound=Hashable)

UNSETTLED_MAX = 100_000
"""Records that one member may have in hand, over all its partitions."""


class Run:
    """One partition: the records in hand, oldest first, and the position up to which all are settled.

    Invariant: ``position`` only grows, except by ``rewind``; every record in hand has an offset of at least ``position``;
    the oldest record in hand is not settled.
    """

    __slots__ = ("_in_hand", "_settled", "next", "position")

    def __init__(self, position: int) -> None:
        self.position = position
        """What may be stored: the offset after the last record of the settled run."""
        self.next = position
        """Records below this offset have been handed out already."""
        self._in_hand: deque[int] = deque()
        self._settled: set[int] = set()

    def __len__(self) -> int:
        return len(self._in_hand)

    def hand_out(self, offset: int) -> None:
        """The record at ``offset`` goes to the worker. Offsets grow strictly within a partition."""
        if offset < self.next:
            raise ValueError(f"offset {offset} was handed out before; the next one is at least {self.next}")
        self._in_hand.append(offset)
        self.next = offset + 1

    def settle(self, offset: int) -> int:
        """The record at ``offset`` is done. How many records ``position`` has moved over by it: 0 while an older one is in
        hand. Strangers and repetitions are ignored."""
        in_hand, settled = self._in_hand, self._settled
        if not in_hand or not in_hand[0] <= offset < self.next:
            return 0
        if offset != in_hand[0]:
            settled.add(offset)
            return 0
        before = len(in_hand)
        in_hand.popleft()
        self.position = offset + 1
        while in_hand and in_hand[0] in settled:
            head = in_hand.popleft()
            settled.remove(head)
            self.position = head + 1
        if not in_hand:
            settled.clear()  # what is left was never handed out: offsets in a gap
        return before - len(in_hand)

    def rewind(self, offset: int) -> None:
        """Records from ``offset`` on will be handed out again; those before it stay in hand."""
        while self._in_hand and self._in_hand[-1] >= offset:
            self._in_hand.pop()
        self._settled = {settled for settled in self._settled if settled < offset}
        self.position = min(self.position, offset)
        self.next = offset


class Runs(Generic[P]):
    """The runs of all partitions that one member holds, and which positions have still to be stored."""

    def __init__(self, unsettled_max: int = UNSETTLED_MAX) -> None:
        self._runs: dict[P, Run] = {}
        self._moved: set[P] = set()
        self._unsettled = 0
        self._unsettled_max = unsettled_max

    def __contains__(self, partition: P) -> bool:
        return partition in self._runs

    def __iter__(self) -> Iterator[P]:
        return iter(self._runs)

    @property
    def unsettled(self) -> int:
        """Records in hand, over all partitions."""
        return self._unsettled

    @property
    def room(self) -> int:
        """How many more records may be handed out now; never negative."""
        return max(0, self._unsettled_max - self._unsettled)

    def begin(self, partition: P, position: int) -> None:
        """The partition is ours from now on. What an earlier ownership left is forgotten."""
        self.end(partition)
        self._runs[partition] = Run(position)

    def end(self, partition: P) -> None:
        """The partition is gone: settling its records has no effect any more."""
        run = self._runs.pop(partition, None)
        if run is not None:
            self._unsettled -= len(run)
        self._moved.discard(partition)

    def hand_out(self, partition: P, offset: int) -> None:
        self._runs[partition].hand_out(offset)
        self._unsettled += 1

    def settle(self, partition: P, offset: int) -> None:
        run = self._runs.get(partition)
        if run is not None and (gone := run.settle(offset)):
            self._unsettled -= gone
            self._moved.add(partition)

    def rewind(self, partition: P, offset: int) -> bool:
        """False when the partition is not ours."""
        run = self._runs.get(partition)
        if run is None:
            return False
        before, position = len(run), run.position
        run.rewind(offset)
        self._unsettled -= before - len(run)
        if run.position != position:
            self._moved.add(partition)
        return True

    def position(self, partition: P) -> int:
        return self._runs[partition].position

    def next(self, partition: P) -> int:
        return self._runs[partition].next

    def to_store(self) -> dict[P, int]:
        """The positions that moved since ``stored``."""
        return {partition: self._runs[partition].position for partition in self._moved}

    def stored(self, positions: dict[P, int]) -> None:
        """These positions are stored; a partition that has moved on meanwhile stays to be stored."""
        for partition, position in positions.items():
            run = self._runs.get(partition)
            if run is not None and run.position == position:
                self._moved.discard(partition)

    def not_stored(self, partition: P) -> None:
        """Storing failed: it is due again."""
        if partition in self._runs:
            self._moved.add(partition)
