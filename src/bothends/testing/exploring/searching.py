"""Searching: which faults are tried, and in which order. Single faults all, the telling ones first; then pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import NamedTuple

from bothends.testing.exploring.boundaries import FAULTS, RELAY, Boundary, Fault, Kind

__all__ = ["Candidate", "pairs", "singles"]

_TELLING = {Kind.COMMIT: 0, Kind.CALL: 0, Kind.ACK: 1, Kind.DELIVER: 1, Kind.PUBLISH: 2}


class Candidate(NamedTuple):
    number: int
    fault: Fault


def singles(boundaries: Sequence[Boundary], lossy: Set[str]) -> list[Candidate]:
    """Every single fault of a run, the most telling first. ``lossy``: consumers that acknowledge first, by declaration."""
    found: list[tuple[int, int, Candidate]] = []
    for boundary, following in zip(boundaries, [*boundaries[1:], None], strict=True):
        if boundary.consumer in lossy:
            continue
        for fault in _faults(boundary, following):
            found.append((_rank(boundary), boundary.number, Candidate(boundary.number, fault)))
    found.sort(key=lambda one: one[:2])
    return [candidate for _, _, candidate in found]


def _faults(boundary: Boundary, following: Boundary | None) -> Iterator[Fault]:
    """Crash after this one and crash before the next of the process are one history: it is told where something was
    left behind."""
    if following is None or following.process != boundary.process or boundary.durable or not following.durable:
        yield Fault.CRASH_AFTER if _has_after(boundary) else Fault.CRASH_BEFORE
    if boundary.number == 0 or (boundary.durable and _has_after(boundary)):
        yield Fault.CRASH_BEFORE
    for fault in FAULTS[boundary.kind]:
        if boundary.kind is not Kind.SQL or boundary.users:
            yield fault


def _has_after(boundary: Boundary) -> bool:
    return boundary.kind is not Kind.DELIVER


def _rank(boundary: Boundary) -> int:
    rank = _TELLING.get(boundary.kind, 3 if boundary.users else 4 if boundary.durable else 5)
    return rank * 2 + (boundary.process == RELAY or not boundary.consumer)


def pairs(first: Candidate, boundaries: Sequence[Boundary], lossy: Set[str]) -> list[Candidate]:
    """Second faults after ``first``, from the trace that it made. Of crashes between which nothing durable happened, one."""
    later = [b for b in boundaries if b.number > first.number]
    found: list[Candidate] = []
    fresh = True
    for candidate in singles(later, lossy):
        boundary = boundaries[candidate.number]
        if candidate.fault.is_crash and not boundary.durable:
            if not (fresh and boundary.consumer):
                continue
            fresh = False
        found.append(candidate)
    return found
