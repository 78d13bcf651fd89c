"""One consumer in a harness: the product's inbox engine and drainer, on one connection, a step at a time."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from bothends.deliveries import Delivery, read
from bothends.engine import Plan
from bothends.inbox import Batch
from bothends.message import Record
from bothends.parking import Drain
from bothends.ports import Broker, StartAt, Subscription
from bothends.seats import AsyncSeat, Seat, check_middleware
from bothends.service import Consumer
from bothends.sessions import check_factory
from bothends.stores.inboxes import Lease
from bothends.testing.databases import Database

__all__ = ["TAKE_MAX", "Intake"]

TAKE_MAX = 500
"""Records taken from the broker at once; more wait there."""
LEASES_MAX = 100
LEASE_S = 60.0
"""Of keys and handlers. Nobody else is there to take over; it only has to outlast a debugger's patience."""


class Intake:
    """Takes records in and drains keys for one consumer. What it gives out to be driven (``Acts``) runs on ``seat``,
    which is an ``AsyncSeat`` where the handlers are coroutines."""

    def __init__(self, consumer: Consumer, database: Database, broker: Broker, resources: Any) -> None:
        check_factory(consumer)
        self.consumer = consumer
        self.database = database
        registered = database.run(database.store.inbox.register(
            name=consumer.name, service=consumer.service.name, owner=consumer.owner or "", start_at=str(consumer.start),
            topics=consumer.topics,
        ))
        self.number: int = registered.id
        self.plan = Plan(
            consumer=consumer, number=self.number, store=database.store, worker=f"harness-{uuid.uuid4().hex}",
            lease_s=LEASE_S, now=lambda: datetime.now(UTC).isoformat(), random=lambda: 0.0,
        )
        check_middleware(self.plan)
        self.seat: Seat | AsyncSeat = (AsyncSeat if consumer.is_async else Seat)(self.plan, resources=resources)
        self._subscription: Subscription = broker.subscribe(
            consumer.name, consumer.topics, start=StartAt(consumer.start), assigned=lambda partitions: None,
            revoked=lambda partitions, lost: None, at_most_once=consumer.at_most_once,
        )
        self._subscription.poll(0, 0.0)  # joins: "latest" begins here

    def take(self, most: int = TAKE_MAX) -> list[Record]:
        """The next records, at most ``most``; settled once they are given to ``acknowledge``."""
        return self._subscription.poll(most, 0.0)

    def read(self, records: Sequence[Record]) -> list[Batch]:
        """Batches as a worker would make them, to be driven one after another."""
        deliveries = [read(self.consumer, record) for record in records]
        size = self.consumer.batch_max
        return [Batch(self.plan, deliveries[at:at + size]) for at in range(0, len(deliveries), size)]

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        assert all(delivery.outcome is not None for delivery in deliveries)
        self._subscription.ack([delivery.record.origin for delivery in deliveries])

    def due(self) -> list[Drain]:
        """A turn at each key whose time has come."""
        leases: list[Lease] = self.database.run(
            self.database.store.inbox.lease_due(self.number, self.plan.worker, lease_s=LEASE_S, most=LEASES_MAX))
        return [Drain(self.plan, lease) for lease in leases]

    def close(self) -> None:
        """Leaves the group; closes a synchronous seat (an ``AsyncSeat`` is closed on its loop)."""
        self._subscription.close()
        if isinstance(self.seat, Seat):
            self.seat.close()
