"""Floor: what the poll thread, the slots and the keeper of one worker share."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from bothends.message import Record
from bothends.ports import Partition
from bothends.stores.inboxes import Lease
from bothends.worker.dealing import Dealing, Line
from bothends.worker.isolation import PROCESS, Isolation
from bothends.worker.rhythm import Rhythm

if TYPE_CHECKING:
    from bothends.worker.engine import Plan

__all__ = ["Delivered", "Failed", "Floor", "HandlerStuck", "Item", "StoreLost"]


class Item(NamedTuple):
    """A record in hand, where it came from, the ownership under which it came, and what it must not overtake."""

    record: Record
    partition: Partition
    generation: int
    line: Line | None


class Delivered(NamedTuple):
    """Told to ``observe``: what became of one batch. ``outcomes`` counts by outcome; ``seconds`` is the time it took."""

    consumer: str
    outcomes: dict[str, int]
    seconds: float


class Failed(NamedTuple):
    """Told to ``observe``: a run failed, or a message cannot be handled at all; of a batch handler's call with several messages
    its first."""

    consumer: str
    outcome: str
    """``parked``, ``forwarded`` (it runs again), ``dead``, or ``apart`` (several messages, which run again one by one)."""
    type: str
    id: str
    attempts: int
    reason: str
    error: str
    fingerprint: str


class StoreLost(NamedTuple):
    """Told to ``observe``: the database cannot be used; consumption of these messages waits."""

    consumer: str


class HandlerStuck(NamedTuple):
    """Told to ``observe``: a synchronous handler ran longer than ``timeout_s`` and was abandoned."""

    consumer: str


def _silent(_: object) -> None:
    pass


@dataclass(eq=False)
class Floor:
    plan: Plan | None
    group: str
    dealing: Dealing
    turning: Rhythm
    """The turns of the poll thread, which waits for nobody: they pause where nothing of this process runs."""
    answering: Rhythm
    """The database's answers to the keeper, which asks all the time."""
    loop: asyncio.AbstractEventLoop | None = None
    resources: Any = None
    isolation: Isolation = PROCESS
    observe: Callable[[object], None] = _silent
    stopping: threading.Event = field(default_factory=threading.Event)
    """No new work is begun."""
    halted: threading.Event = field(default_factory=threading.Event)
    """Nothing may be committed any more: the time to stop is over."""
    suspects_known: threading.Event = field(default_factory=threading.Event)
    """The marks that a dead process left have been read since the last assignment."""
    wake: threading.Event = field(default_factory=threading.Event)
    """Something was parked: the keeper looks at once."""
    paused: bool = False
    """An operator has paused the consumer."""
    settled: deque[Item] = field(default_factory=deque)
    generations: dict[Partition, int] = field(default_factory=dict)
    waiting: set[Partition] = field(default_factory=set)
    """Partitions that wait for a parked message (``mode="block"``)."""
    set_aside: dict[Partition, list[tuple[float, Item]]] = field(default_factory=dict)
    """Records whose time has not come: due (database time; 0: when their partition no longer waits)."""
    leases: dict[Any, Lease] = field(default_factory=dict)
    """Keys that this worker drains."""
    outcomes: Counter[str] = field(default_factory=Counter)
    lock: threading.RLock = field(default_factory=threading.RLock)
    _clock_offset: float | None = None

    def watch(self) -> Callable[[], bool]:
        """Whether the database has been silent since this call, for long, while this process went on."""
        since_s = time.monotonic()

        def cut_off() -> bool:
            now_s = time.monotonic()
            return self.answering.broke(since_s, now_s) and not self.turning.broke(since_s, now_s)

        return cut_off

    @property
    def the_plan(self) -> Plan:
        assert self.plan is not None
        return self.plan

    def owns(self, item: Item) -> bool:
        return self.generations.get(item.partition) == item.generation

    def fenced(self, holding: Iterable[tuple[Partition, int]]) -> bool:
        """Whether work on records of these partitions must not be committed."""
        return self.halted.is_set() or any(self.generations.get(p) != g for p, g in holding)

    def set_clock(self, database_s: float) -> None:
        self._clock_offset = database_s - time.monotonic()

    def now_s(self) -> float:
        """The database's time, Unix seconds, as of its last answer; this machine's until it has answered."""
        offset = self._clock_offset
        return time.time() if offset is None else time.monotonic() + offset

    def now(self) -> str:
        return datetime.fromtimestamp(self.now_s(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def count(self, outcomes: Counter[str]) -> None:
        with self.lock:
            self.outcomes += outcomes

    def take_counts(self) -> Counter[str]:
        with self.lock:
            taken, self.outcomes = self.outcomes, Counter()
            return taken

    def put_aside(self, item: Item, due_s: float = 0.0) -> None:
        with self.lock:
            self.set_aside.setdefault(item.partition, []).append((due_s, item))

    def take_due(self) -> list[Item]:
        """Records that were set aside and may go on, in the order of their partition."""
        if not self.set_aside:
            return []
        found: list[Item] = []
        now_s = self.now_s()
        with self.lock:
            for partition in list(self.set_aside):
                rows = sorted(self.set_aside[partition], key=lambda row: row[1].record.origin.offset)
                rows = [row for row in rows if self.owns(row[1])]
                if partition not in self.waiting:
                    while rows and rows[0][0] <= now_s:
                        found.append(rows.pop(0)[1])
                if rows:
                    self.set_aside[partition] = rows
                else:
                    del self.set_aside[partition]
        return found

    def settle(self, items: Iterable[Item]) -> None:
        self.settled.extend(items)

    def take_settled(self) -> list[Item]:
        settled, owned = self.settled, self.generations
        found: list[Item] = []
        while settled:
            item = settled.popleft()
            if owned.get(item.partition) == item.generation:
                found.append(item)
        return found
