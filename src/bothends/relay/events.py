"""What a relay tells those who watch it: frozen records, handed to the ``observe`` function given to ``Relay``.

Nothing here has a label without bound: no ids, no keys, no texts of errors where a class will do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

__all__ = [
    "BrokerPaused", "BrokerResumed", "Dead", "Fenced", "LanesChanged", "Observe", "PlaceAway", "PlaceBack", "Published",
    "Registered", "Rejected", "SourceChanged", "StoreLost", "Stopped",
]


class Registered(NamedTuple):
    relay: int


class LanesChanged(NamedTuple):
    relay: int
    lanes: int
    """How many it has now."""


class SourceChanged(NamedTuple):
    """Where this relay takes events from: poll, wal, message, or standby (another relay reads the log)."""

    relay: int
    source: str
    reason: str
    """Why, where it is not what the relay was told; never with data in it."""


class Fenced(NamedTuple):
    """The registration is gone: this process was taken for dead. It begins anew, with a new one."""

    relay: int


class Published(NamedTuple):
    """Confirmed by the broker, and recorded."""

    records: int


class Rejected(NamedTuple):
    """One event, sent alone, was refused; ``attempts`` counts that."""

    topic: str
    reason: str
    attempts: int


class Dead(NamedTuple):
    topic: str
    reason: str
    holds_key: bool


class PlaceAway(NamedTuple):
    topic: str
    reason: str


class PlaceBack(NamedTuple):
    topic: str


class BrokerPaused(NamedTuple):
    """The breaker is open: no claims, no attempts, one probe at a time."""

    reason: str
    failures: int


class BrokerResumed(NamedTuple):
    pass


class StoreLost(NamedTuple):
    """The database could not be used; the relay tries again after ``pause_s``."""

    error: str
    pause_s: float


class Stopped(NamedTuple):
    relay: int
    drained: bool
    """False: time ran out with batches unconfirmed; they will be published again, with the same ids."""


Observe = Callable[[object], None]
