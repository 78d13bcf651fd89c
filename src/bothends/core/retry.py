"""Retry: how often a failed run is tried again, and what becomes of the key afterwards. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["DELAY_MAX_S", "Retry"]

DELAY_MAX_S = 7 * 24 * 3600.0
"""No delay is longer, whatever a policy or a ``RetryAfter`` says: seven days."""


@dataclass(frozen=True, init=False)
class Retry:
    """``attempts`` counts runs in all: 1 means no second run, ``None`` without end, 0 is refused.

    Delays are ``first_s * factor ** (n - 1)`` after the n-th failed run, at most ``cap_s``, jittered down by at most a
    quarter. ``mode`` says where a message waits: ``park`` (in the consumer's database, with its key), ``block``
    (its partition waits) or ``topic`` (retry topics; order is given up). ``then`` says what happens to the key after a
    dead letter. ``crashes`` is the number of process deaths charged to a message while it ran alone before it is dead;
    ``None`` never gives up.
    """

    attempts: int | None
    first_s: float
    factor: float
    cap_s: float
    mode: Literal["park", "block", "topic"]
    then: Literal["pass", "hold"]
    crashes: int | None
    permanent: tuple[type[Exception], ...]
    transient: tuple[type[Exception], ...]

    def __init__(
        self,
        attempts: int | None = 5,
        *,
        first_s: float = 1.0,
        factor: float = 2.0,
        cap_s: float = 300.0,
        mode: Literal["park", "block", "topic"] = "park",
        then: Literal["pass", "hold"] = "pass",
        crashes: int | None = 2,
        permanent: Sequence[type[Exception]] = (),
        transient: Sequence[type[Exception]] = (),
    ) -> None:
        if attempts is not None and (isinstance(attempts, bool) or attempts < 1):
            raise ValueError(f"attempts counts runs in all: at least 1, or None (without end), not {attempts!r}")
        if crashes is not None and crashes < 1:
            raise ValueError(f"crashes must be at least 1 (or None: without end), not {crashes!r}")
        if not (0 <= first_s and 1 <= factor and 0 <= cap_s <= DELAY_MAX_S):
            raise ValueError(f"first_s >= 0, factor >= 1 and 0 <= cap_s <= {DELAY_MAX_S:.0f} are required")
        if mode not in ("park", "block", "topic") or then not in ("pass", "hold"):
            raise ValueError(f"mode is 'park', 'block' or 'topic', then is 'pass' or 'hold'; not {mode!r}, {then!r}")
        for name, value in (
            ("attempts", attempts), ("first_s", first_s), ("factor", factor), ("cap_s", cap_s), ("mode", mode),
            ("then", then), ("crashes", crashes), ("permanent", tuple(permanent)), ("transient", tuple(transient)),
        ):
            object.__setattr__(self, name, value)

    def delay_s(self, failures: int, jitter: float) -> float:
        """Seconds to wait after ``failures`` failed runs (1 or more). ``jitter`` is a random number in [0, 1).

        Never raises and never exceeds ``cap_s``: a power that overflows is the cap.
        """
        if self.first_s == 0:
            return 0.0
        try:
            plain = self.first_s * float(self.factor) ** (failures - 1)
        except OverflowError:
            plain = self.cap_s
        return min(plain, self.cap_s) * (1 - jitter / 4)

    def exhausted(self, failures: int) -> bool:
        """Whether ``failures`` failed runs use up the policy."""
        return self.attempts is not None and failures >= self.attempts
