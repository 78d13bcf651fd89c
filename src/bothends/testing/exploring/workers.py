"""The two processes of an exploration: the product's own relay and worker engine, taken a step at a time.

What ``worker/slots.py`` does in threads happens here one after another: batches are driven until they are done, driven again
on a new connection when the database was away, acknowledged after that. A death leaves what it leaves.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from typing import Any, TypeVar

from bothends.core.retry import Retry
from bothends.core.states import Outcome
from bothends.errors import StoreUnavailable
from bothends.message import Record
from bothends.ports import Partition, StartAt, Subscription
from bothends.relay import Relay, RelaySettings
from bothends.service import Consumer
from bothends.stores import Store
from bothends.stores.connection import Connection
from bothends.stores.faults import Fault as StoreFault
from bothends.stores.faults import fault_of
from bothends.stores.steps import Steps, run
from bothends.testing.exploring.boundaries import Crash, Fault, Kind, Where
from bothends.testing.exploring.brokers import ExploredBroker, name_of
from bothends.testing.exploring.clock import Clock
from bothends.testing.exploring.tape import Runaway, Tape
from bothends.worker.acts import Acts, Call, Called, Do, Released
from bothends.worker.async_seats import AsyncSeat
from bothends.worker.deliveries import Delivery, read
from bothends.worker.engine import Plan
from bothends.worker.forwarding import Forwarder, due_s, retry_topic
from bothends.worker.inbox import Batch
from bothends.worker.parking import Drain
from bothends.worker.seats import Seat

__all__ = ["Intake", "Relaying", "is_outage"]

T = TypeVar("T")

TAKE_MAX = 500
LEASES_MAX = 64
TOGETHER_MAX = 3
"""Messages that one batch has, where a handler takes batches: enough for one before and one after what is disturbed."""
DRIVES_MAX = 20
"""Times that one batch is driven anew because the database was away."""
_PAUSE_S = 0.05
DELIVERING_S, ACKNOWLEDGING_S = 0.73, 0.81
"""Together more than a second, so that two runs of a handler have two times; no sum of them is a backoff."""


def is_outage(error: BaseException) -> bool:
    return isinstance(error, StoreUnavailable) or fault_of(error) is StoreFault.UNAVAILABLE


class _Bell:
    """A relay's bell that nobody rings: waiting is time passing."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def wait(self, timeout_s: float) -> bool:
        self._clock.forward(timeout_s)
        return False

    def rang(self) -> bool:
        return False


class _UntilIdle(threading.Event):
    """Set as soon as nothing is due; waiting is time passing. Raises Runaway where that never comes."""

    LOOKS_MAX = 400

    def __init__(self, idle: Callable[[], bool], clock: Clock) -> None:
        super().__init__()
        self._idle, self._clock, self._looks = idle, clock, 0

    def is_set(self) -> bool:
        self._looks += 1
        if self._looks > self.LOOKS_MAX:
            raise Runaway("the outbox does not get empty: is a topic refused, or does an event come back for ever?")
        return self._idle()

    def wait(self, timeout: float | None = None) -> bool:
        self._clock.forward(timeout or 0.0)
        return self.is_set()


class Relaying(Relay):
    """The product's relay, in the explorer's thread, for as long as something waits."""

    def __init__(self, store: Store, broker: ExploredBroker, publish: Retry, clock: Clock) -> None:
        super().__init__(store, broker, name="explored", settings=RelaySettings(publish=publish, adopt=True))
        self._clock = clock

    def relay(self, idle: Callable[[], bool]) -> None:
        """Publishes until ``idle()``. Raises Crash."""
        bell: Any = _Bell(self._clock)
        self._terms(_UntilIdle(idle, self._clock), 60.0, bell)


