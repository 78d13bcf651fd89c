"""Sharing: which partitions of a topic a member of a group may take and which it has to give up.

Every member decides for itself from the same facts, inside one transaction of the log. The quotas of all live members add
up to the number of partitions, so once the surplus is given up and the free ones are taken, all are held exactly once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

__all__ = ["Share", "quota", "share"]


class Share(NamedTuple):
    take: list[int]
    """Free partitions that are mine from now on."""
    give_up: list[int]
    """Mine, and more than my quota: finish what is in hand, then release them."""
    wanting: bool
    """Others hold partitions that are due to me: look again soon."""


def quota(partitions: int, claims: Mapping[int, str], members: Sequence[str], me: str, salt: int = 0) -> int:
    """How many of ``partitions`` are due to ``me``. ``members`` are all live ones, in an order that all agree on.

    The remainder goes to those who hold most, so that nothing moves without need; among equals ``salt`` (of the topic)
    spreads the remainders of many topics over the members."""
    held = Counter(claims.values())
    rank = {member: (-held[member], (index + salt) % len(members)) for index, member in enumerate(members)}
    ahead = sum(other < rank[me] for other in rank.values())
    return partitions // len(members) + (ahead < partitions % len(members))


def share(partitions: int, claims: Mapping[int, str], members: Sequence[str], me: str, salt: int = 0) -> Share:
    """``claims`` says who holds a partition; free ones are not in it."""
    due = quota(partitions, claims, members, me, salt)
    mine = sorted(number for number, member in claims.items() if member == me and number < partitions)
    free = [number for number in range(partitions) if number not in claims]
    take = free[: max(0, due - len(mine))]
    return Share(take, mine[due:], len(mine) + len(take) < due)
