"""Naming: under which name a consumer's position and inbox are kept [A6], and what it is called after a change of name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from bothends.errors import ConfigError
from bothends.message import Origin
from bothends.ports import Broker
from bothends.service import Consumer
from bothends.stores.connection import Connection
from bothends.stores.steps import run

__all__ = ["former", "settle", "under_another_prefix"]


def former(consumer: Consumer, prefix: str) -> list[str]:
    """The full names that its ``aliases`` may mean: one of this service with today's prefix, or a full one as it is."""
    return [name for alias in consumer.aliases for name in (f"{prefix}{consumer.service.name}.{alias}", alias)]


def under_another_prefix(consumer: Consumer, prefix: str, recorded: Iterable[tuple[str, str]]) -> list[str]:
    """The names of this consumer that are on record (as (name, service)) with a prefix that is not today's."""
    declared = {prefix + one.name for one in consumer.service.consumers.values()}
    return [name for name, service in recorded
            if service == consumer.service.name and name.endswith(consumer.name) and name not in declared]


def settle(consumer: Consumer, prefix: str, inbox: Any, connection: Connection, broker: Broker, topics: Sequence[str]) -> None:
    """Before a consumer's row is made: takes over position and inbox of the first alias that is on record.

    Raises ConfigError where there is none, and the database knows the consumer under another prefix: it would begin anew with
    an empty inbox, and each effect would happen again.
    """
    group = prefix + consumer.name
    recorded = run(inbox.recorded(), connection)
    names = {name for name, _ in recorded}
    if group in names:
        return
    for old in former(consumer, prefix):
        if old in names:
            _take_over_position(broker, old, group, topics)  # first: afterwards nobody would know that it is missing
            run(inbox.rename(old, group), connection)
            return
    known = under_another_prefix(consumer, prefix, recorded)
    if known:
        before = known[0].removesuffix(consumer.name)
        raise ConfigError(
            f"consumer {group} has never run on this database, which knows it as {', '.join(known)}: group_prefix was changed "
            f"from {before!r} to {prefix!r}, and with an empty inbox all that its topics hold would take effect again; set "
            f"group_prefix (BOTHENDS_GROUP_PREFIX) back to {before!r}, or give consumer({consumer.short_name!r}, ...) "
            f"aliases=[{known[0]!r}]: then it takes over position and inbox")


def _take_over_position(broker: Broker, old: str, group: str, topics: Sequence[str]) -> None:
    if any(lag.position >= 0 for lag in broker.lag(group, topics)):
        return
    for lag in broker.lag(old, topics):
        if lag.position >= 0:
            broker.set_position(group, Origin(lag.topic, lag.partition, lag.position))
