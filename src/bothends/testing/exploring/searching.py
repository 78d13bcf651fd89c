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
    for boundary in boundaries:
        if boundary.consumer not in lossy:
            for fault in _faults(boundary):
                found.append((_rank(boundary), boundary.number, Candidate(boundary.number, fault)))
    found.sort(key=lambda one: one[:2])
    return [candidate for _, _, candidate in found]


def _faults(boundary: Boundary) -> Iterator[Fault]:
    """A crash before a boundary is one after the process's last: it is tried as that. Being given a record changes nothing,
    so a crash there is one after what came before as well."""
    if boundary.number == 0:
        yield Fault.CRASH_BEFORE
    if boundary.kind is not Kind.DELIVER:
        yield Fault.CRASH_AFTER
    for fault in FAULTS[boundary.kind]:
        if boundary.kind is not Kind.SQL or boundary.users:
            yield fault


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
