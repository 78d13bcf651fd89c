"""Anchored: what databases of explorations share: the connection that asks for the explorer, and how events are added."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from bothends.events import describe
from bothends.service import Service
from bothends.stores.connection import Connection
from bothends.stores.steps import Steps, run

__all__ = ["Anchored"]

T = TypeVar("T")


class Anchored:
    """A database with a connection of the explorer's own, which no fault hits."""

    _anchor: Connection

    def publish(self, session: Any, services: Sequence[Service], events: Sequence[object]) -> None:
        """Adds each to the outbox that it was given with, else to the one where it is published from."""
        for given in events:
            service, event = given if isinstance(given, tuple) else (_publisher_of(services, given), given)
            service.outbox.add(session, event)

    def ask(self, steps: Steps[T]) -> T:
        return run(steps, self._anchor)

    def ask_in_transaction(self, steps: Steps[T]) -> T:
        self._anchor.begin()
        try:
            answer = run(steps, self._anchor)
            self._anchor.commit()
            return answer
        finally:
            self._anchor.rollback()


def _publisher_of(services: Sequence[Service], event: object) -> Service:
    """The first service that does not handle this type itself, else the first."""
    declared = describe(type(event)).type
    for service in services:
        if not any(declared in consumer.handlers for consumer in service.consumers.values()):
            return service
    return services[0]
