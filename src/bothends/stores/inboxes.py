"""What the inbox groups of all stores answer with."""

from __future__ import annotations

from typing import NamedTuple

from bothends.errors import Blame, BothendsError
from bothends.letters import KeyOf

__all__ = ["WAITING_MAX", "Admitted", "Consumed", "Entry", "Known", "Lease", "MarkGone", "OpenRun", "Registered"]

WAITING_MAX = 16


class Registered(NamedTuple):
    id: int
    start_at: str
    """As declared at the first start."""
    paused: bool
    first: bool
    processed: int = 0
    """Messages processed so far, as last written down."""


class Consumed(NamedTuple):
    paused: bool
    now_s: float
    """The database's clock, Unix seconds."""


class Entry(NamedTuple):
    """One message to admit."""

    source: str
    id: str
    hash: bytes


class Admitted(NamedTuple):
    fresh: set[tuple[str, str]]
    """(source, id) of those that were not in the inbox."""
    transaction: str
    """The transaction's own id; empty where the database has none."""
    waiting: frozenset[KeyOf] | None
    """All keys that wait, or None: more than ``WAITING_MAX`` do, so ask for those of the batch. Mostly there are none, and
    nothing is left to ask."""


class Known(NamedTuple):
    state: str
    hash: bytes


class OpenRun(NamedTuple):
    """A start mark of another worker that was never closed."""

    id: int
    worker: str
    messages: str
    """JSON array of [source, id]."""
    alone: bool
    crashes: int
    alive: bool
    """Its database connection is still there, so its worker has not died (or not yet been noticed to)."""


class Lease(NamedTuple):
    """A key that this drainer holds. ``epoch`` is checked before anything is committed for the key."""

    key: KeyOf
    state: str
    epoch: int


class MarkGone(BothendsError):
    """The worker's start mark is not there any more: somebody has taken the worker for dead."""

    blame = Blame.DEPLOYMENT
