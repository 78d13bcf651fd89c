"""The memory broker: logs of this process, shared by name (``memory://name``), for tests and for trying things out.

A log lives as long as the process. A member has no lease here: in one process it either polls or was closed.
"""

from __future__ import annotations

import threading
import time
import uuid
import zlib
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from bothends.brokers.logs.broker import LogBroker
from bothends.brokers.logs.log import Log, Member, Standing
from bothends.brokers.logs.refusing import fenced, refusals
from bothends.core.sharing import share
from bothends.errors import Blame, ConfigError, PositionLost, PublishError
from bothends.message import Origin, Record
from bothends.ports import Features, Outgoing, Partition

__all__ = ["MemoryBroker", "MemoryLog"]

RECORDS_MAX = 2_000_000
"""Of one log. What is read by everybody can be removed with ``trim``; deleting a topic removes all of it."""


class _Topic:
    def __init__(self, partitions: int) -> None:
        self.records: list[list[Record]] = [[] for _ in range(partitions)]
        self.low = [0] * partitions
        self.turn = 0

    def high(self, number: int) -> int:
        return self.low[number] + len(self.records[number])


class _Group:
    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.claims: dict[Partition, str] = {}
        self.positions: dict[Partition, int] = {}


class MemoryLog:
    """See ``logs.Log``. One lock around everything; nothing here takes long."""

    beat_s = 0.0

    def __init__(self) -> None:
        self._id = uuid.uuid4().hex
        self._changed = threading.Condition()
        self._version = 0
        self._count = 0
        self._topics: dict[str, _Topic] = {}
        self._groups: dict[str, _Group] = {}

    def identity(self) -> str:
        return self._id

    def ping(self, timeout_s: float) -> None:
        pass

    # Topics and records

    def partitions(self, topic: str) -> int:
        with self._changed:
            return self._partitions(topic)

    def _partitions(self, topic: str) -> int:
        found = self._topics.get(topic)
        return len(found.records) if found is not None else 0

    def create(self, topic: str, partitions: int) -> bool:
        with self._changed:
            if topic in self._topics:
                return False
            self._topics[topic] = _Topic(partitions)
            self._changed.notify_all()
            return True

    def delete(self, topic: str) -> None:
        with self._changed:
            found = self._topics.pop(topic, None)
            if found is not None:
                self._count -= sum(len(records) for records in found.records)
            for group in self._groups.values():
                group.claims = {p: m for p, m in group.claims.items() if p.topic != topic}
                group.positions = {p: o for p, o in group.positions.items() if p.topic != topic}
            self._changed.notify_all()

    def append(self, records: Sequence[Outgoing], timeout_s: float) -> dict[int, PublishError]:
        with self._changed:
            failures = refusals(records, self._partitions)
            if failures:
                return failures
            if self._count + len(records) > RECORDS_MAX:
                raise PublishError(f"the memory log holds {self._count} records, at most {RECORDS_MAX}: trim it or delete "
                                   f"topics", blame=Blame.BROKER, reason="full")
            now_ms = time.time_ns() // 1_000_000
            for name, key, value, headers in records:
                topic = self._topics[name]
                if key is None:
                    number = topic.turn = (topic.turn + 1) % len(topic.records)
                else:
                    number = zlib.crc32(key) % len(topic.records)
                origin = Origin(name, number, topic.high(number))
                topic.records[number].append(Record(origin, key, value, tuple(headers), now_ms))
            self._count += len(records)
            self._version += 1
            self._changed.notify_all()
            return {}

    def ends(self, topic: str) -> list[tuple[int, int]]:
        with self._changed:
            found = self._topics.get(topic)
            return [] if found is None else [(low, found.high(number)) for number, low in enumerate(found.low)]

    def read(self, partition: Partition, offset: int, max_records: int) -> list[Record]:
        with self._changed:
            topic = self._topics.get(partition.topic)
            if topic is None:
                return []
            low, high = topic.low[partition.number], topic.high(partition.number)
            if not low <= offset <= high:
                raise PositionLost(*partition, position=offset, low=low, high=high)
            start = offset - low
            return topic.records[partition.number][start:start + max_records]

    def trim(self, partition: Partition, before: int) -> None:
        with self._changed:
            topic = self._topics[partition.topic]
            gone = max(0, min(before, topic.high(partition.number)) - topic.low[partition.number])
            del topic.records[partition.number][:gone]
            topic.low[partition.number] += gone
            self._count -= gone

    def version(self) -> int:
        return self._version

    def wait(self, version: int, timeout_s: float) -> None:
        with self._changed:
            if self._version == version:
                self._changed.wait(timeout_s)

    # Groups

    def join(self, member: Member) -> None:
        with self._changed:
            self._groups.setdefault(member.group, _Group()).members[member.name] = member
            self._changed.notify_all()

    def beat(self, member: Member) -> Standing:
        with self._changed:
            group = self._groups[member.group]
            if group.members.get(member.name) is not member:
                raise fenced(member)
            surplus: list[Partition] = []
            wanting = False
            for topic in member.topics:
                count = self._partitions(topic)
                if not count:
                    continue
                self._start(group, topic, member)
                names = [name for name, other in group.members.items() if topic in other.topics]
                claims = {p.number: name for p, name in group.claims.items() if p.topic == topic}
                due = share(count, claims, names, member.name, zlib.crc32(topic.encode()))
                group.claims |= {Partition(topic, number): member.name for number in due.take}
                surplus += [Partition(topic, number) for number in due.give_up]
                wanting = wanting or due.wanting
            held = {p: group.positions[p] for p, name in group.claims.items() if name == member.name}
            return Standing(held, surplus, wanting)

    def _start(self, group: _Group, topic: str, member: Member) -> None:
        """Positions for partitions without one: as declared where the group is new to the topic, else from the first."""
        found = self._topics[topic]
        missing = [p for p in (Partition(topic, n) for n in range(len(found.records))) if p not in group.positions]
        new = len(missing) == len(found.records)
        for partition in missing:
            at = member.start.at if new else "earliest"
            low, high = found.low[partition.number], found.high(partition.number)
            if isinstance(at, str):
                group.positions[partition] = low if at == "earliest" else high
            else:
                since_ms = at.timestamp() * 1000
                later = (r.origin.offset for r in found.records[partition.number] if r.timestamp_ms >= since_ms)
                group.positions[partition] = next(later, high)

    def store(self, member: Member, positions: dict[Partition, int]) -> None:
        with self._changed:
            group = self._groups[member.group]
            if group.members.get(member.name) is member:
                mine = {p: offset for p, offset in positions.items() if group.claims.get(p) == member.name}
                group.positions |= mine

    def give_up(self, member: Member, partitions: Sequence[Partition]) -> None:
        with self._changed:
            group = self._groups[member.group]
            if group.members.get(member.name) is member:
                for partition in partitions:
                    if group.claims.get(partition) == member.name:
                        del group.claims[partition]
            self._changed.notify_all()

    def leave(self, member: Member) -> None:
        with self._changed:
            group = self._groups.get(member.group)
            if group is not None and group.members.get(member.name) is member:
                del group.members[member.name]
                group.claims = {p: name for p, name in group.claims.items() if name != member.name}
            self._changed.notify_all()

    def positions(self, group: str, topic: str) -> dict[int, int]:
        with self._changed:
            found = self._groups.get(group)
            return {} if found is None else {p.number: o for p, o in found.positions.items() if p.topic == topic}

    def set_position(self, group: str, position: Origin) -> bool:
        with self._changed:
            found = self._groups.setdefault(group, _Group())
            if found.members:
                return False
            found.positions[Partition(position.topic, position.partition)] = position.offset
            return True

    def close(self) -> None:
        """The log stays: others use it, or will."""


_LOGS: dict[str, MemoryLog] = {}
_OPENING = threading.Lock()


class MemoryBroker(LogBroker):
    """``memory://name``: the same name is the same log, everywhere in this process."""

    features = Features(cross_process=False)

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url)
        parts = urlsplit(url)
        if options or parts.query:
            raise ConfigError(f"memory://name takes no options: {url!r}")
        self._name = parts.netloc + parts.path

    def open_log(self) -> Log:
        with _OPENING:
            return _LOGS.setdefault(self._name, MemoryLog())
