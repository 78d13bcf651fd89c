"""Breaker: whether the broker may be used, decided from what it said. Pure; the caller brings the clock and the chance.

    CLOSED ── failure ──▶ OPEN ── the pause is over: one probe ──▶ CLOSED (it answered) | OPEN (a longer pause)
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PAUSE_MAX_S", "Breaker"]

PAUSE_FIRST_S = 0.1
PAUSE_MAX_S = 5.0
_DOUBLINGS_MAX = 10


@dataclass(slots=True)
class Breaker:
    """Times are seconds on any clock that only goes forward. ``jitter`` is a random number in [0, 1)."""

    failures: int = 0
    """Failures in a row; 0: closed."""
    probe_at: float = 0.0
    reason: str = ""

    @property
    def open(self) -> bool:
        return self.failures > 0

    def fail(self, now: float, jitter: float, reason: str) -> float:
        """The broker failed, or the probe did. The pause until the next probe, in seconds, at most ``PAUSE_MAX_S``."""
        self.failures += 1
        self.reason = reason
        pause = min(PAUSE_FIRST_S * 2.0 ** min(self.failures - 1, _DOUBLINGS_MAX), PAUSE_MAX_S)
        pause *= 1 - jitter / 4
        self.probe_at = now + pause
        return pause

    def due(self, now: float) -> bool:
        """Whether the one probe of this pause may be sent."""
        return self.open and now >= self.probe_at

    def close(self) -> None:
        """The broker answered."""
        self.failures = 0
        self.reason = ""
