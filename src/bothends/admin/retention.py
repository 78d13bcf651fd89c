"""Retention of one consumer's inbox, from what its topics keep [C11]."""

from __future__ import annotations

from bothends.core.retention import inbox_keep_s
from bothends.ports import Broker
from bothends.service import Consumer

__all__ = ["keep_of"]


def keep_of(consumer: Consumer, broker: Broker) -> float | None:
    """Seconds that a processed inbox row is kept; None: for ever. Raises ConfigError for a declared time that is too
    short, and PublishError where the broker does not answer."""
    if consumer.inbox_keep == "forever":
        return None
    return inbox_keep_s(consumer.name, consumer.inbox_keep, [broker.window(t) for t in consumer.topics], consumer.retry)
