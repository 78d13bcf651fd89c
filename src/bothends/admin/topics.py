"""Topics: which ones a service uses, as far as its code says [A24]."""

from __future__ import annotations

import sys

from bothends.events import EventType, find_event_type
from bothends.service import Service

__all__ = ["declared"]

_EVENTS_MAX = 10_000


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
        topic = event.topic or f"{service.name}.events"
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
