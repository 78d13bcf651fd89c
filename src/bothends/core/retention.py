"""Retention: how long an inbox row must be kept so that no copy of its message can come after it is gone [C11]."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Literal, NamedTuple

from bothends.core.retry import DELAY_MAX_S, Retry
from bothends.errors import ConfigError

__all__ = ["CHECK_S", "Window", "inbox_keep_s", "retry_horizon_s"]

CHECK_S = 300.0
"""How often a broker looks for what it may delete (Kafka's log.retention.check.interval.ms as shipped)."""
_UNBOUNDED_ATTEMPTS = 100
_HELD_S = DELAY_MAX_S


class Window(NamedTuple):
    """How long a topic can still deliver a record: ``keep_s`` None means for ever (infinite or compacted)."""

    topic: str
    keep_s: float | None
    segment_s: float = 0.0


def retry_horizon_s(retry: Retry) -> float:
    """The longest that a message can be tried again under ``retry``; a policy without end counts seven days."""
    if retry.attempts is None:
        return _HELD_S
    return min(sum(retry.delay_s(n, 0.0) for n in range(1, min(retry.attempts, _UNBOUNDED_ATTEMPTS))), _HELD_S)


def inbox_keep_s(
    consumer: str, declared: timedelta | Literal["forever"] | None, windows: Sequence[Window], retry: Retry
) -> float | None:
    """Seconds to keep a processed inbox row; None: for ever.

    Computed where nothing is declared. Raises ConfigError for a declared time that a topic's own retention outlives: a
    copy could be handled twice.
    """
    if declared == "forever":
        return None
    endless = [w.topic for w in windows if w.keep_s is None]
    bounded = [w.keep_s + w.segment_s + CHECK_S for w in windows if w.keep_s is not None]
    needed = max(bounded, default=0.0) + retry_horizon_s(retry)
    if declared is None:
        return None if endless or not windows else needed
    if declared.total_seconds() < needed:
        raise ConfigError(
            f"consumer {consumer}: inbox_keep={declared} is shorter than the {timedelta(seconds=int(needed))} in which "
            f"its topics can deliver a copy again (retention, segment, check interval and retries); raise it, or leave "
            f"it out"
        )
    return declared.total_seconds()
