"""Renaming: a consumer's name is that of its inbox and of its group. Under another one it takes both over, or is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bothends.errors import ConfigError
from bothends.message import Origin
from bothends.ports import Broker
from bothends.service import Consumer
from bothends.stores.connection import Connection
from bothends.stores.steps import run

__all__ = ["settle_name"]


def settle_name(
    consumer: Consumer, prefix: str, inbox: Any, connection: Connection, broker: Broker, topics: Sequence[str]
) -> None:
    """Takes over what was called by one of the ``aliases``: a consumer's own name, or a whole one as commands print it. Raises
    ConfigError where this database knows the consumer under another prefix alone."""
    group = prefix + consumer.name
    for alias in consumer.aliases:
        for old in (f"{prefix}{consumer.service.name}.{alias}", alias):
            if run(inbox.rename(old, group), connection):
                _take_over_position(broker, old, group, topics)
    known: str | None = run(inbox.known_as(group, consumer.service.name, consumer.name), connection)
    if known is not None:
        raise ConfigError(
            f"this database knows the consumer {consumer.name} as {known!r}: with group_prefix {prefix!r} it would have an "
            f"empty inbox and handle everything again. Set group_prefix to {known.removesuffix(consumer.name)!r}, as it was; "
            f"or give consumer(..., aliases=[{known!r}]), with which {group!r} takes over position and inbox"
        )


def _take_over_position(broker: Broker, old: str, new: str, topics: Sequence[str]) -> None:
    if any(lag.position >= 0 for lag in broker.lag(new, topics)):
        return
    for lag in broker.lag(old, topics):
        if lag.position >= 0:
            broker.set_position(new, Origin(lag.topic, lag.partition, lag.position))
