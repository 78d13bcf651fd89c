"""Sources: whether a relay reads the log or polls, decided from what the server says.

The position is the promise of the log: every event whose transaction committed before it is done. A slot that says more
than the position was not moved by us.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = [
    "BEGINS", "LEAD", "MEGABYTE", "ON_THE_WAY", "SEAM", "SERVER_MIN", "STANDS_BY", "TAKES_OVER", "Act", "Facts", "Plan", "Slot",
    "again_s", "over_budget", "plan",
]

MEGABYTE = 1024 * 1024
SERVER_MIN = 140_000
"""The first server whose log comes in binary."""
AGAIN_MIN_S, AGAIN_MAX_S = 0.2, 30.0

BEGINS, TAKES_OVER, STANDS_BY = "begins to read the log", "takes over the slot", "another relay reads the log"
SEAM, LEAD = "the table is read up to the slot's beginning", "the relay that reads the log polls"
ON_THE_WAY = frozenset({"", BEGINS, TAKES_OVER, STANDS_BY, SEAM, LEAD})
"""Reasons of a relay that polls where nothing is wrong with it: until it reads, or until another one does, which says why."""


class Slot(NamedTuple):
    """A replication slot of ours."""

    here: bool
    """Whether it belongs to this database and to pgoutput."""
    active_pid: int | None
    confirmed: int
    """What its server may forget, in bytes of log; 0: it is still being made."""
    retained: int
    """Bytes of log that it keeps."""
    lost: bool
    """The server has removed what it would need."""


class Facts(NamedTuple):
    version: int
    logical: bool
    """wal_level is logical."""
    recovering: bool
    may_replicate: bool
    slots_free: int
    senders_free: int
    pollers: int
    """Live relays of this outbox that were told to poll: they keep their lanes."""
    slot: Slot | None
    position: int | None
    published: str = ""
    """What names the publication as it is now; empty where none of ours is there. Messages need none."""
    read_under: str = ""
    """The same, when the position was stored."""
    ahead: bool = False
    """The position is beyond the end of the log: the tables were restored on another server."""


Act = Literal["poll", "create", "recreate", "resume"]


class Plan(NamedTuple):
    act: Act
    reason: str
    """Why not the log; or what was wrong with the slot: then, if it is still read on, something is missing before it."""


def plan(facts: Facts, *, keeps: bool, messages: bool) -> Plan:
    """What to do. ``keeps``: the slot is to outlive its relay, so one that is there may go on. ``messages``: what the slot
    has is nowhere else, so one that can be read always goes on, wherever it begins."""
    if facts.recovering:
        return Plan("poll", "the server is a stand-by")
    if facts.version < SERVER_MIN:
        return Plan("poll", "the server is older than PostgreSQL 14")
    if not facts.logical:
        return Plan("poll", "wal_level of the server is not logical")
    if not facts.may_replicate:
        return Plan("poll", "the role has no REPLICATION attribute")
    if facts.pollers:
        return Plan("poll", "another relay of this outbox was told to read elsewhere")
    if facts.senders_free < 1:
        return Plan("poll", "no WAL sender is free (max_wal_senders)")
    slot = facts.slot if keeps else None
    if slot is None:
        if facts.slots_free < 1:
            return Plan("poll", "no replication slot is free (max_replication_slots)")
        return Plan("create", "")
    if slot.lost:
        return Plan("recreate", "the server has removed the log that the slot needed")
    if not slot.here:
        return Plan("recreate", "the slot is another database's")
    if messages and not slot.confirmed:
        return Plan("poll", "somebody is making the slot, which waits for open transactions")
    if facts.ahead:
        return Plan("resume" if messages else "recreate", "what was noted is of another log")
    if facts.position is None:
        return Plan("resume", "") if messages else Plan("recreate", "nobody knows what was done when the slot was made")
    if facts.published != facts.read_under:
        return Plan("recreate", "the publication was changed since")
    if slot.confirmed > facts.position:
        return Plan("resume" if messages else "recreate", "the slot was moved, or dropped and made again, by somebody else")
    return Plan("resume", "")


def over_budget(retained: int, budget_mb: int) -> bool:
    return retained > budget_mb * MEGABYTE


def again_s(failures: int) -> float:
    """Seconds until the log is tried again, after so many failures in a row (1 and more)."""
    return float(min(AGAIN_MIN_S * 2.0 ** min(failures - 1, 10), AGAIN_MAX_S))
