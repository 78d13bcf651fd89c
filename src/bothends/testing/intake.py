"""One consumer in a harness: the product's inbox engine and drainer, on one connection, a step at a time."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from bothends.core.states import Outcome
from bothends.message import Record
from bothends.ports import Broker, Partition, StartAt, Subscription
from bothends.service import Consumer
from bothends.stores.inboxes import Lease
from bothends.testing.clock import VirtualClock
from bothends.testing.databases import Database
from bothends.worker.async_seats import AsyncSeat
from bothends.worker.deliveries import Delivery, read
from bothends.worker.engine import Plan
from bothends.worker.forwarding import Forwarder, due_s, retry_topic
from bothends.worker.inbox import Batch
from bothends.worker.parking import Drain
from bothends.worker.seating import check_middleware
from bothends.worker.seats import Seat
from bothends.worker.sessions import check_factory

__all__ = ["TAKE_MAX", "Intake"]

TAKE_MAX = 500
"""Records taken from the broker at once; more wait there."""
LEASES_MAX = 100
LEASE_S = 60.0
"""Of keys and effects. Nobody else is there to take over; it only has to outlast a debugger's patience."""


class Intake:
    """Takes records in and drains keys for one consumer. The batches and drains that it gives out are to be driven on
    ``seat``, which is an ``AsyncSeat`` where the handlers are coroutines."""

    def __init__(
        self, consumer: Consumer, database: Database, broker: Broker, clock: VirtualClock, resources: Any = None
    ) -> None:
        check_factory(consumer)
        self.consumer, self.database, self._clock = consumer, database, clock
        start = consumer.start.isoformat() if isinstance(consumer.start, datetime) else consumer.start
        inbox = database.store.inbox
        self.number: int = database.run(inbox.register(
            name=consumer.name, service=consumer.service.name, owner=consumer.owner or "", start_at=start,
            topics=consumer.topics,
        )).id
        database.run(inbox.wake_schema(self.number))
        self.plan = Plan(
            consumer=consumer, number=self.number, store=database.store, worker=f"harness-{uuid.uuid4().hex}",
            lease_s=LEASE_S, now=clock.now, random=lambda: 0.0,
        )
        check_middleware(self.plan)
        self.seat: Seat | AsyncSeat = (AsyncSeat if consumer.is_async else Seat)(self.plan, resources=resources)
        self._aside: list[Record] = []
        """Records of retry topics whose time has not come."""
        self._forwarder = Forwarder(broker, f"{consumer.name}-retry", clock.now_s)
        self.retry_topics = [retry_topic(topic) for topic in consumer.topics] if consumer.retry.mode == "topic" else []
        for topic in self.retry_topics:
            broker.create_topic(topic, 1)
        self._subscription: Subscription = broker.subscribe(
            consumer.name, [*consumer.topics, *self.retry_topics], start=StartAt(consumer.start),
            assigned=lambda partitions: None, revoked=lambda partitions, lost: None, at_most_once=consumer.at_most_once,
        )
        self._subscription.poll(0, 0.0)  # joins: "latest" begins here

    def take(self, most: int = TAKE_MAX) -> list[Record]:
        """The next records whose time has come, at most ``most`` of the broker's; each is settled by ``settle``."""
        self._pause_blocked()
        records = self._aside + self._subscription.poll(most, 0.0)
        now_s = self._clock.now_s()
        self._aside = [record for record in records if due_s(record) > now_s]
        return [record for record in records if due_s(record) <= now_s]

    def _pause_blocked(self) -> None:
        """``mode="block"``: a partition waits for its parked message."""
        if self.consumer.retry.mode == "block":
            blocked = {Partition(*p) for p in self.database.run(self.database.store.inbox.blocking(self.number))}
            self._subscription.resume([Partition(topic, 0) for topic in self.consumer.topics])
            self._subscription.pause(sorted(blocked))

    def read(self, records: Sequence[Record]) -> list[Batch]:
        """Batches as a worker would make them, to be driven one after another."""
        deliveries = [read(self.consumer, record) for record in records]
        size = self.consumer.batch_max
        return [Batch(self.plan, deliveries[at:at + size]) for at in range(0, len(deliveries), size)]

    def settle(self, deliveries: Sequence[Delivery]) -> None:
        """After a batch was driven: acknowledges what is done, passes on what goes to a retry topic, and gives back what
        was released."""
        assert all(delivery.outcome is not None for delivery in deliveries)
        for delivery in deliveries:
            if delivery.outcome is Outcome.FORWARDED:
                self.forward(delivery)
        released = [d.record.origin for d in deliveries if d.outcome is Outcome.RELEASED]
        self._subscription.ack([d.record.origin for d in deliveries if d.outcome is not Outcome.RELEASED])
        for origin in released[:1]:  # of one partition, and everything after it was released as well
            self._subscription.rewind(origin)

    def forward(self, delivery: Delivery) -> None:
        """Publishes a failed message to its retry topic."""
        self._forwarder.forward(delivery, lambda: False)

    def due(self) -> list[Drain]:
        """A turn at each key whose time has come."""
        leases: list[Lease] = self.database.run(
            self.database.store.inbox.lease_due(self.number, self.plan.worker, lease_s=LEASE_S, most=LEASES_MAX))
        return [Drain(self.plan, lease) for lease in leases]

    def next_retry_s(self) -> float | None:
        """Seconds until the next retry of this consumer is due; None where none waits."""
        waits = [max(0.0, due_s(record) - self._clock.now_s()) + 0.01 for record in self._aside]
        parked = self.database.next_retry_s([self.number])
        return min(waits if parked is None else [*waits, parked], default=None)

    def close(self) -> None:
        """Leaves the group; closes a synchronous seat (an ``AsyncSeat`` is closed on its loop)."""
        self._forwarder.close()
        self._subscription.close()
        if isinstance(self.seat, Seat):
            self.seat.close()
