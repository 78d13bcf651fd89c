"""Scenario: a story in rounds. Who fails and whose acknowledgement is lost is written down first; the trace is the same
every time, and what happens in it is done by the product's own relay, inbox and drainer.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import weakref
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from bothends.codecs.cloudevents import from_record
from bothends.core.states import Outcome
from bothends.errors import ConfigError, Transient
from bothends.message import Record
from bothends.service import Handler, Service
from bothends.testing.clock import retry_now
from bothends.testing.databases import memory_url
from bothends.testing.graveyard import Dead
from bothends.testing.intake import Intake
from bothends.testing.publishing import added_ids, records_of
from bothends.testing.stage import Stage
from bothends.worker.deliveries import Delivery
from bothends.worker.forwarding import retry_topic

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

__all__ = ["ROUNDS_MAX", "Scenario"]

ROUNDS_MAX = 10_000


@dataclasses.dataclass(slots=True)
class _Waiting:
    """One message in the queue of one consumer."""

    number: int
    record: Record
    on_its_way: bool = True
    """The broker delivers it (again): it has not been acknowledged."""
    parked: bool = False


@dataclasses.dataclass(slots=True)
class _Queue:
    intake: Intake
    loses: int = 0
    """Acknowledgements that will be lost from now on."""
    waiting: deque[_Waiting] = dataclasses.field(default_factory=deque)


class Scenario:
    """Plays ``service`` in rounds: in each, every consumer, in the order of declaration, takes the first unsettled message
    of its queue; one that failed stays at the head and is tried in the next round, without backoff.

    ``costs`` are ticks by name. ``ticks_sync`` is what a caller would wait who called everybody; ``ticks_async`` what it
    waits when it does itself only what no consumer does, and publishes. ``database`` is a URL; without it, a database in
    memory of this scenario's own.
    """

    ticks_sync: int
    ticks_async: int

    def __init__(self, service: Service, *, costs: Mapping[str, int] = {}, database: str | None = None) -> None:
        self._service = service
        self._failures: Counter[str] = Counter()
        played = _with_failures(service, self._failures)
        self._stage = stage = Stage([played], {service.name: database if database is not None else memory_url()})
        stage.open()
        self._finalizer = weakref.finalize(self, stage.close)
        self._queues = {intake.consumer.short_name: _Queue(intake) for intake in stage.intakes}
        self._seen: dict[str, int] = {}
        self._published = 0
        self.ticks_sync = sum(costs.values())
        self.ticks_async = sum(ticks for name, ticks in costs.items() if name not in service.consumers)

    # What is going to happen

    def fails(self, consumer: str, *, times: int = 1) -> Self:
        """The next ``times`` runs of this consumer's handlers fail before they begin."""
        self._queue(consumer, times)
        self._failures[consumer] += times
        return self

    def loses_ack(self, consumer: str, *, times: int = 1) -> Self:
        """The broker does not hear the next ``times`` acknowledgements of this consumer, and delivers again."""
        self._queue(consumer, times).loses += times
        return self

    def publish(self, *events: object) -> Self:
        """Adds each event to the service's outbox, in a transaction of its own."""
        for event in events:
            with self._stage.database_of(None).transaction() as driver:
                self._service.outbox.add(driver, event)
        return self

    # What happens

    def run(self) -> list[str]:
        """Plays rounds until every queue is empty: ``<consumer> <n> <outcome>``, n counting publications from 1."""
        lines: list[str] = []
        for _ in range(ROUNDS_MAX):
            played = self.round()
            if not played:
                return lines
            lines += played
        raise AssertionError(f"this scenario does not end in {ROUNDS_MAX} rounds: do two consumers answer each other?")

    def round(self) -> list[str]:
        """Plays one round; no lines: every queue is empty."""
        self._collect()
        lines: list[str] = []
        for name, queue in self._queues.items():
            if queue.waiting:
                message = queue.waiting[0]
                lines.append(f"{name} {message.number} {self._play(queue, message).value}")
        return lines

    # What is left

    @property
    def dead(self) -> list[Dead]:
        """Dead letters that are open, oldest first."""
        return self._stage.dead()

    @property
    def connection(self) -> Any:
        """The driver's connection of the test itself, in autocommit."""
        return self._stage.database_of(None).connection

    def session(self) -> Session:
        """A new SQLAlchemy session on the scenario's database."""
        return self._stage.database_of(None).session()

    def close(self) -> None:
        """Ends the scenario; otherwise it ends when nobody holds it any more."""
        self._finalizer()

    # Within

    def _queue(self, consumer: str, times: int) -> _Queue:
        if times < 1:
            raise ValueError(f"times={times}: at least 1")
        if consumer not in self._queues:
            raise ConfigError(f"{self._service.name} has no consumer {consumer!r}; it has {', '.join(self._queues)}")
        return self._queues[consumer]

    def _collect(self) -> None:
        """Publishes what was added, and gives each consumer its copy."""
        stage = self._stage
        database = stage.database_of(None)
        order = {id: place for place, id in enumerate(database.run(added_ids(database.store)))}
        stage.publish()
        fresh = [
            record for topic in stage.topics for record in records_of(stage.broker, topic, self._seen.get(topic, 0))
        ]
        fresh.sort(key=lambda record: order.get(from_record(record).id, len(order)))  # topics are read one by one
        for record in fresh:
            topic = record.origin.topic
            self._seen[topic] = max(self._seen.get(topic, 0), record.origin.offset + 1)
            self._published += 1
            for queue in self._queues.values():
                if topic in queue.intake.consumer.topics:
                    queue.waiting.append(_Waiting(self._published, record))

    def _play(self, queue: _Queue, message: _Waiting) -> Outcome:
        if message.on_its_way:
            outcome = self._deliver(queue, message)
        else:
            outcome = self._try_again(queue)
            message.parked = outcome is Outcome.PARKED
        if not message.on_its_way and not message.parked:
            queue.waiting.popleft()
        return outcome

    def _deliver(self, queue: _Queue, message: _Waiting) -> Outcome:
        (batch,) = queue.intake.read([message.record])
        self._stage.carry_out(queue.intake, batch.acts())
        (delivery,) = batch.deliveries
        outcome = _outcome(delivery)
        if outcome is Outcome.FORWARDED:
            message.record = self._forwarded(queue, delivery)
        elif queue.loses:
            queue.loses -= 1  # what it did is done, and the broker does not know
        else:
            message.on_its_way = False
        if outcome is Outcome.PARKED:
            message.parked = not self._is_held(queue, delivery)
        return outcome

    def _forwarded(self, queue: _Queue, delivery: Delivery) -> Record:
        """The copy in the retry topic, which takes the message's place at the head."""
        queue.intake.forward(delivery)
        copies = records_of(self._stage.broker, retry_topic(delivery.record.origin.topic))
        return deque(copies, maxlen=1).pop()

    def _is_held(self, queue: _Queue, delivery: Delivery) -> bool:
        """Whether its key waits for an operator: then nothing more happens to it here, and the queue goes on."""
        plan = queue.intake.plan
        states = queue.intake.database.run(plan.store.inbox.blocked(plan.number, [delivery.queue]))
        return bool(states.get(delivery.queue) != "retrying")

    def _try_again(self, queue: _Queue) -> Outcome:
        plan = queue.intake.plan
        queue.intake.database.run(retry_now(plan.store, plan.number))
        outcome = Outcome.PARKED
        for drain in queue.intake.due():
            self._stage.carry_out(queue.intake, drain.acts())
            outcome = _outcome(drain.done[0])
        return outcome


def _outcome(delivery: Delivery) -> Outcome:
    assert delivery.outcome is not None
    return delivery.outcome


def _with_failures(service: Service, failures: Counter[str]) -> Service:
    """The service with handlers that fail first as often as ``failures`` says of their consumer; the given one stays as
    it is."""
    played = copy.copy(service)
    played.consumers = {
        name: dataclasses.replace(consumer, handlers={
            type: dataclasses.replace(handler, function=_failing(handler, name, failures))
            for type, handler in consumer.handlers.items()
        })
        for name, consumer in service.consumers.items()
    }
    return played


def _failing(handler: Handler, consumer: str, failures: Counter[str]) -> Callable[..., Any]:
    def fail_if_planned() -> None:
        if failures[consumer]:
            failures[consumer] -= 1
            raise Transient(f"{consumer} fails, as the scenario says")

    if handler.is_async:
        @functools.wraps(handler.function)
        async def run_async(*arguments: Any) -> Any:
            fail_if_planned()
            return await handler.function(*arguments)

        return run_async

    @functools.wraps(handler.function)
    def run(*arguments: Any) -> Any:
        fail_if_planned()
        return handler.function(*arguments)

    return run
