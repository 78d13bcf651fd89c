"""Grouping: which messages one call of a batch handler gets, so that no key is overtaken."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeVar

__all__ = ["grouped"]

T = TypeVar("T")


def grouped(items: Iterable[tuple[T, Hashable, Hashable | None]]) -> list[list[T]]:
    """Groups in the order in which they are to be called, of items given as (item, key, handler): those of one handler go
    together, one whose handler is None stands alone. Items of one key keep their order, across handlers too: one that
    would join a group which is called before an older message of its key opens a new one."""
    groups: list[list[T]] = []
    joinable: dict[Hashable, int] = {}
    latest: dict[Hashable, int] = {}
    for item, key, handler in items:
        place = joinable.get(handler, -1) if handler is not None else -1
        if place < 0 or place < latest.get(key, -1):
            place = len(groups)
            groups.append([])
            if handler is not None:
                joinable[handler] = place
        groups[place].append(item)
        latest[key] = place
    return groups
