"""What a relay can be told."""

from __future__ import annotations

from dataclasses import dataclass, field

from bothends.core.retry import Retry
from bothends.settings import Source

__all__ = ["RelaySettings"]



@dataclass(frozen=True, slots=True)
class RelaySettings:
    """Times are seconds. ``renew_s`` is well below ``lease_s``, which no relay should change alone: all of a database
    should agree. ``adopt``: publish to this broker although another one is on record [A19]."""

    publish: Retry = field(default_factory=lambda: Retry(attempts=10, then="hold"))
    """What becomes of events that the broker refuses."""
    lease_s: float = 4.0
    renew_s: float = 1.0
    batch_max: int = 2000
    """Rows of one page, 16 to 10,000."""
    source: Source = "poll"
    """Where events are read: the outbox table, PostgreSQL's write-ahead log, or messages in it. ``auto``: the log where
    the server allows it."""
    wal_budget_mb: int = 1024
    """Megabytes of the log that the relay's slot may hold back, 16 to 1,000,000."""
    in_flight_max: int = 16
    """Pages handed over and not settled, at least 2; of their bodies together at most 32 MB and one page."""
    poll_busy_s: float = 0.003
    poll_idle_s: float = 0.05
    silence_s: float = 10.0
    """A publisher that reports nothing for so long, with records in hand, is given up for a new one."""
    adopt: bool = False
    listen: bool = False
    """PostgreSQL: LISTEN as well, for producers on other machines that NOTIFY."""
    runtime_dir: str | None = None
