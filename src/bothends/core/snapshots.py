"""Snapshots of PostgreSQL, as text ``xmin:xmax:xip,xip``: which transactions they see. Source: PostgreSQL, 9.27.10."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

from bothends.core.lanes import LANES, lane
from bothends.core.relaying import Stream

__all__ = ["Snapshot", "covers"]


class Snapshot(NamedTuple):
    """A transaction is seen if it is below ``xmax`` and not in ``running``."""

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError for what is no snapshot."""
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(int(xid) for xid in running.split(",") if xid))

    def sees(self, xid: int) -> bool:
        return xid < self.xmin or (xid < self.xmax and xid not in self.running)

    def includes(self, other: Snapshot) -> bool:
        """Whether every transaction that ``other`` sees is seen here too."""
        if self.xmax < other.xmax:
            return False
        return not any(other.sees(xid) for xid in self.running)


def covers(streams: Sequence[Stream]) -> Callable[[int, int, bytes | None], bool]:
    """Which rows of the outbox are done where the streams stand: by (seq, xid, key)."""
    places = [(stream.lanes, stream.hwm, Snapshot.parse(stream.snapshot)) for stream in streams]
    newest = max((snapshot.xmax for _, _, snapshot in places), default=0)
    highest = max((hwm for _, hwm, _ in places), default=0)

    def covered(seq: int, xid: int, key: bytes | None) -> bool:
        if seq > highest or xid >= newest:  # nearly always, and a lane is a hash
            return False
        mine = 1 << (lane(key) if key is not None else seq % LANES)
        return any(seq <= hwm and snapshot.sees(xid) for lanes, hwm, snapshot in places if lanes & mine)

    return covered
