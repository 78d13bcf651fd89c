"""Topics: which ones a service uses, as far as its code says [A24], and which ones its outbox has events for."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from bothends.admin.amounts import amount
from bothends.admin.status import COUNT_MAX, SCAN_MAX
from bothends.events import EventType, find_event_type
from bothends.service import Service
from bothends.stores.postgresql.admin import PostgresqlAdmin
from bothends.stores.steps import Steps

__all__ = ["Use", "declared", "default_of", "uses", "waiting"]

_EVENTS_MAX = 10_000


class Use(NamedTuple):
    by: str
    needed: bool
    """False for a default topic that neither an event class nor a waiting event has a use for."""


def default_of(service: Service) -> str:
    """Where events go that name no topic, and whose class names none."""
    return f"{service.name}.events"


def waiting(admin: PostgresqlAdmin) -> Steps[dict[str, int]]:
    """Topics for which the outbox holds events, and how many (counted to 10,000): not yet published, held and delayed
    ones. Dead ones are not counted: nothing will be published before somebody acts on them."""
    found = yield admin.waiting(COUNT_MAX, SCAN_MAX)
    counts = {str(row[0]): int(row[1]) for row in found.rows}
    for rows in ("{s}.held where state <> 'dead'", "{s}.delayed"):
        found = yield admin.sql(
            f"select topic, count(*) from (select topic from {rows} order by seq limit :cap) counted group by topic",
            cap=COUNT_MAX)
        for topic, count in found.rows:
            counts[topic] = counts.get(topic, 0) + count
    return counts


def uses(service: Service, waiting: Mapping[str, int], others: Iterable[Service] = ()) -> dict[str, Use]:
    """Topic to its use: what the code declares, what events wait for, and the service's default topic, in this order.
    ``others`` share the outbox; what waits for a topic of theirs is not this service's."""
    found = {topic: Use(by, True) for topic, by in declared(service).items()}
    default = default_of(service)
    theirs = {topic for other in others for topic in (default_of(other), *declared(other))}
    for topic, count in sorted(waiting.items()):
        if topic in found or topic == default or topic not in theirs:
            before = found[topic].by if topic in found else None
            found[topic] = Use(_joined(before, amount(count, "waiting event")), True)
    found.setdefault(default, Use("events without a topic, if there will be any", False))
    return found


def declared(service: Service) -> dict[str, str]:
    """Topic to who uses it: what its consumers read, and what the events that its modules know are published to.
    A topic given only at ``add`` is not known here."""
    found: dict[str, str] = {}
    for consumer in service.consumers.values():
        for topic in consumer.topics:
            found[topic] = _joined(found.get(topic), f"read by {consumer.name}")
            if consumer.retry.mode == "topic":
                found[f"{topic}.retry"] = f"retries of {consumer.name}"
    for event in _events(service):
        topic = event.topic or default_of(service)
        found[topic] = _joined(found.get(topic), event.type)
    return found


def _joined(before: str | None, more: str) -> str:
    return more if before is None else before if more in before else f"{before}, {more}"[:200]


def _events(service: Service) -> list[EventType]:
    """Event classes in the modules that hold the service, its included modules and its handlers."""
    names = set(service.include)
    names.update(h.function.__module__ for c in service.consumers.values() for h in c.handlers.values())
    names.update(
        name for name, module in list(sys.modules.items())
        if any(value is service for value in list(getattr(module, "__dict__", {}).values()))
    )
    found: dict[str, EventType] = {}
    for name in sorted(names):
        for value in list(vars(sys.modules[name]).values())[:_EVENTS_MAX] if name in sys.modules else ():
            event = find_event_type(value) if isinstance(value, type) else None
            if event is not None:
                found[event.type] = event
    return list(found.values())
