"""Log: the seam between the two brokers that keep a log of their own and what they have in common."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bothends.errors import PublishError
from bothends.message import Origin, Record
from bothends.ports import Outgoing, Partition, StartAt

__all__ = ["LEASE_S", "Log", "Member", "Standing"]

LEASE_S = 4.0
"""A member that has not polled for this long has lost its partitions."""


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a group. ``name`` may be taken over by a new process; ``token`` is this one."""

    group: str
    name: str
    topics: tuple[str, ...]
    start: StartAt
    token: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(frozen=True, slots=True)
class Standing:
    """What a member has after it has shown that it is alive."""

    held: dict[Partition, int]
    """Its partitions and their stored positions."""
    surplus: list[Partition]
    """Those of them that it should give up."""
    wanting: bool
    """Others have partitions that are due to it."""


class Log(Protocol):
    """Every method that changes something is one transaction. All raise PublishError (BROKER) where the log cannot be
    reached, after at most ``timeout_s`` or some seconds."""

    beat_s: float
    """How often a member has to show that it is alive."""

    def identity(self) -> str: ...

    def ping(self, timeout_s: float) -> None: ...

    def partitions(self, topic: str) -> int:
        """0: there is no such topic."""
        ...

    def create(self, topic: str, partitions: int) -> bool: ...

    def delete(self, topic: str) -> None: ...

    def append(self, records: Sequence[Outgoing], timeout_s: float) -> dict[int, PublishError]:
        """All of them or, where any is refused, none."""
        ...

    def ends(self, topic: str) -> list[tuple[int, int]]:
        """(low, high) of each partition."""
        ...

    def read(self, partition: Partition, offset: int, max_records: int) -> list[Record]:
        """Raises PositionLost below the log's begin or beyond its end."""
        ...

    def version(self) -> int:
        """Changes when something may have been appended."""
        ...

    def wait(self, version: int, timeout_s: float) -> None:
        """Returns when ``version`` is no longer the log's, or after the time."""
        ...

    def join(self, member: Member) -> None:
        """Whoever had the name before is fenced, and its partitions are the new member's."""
        ...

    def beat(self, member: Member) -> Standing:
        """Stays in the group and takes what is free. Raises PublishError ``fenced`` when the name was taken over."""
        ...

    def store(self, member: Member, positions: dict[Partition, int]) -> None:
        """Positions of partitions that are not the member's any more are ignored."""
        ...

    def give_up(self, member: Member, partitions: Sequence[Partition]) -> None: ...

    def leave(self, member: Member) -> None: ...

    def positions(self, group: str, topic: str) -> dict[int, int]: ...

    def set_position(self, group: str, position: Origin) -> bool:
        """False when the group has a live member."""
        ...

    def trim(self, partition: Partition, before: int) -> None:
        """Removes the records below ``before``."""
        ...

    def close(self) -> None: ...