class Intake:
    """One consumer in one life of the worker process."""

    def __init__(
        self, consumer: Consumer, store: Store, broker: ExploredBroker, tape: Tape, clock: Clock, life: int, *,
        lease_s: float, resources: Any, run_async: Callable[[Coroutine[Any, Any, Any]], Any],
        changed: Callable[[], Sequence[str]],
    ) -> None:
        self.consumer, self.store, self._broker, self._tape, self._clock = consumer, store, broker, tape, clock
        self._run_async = run_async
        self._changed = changed
        """Names what handlers have left in the process's memory."""
        self._remembered = set(changed())
        self._keeper: Connection | None = None
        start = consumer.start.isoformat() if isinstance(consumer.start, datetime) else consumer.start
        registered = self.ask(store.inbox.register(
            name=consumer.name, service=consumer.service.name, owner=consumer.owner or "", start_at=start,
            topics=self._topics(),
        ))
        self.plan = Plan(
            consumer=consumer, number=registered.id, store=store, worker=f"explored:{life}:{life}", lease_s=lease_s,
            now=clock.now, random=lambda: 0.0,
        )
        self.ask(store.inbox.wake_schema(self.plan.number))
        self.plan.suspects.load(self.ask(store.inbox.open_runs(self.plan.number, self.plan.worker)))
        self.seat: Seat | AsyncSeat = (AsyncSeat if consumer.is_async else Seat)(self.plan, resources=resources)
        self._most = min(TOGETHER_MAX, consumer.batch_max) if consumer.has_batch_handlers else 1
        self.waiting: deque[Record] = deque()
        """Taken from the broker, not handled yet."""
        self.late: list[Record] = []
        """Copies, and what was put back, for when all else is done."""
        self.held: set[tuple[str, bytes | None]] = set()
        """(topic, key) of what is put back: nothing of it overtakes."""
        self._forwarder = Forwarder(broker, f"{consumer.name}-retry", clock.now_s)
        self._subscription: Subscription = broker.subscribe(
            consumer.name, self._topics(), start=StartAt(consumer.start), member="explored",
            assigned=lambda partitions: None, revoked=lambda partitions, lost: None, at_most_once=consumer.at_most_once,
        )
        self._subscription.poll(0, 0.0)

    def _topics(self) -> list[str]:
        topics = list(self.consumer.topics)
        if self.consumer.retry.mode == "topic":
            topics += [retry_topic(topic) for topic in topics]
        return topics

    def ask(self, steps: Steps[T]) -> T:
        """The worker's own errands, on a connection of their own; an outage is waited for."""
        pending: Any = steps
        if self._keeper is None or not self._keeper.usable():
            self._keeper = self.store.connect(name=f"bothends {self.consumer.name} keeper")
        return run(pending, self._keeper)  # type: ignore[no-any-return]

    # Delivering

    def deliver_one(self) -> bool:
        """Handles the next record that may be handled, or the next few where a handler takes batches. Whether there was
        one. Raises Crash."""
        self._take()
        moved = False
        hand: list[tuple[Delivery, str]] = []
        for _ in range(self._most):
            record = self._next()
            if record is None:
                break
            moved = True
            label = self._receive(record)
            if label is not None:
                hand.append((read(self.consumer, record), label))
        if hand:
            self._tape.message = self._tape.together([label for _, label in hand])
            self._drive(Batch(self.plan, [delivery for delivery, _ in hand]))
            self._settle_all(hand)
        return moved

    def _receive(self, record: Record) -> str | None:
        """The record's name; None where it was put back."""
        tape = self._tape
        tape.consumer = self.consumer.name
        label = tape.message = name_of(tape, record)
        fault = tape.arrive(Kind.DELIVER, label)
        key = (record.origin.topic, record.key)
        if fault is Fault.REORDER:
            self.held.add(key)
            self.late.append(record)
            return None
        if fault is Fault.DELAYED_COPY:
            self.late.append(record)
        elif fault is Fault.DUPLICATE:
            self.waiting.appendleft(record)
        self._clock.forward(DELIVERING_S)
        return label

    def release(self) -> bool:
        """All else is done: what was put back and late copies come now, in order. Whether there were any."""
        if not self.late:
            return False
        late, self.late = self.late, []
        self.held.clear()
        self.waiting.extend(late)
        self._tape.mark("waits", "what was held back comes now")
        return True

    def _take(self) -> None:
        if self.consumer.retry.mode == "block":
            blocked = {Partition(*p) for p in self.ask(self.store.inbox.blocking(self.plan.number))}
            self._subscription.resume([Partition(topic, 0) for topic in self._topics()])
            self._subscription.pause(sorted(blocked))
        self.waiting.extend(self._subscription.poll(TAKE_MAX, 0.0))

    def _next(self) -> Record | None:
        """The first whose time has come; what belongs to a key that was put back joins it."""
        now_s = self._clock.now_s()
        for record in list(self.waiting):
            if (record.origin.topic, record.key) in self.held and record.key is not None:
                self.waiting.remove(record)
                self.late.append(record)
            elif due_s(record) <= now_s:
                self.waiting.remove(record)
                return record
        return None

    def _settle_all(self, hand: Sequence[tuple[Delivery, str]]) -> None:
        again: set[tuple[str, int]] = set()
        for delivery, label in hand:
            self._tell(delivery, label)
            place = delivery.record.origin[:2]
            if place not in again and not self._settle(delivery, label):
                again.add(place)  # and what came after it

    def _settle(self, delivery: Delivery, label: str) -> bool:
        """The acknowledgement, or what takes its place; False where the broker delivers it again."""
        if delivery.outcome is Outcome.FORWARDED:
            self._forwarder.forward(delivery, lambda: False)
        origin = delivery.record.origin
        if delivery.outcome is Outcome.RELEASED:
            self._again_from(delivery.record)
            return False
        fault = self._tape.arrive(Kind.ACK, label, durable=True)
        if fault is Fault.LOST_ACK:
            self._again_from(delivery.record)
            return False
        self._subscription.ack([origin])
        self._clock.forward(ACKNOWLEDGING_S)
        self._subscription.poll(0, 0.0)  # the position is stored
        if fault is Fault.CRASH_AFTER:
            self._tape.die()
        return True

    def _again_from(self, record: Record) -> None:
        """The broker delivers this record and what came after it in its partition again."""
        topic, number, offset = record.origin
        for waiting in list(self.waiting):
            if waiting.origin[:2] == (topic, number) and waiting.origin.offset > offset:
                self.waiting.remove(waiting)
        self._subscription.rewind(record.origin)

    # Draining

    def drain(self) -> bool:
        """A turn at each key whose time has come. Whether there was any. Raises Crash."""
        self._tape.consumer, self._tape.message = self.consumer.name, ""
        leases = self.ask(self.store.inbox.lease_due(
            self.plan.number, self.plan.worker, lease_s=self.plan.lease_s, most=LEASES_MAX))
        for lease in leases:
            drain = Drain(self.plan, lease)
            self._drive(drain)
            for delivery in drain.done:
                self._tell(delivery, self._label(delivery))
        return bool(leases)

    def next_due_s(self) -> float | None:
        """Seconds until a record of a retry topic may run; None where none waits."""
        waits = [due_s(record) - self._clock.now_s() for record in self.waiting]
        return max(0.0, min(waits)) if waits else None

    # Driving

    def _label(self, delivery: Delivery) -> str:
        return self._tape.name(*delivery.name, delivery.message.type if delivery.message else "")

    def _tell(self, delivery: Delivery, label: str) -> None:
        outcome = delivery.outcome.value if delivery.outcome is not None else "released"
        failure = delivery.failure
        self._tape.message = label
        self._tape.mark("outcome", outcome if failure is None else f"{outcome}: {failure.error}")

    def _drive(self, work: Batch | Drain) -> None:
        """Drives work to its end, on new connections where the database was away."""
        for _ in range(DRIVES_MAX):
            seat = self.seat
            try:
                if isinstance(seat, AsyncSeat):
                    with seat.sharing():
                        self._run_async(seat.drive(self._watched(work.acts())))
                else:
                    seat.drive(self._watched(work.acts()))
                return
            except Released:
                return
            except Exception as error:
                if not is_outage(error):
                    raise
                self._tape.mark("waits", "the database was away; the work is done again")
                self._clock.forward(_PAUSE_S)
        raise Runaway(f"{self.consumer.name}: a batch does not get through")

    def _watched(self, acts: Acts[None]) -> Acts[None]:
        """``acts``, with the message in hand on the tape while its handler runs."""
        tape = self._tape
        answer: Any = None
        error: BaseException | None = None
        try:
            while True:
                act = acts.throw(error) if error is not None else acts.send(answer)
                labels: list[str] = []
                if act is Do.ROLLBACK:
                    tape.mark("undone", "what ran since the last commit")
                if isinstance(act, Call):
                    labels = [self._label(delivery) for delivery in act.deliveries]
                    handler = act.deliveries[0].handler
                    assert handler is not None
                    code = handler.function.__code__ if hasattr(handler.function, "__code__") else None
                    tape.handler = Where(code.co_filename, code.co_firstlineno, code.co_name) if code else None
                    tape.message, tape.running = tape.together(labels), True
                try:
                    answer, error = (yield act), None
                except BaseException as raised:
                    answer, error = None, raised
                if isinstance(act, Call):
                    tape.running, tape.handler = False, None
                    self._after(answer, labels)
        except StopIteration:
            return

    def bury(self) -> None:
        """The process is dead. What SQLAlchemy still holds of it is let go; on the database nothing happens any more."""
        with contextlib.suppress(Exception, Crash):
            if isinstance(self.seat, AsyncSeat):
                self._run_async(self.seat.perform(Do.ROLLBACK))
            else:
                self.seat.perform(Do.ROLLBACK)

    def _after(self, called: Called | None, labels: Sequence[str]) -> None:
        """A handler's run is over: how, and what it has left in memory."""
        together = self._tape.message
        if called is not None and called.error is None:
            for label in labels:
                self._tape.message = label
                self._tape.mark("ran", "ran")
        self._tape.message = together
        for name in self._changed():
            if name not in self._remembered:
                self._remembered.add(name)
                self._tape.mark("remembers", name)
