"""Worker: one consumer's member of its group. A poll thread feeds slots and acknowledges what they have committed.

    poll ─▶ a slot, the same for a key ─▶ inbox engine ─▶ COMMIT answered ─▶ ack

The poll thread never waits for a handler or for the database, so membership is kept whatever they do; a partition whose
records pile up is paused.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from bothends.errors import Blame, ConfigError, PositionLost, PublishError, StoreUnavailable
from bothends.message import Record
from bothends.ports import Broker, Partition, StartAt, Subscription
from bothends.processes import this_process
from bothends.service import Consumer
from bothends.stores import Store
from bothends.stores.faults import fault_of
from bothends.stores.inboxes import Lease, Registered
from bothends.stores.steps import run
from bothends.telemetry import logs
from bothends.worker.dealing import Dealing, Line
from bothends.worker.engine import Plan
from bothends.worker.floor import Floor, Item
from bothends.worker.forwarding import Forwarder, retry_topic
from bothends.worker.isolation import PROCESS, Isolation
from bothends.worker.keeper import Keeper
from bothends.worker.naming import settle
from bothends.worker.rhythm import Rhythm
from bothends.worker.seating import check_middleware
from bothends.worker.sessions import check_factory
from bothends.worker.slots import Slot

__all__ = ["ABANDONED_MAX", "EXIT_STUCK", "Worker"]

SLOTS = 4
"""Slots where ``concurrency`` is not given; 1 on SQLite, which has one writer at a time."""
ABANDONED_MAX = 4
"""Stuck handlers that a process gives up before it restarts itself."""
EXIT_STUCK = 76
REVOKE_S = 2.0
"""How long a partition that is taken away may be drained."""
_POLL_MAX = 500
_IDLE_POLL_S, _BUSY_POLL_S = 0.1, 0.01
_START_AGAIN_S = 0.5
_log = logs.get("worker")


class Worker:
    """``run`` works until ``stop`` is set. ``loop`` runs coroutines of handlers; ``member`` names this member for brokers that
    know static membership; ``observe`` gets the records of ``floor.py``; ``by_message``: what is emitted is not stored."""

    def __init__(
        self, consumer: Consumer, store: Store, broker: Broker, *, prefix: str = "", member: str | None = None,
        lease_s: float = 4.0, loop: asyncio.AbstractEventLoop | None = None, resources: Any = None,
        observe: Callable[[object], None] | None = None, isolation: Isolation = PROCESS,
        exit: Callable[[int], Any] = os._exit, by_message: bool = False,
    ) -> None:
        self.consumer, self.store, self.broker = consumer, store, broker
        self.group = prefix + consumer.name
        self._prefix, self._member, self._lease_s = prefix, member, lease_s
        self._exit, self._by_message = exit, by_message
        self._slot_count = consumer.concurrency or (1 if store.dialect == "sqlite" else SLOTS)
        now_s = time.monotonic()
        self.floor = Floor(
            None, self.group, Dealing(self._slot_count), Rhythm(lease_s / 2, now_s), Rhythm(lease_s / 2, now_s), loop=loop,
            resources=resources, isolation=isolation,
        )
        if observe is not None:
            self.floor.observe = observe
        self._slots: list[Slot] = []
        self._forwarder = Forwarder(broker, f"{self.group}-retry", self.floor.now_s)
        self._keeper = Keeper(self.floor, lambda: self._slots, self._give)
        self._subscription: Subscription | None = None
        self._in_hand: Counter[Partition] = Counter()
        self._paused: set[Partition] = set()
        self._generation = 0
        self._abandoned = 0

    def run(self, stop: threading.Event, ready: threading.Event, *, stop_timeout_s: float = 20.0) -> None:
        """Consumes until ``stop`` is set and what is in hand is committed or released, at most ``stop_timeout_s`` later.
        Raises ConfigError for what can never work, PositionLost where the log no longer has the stored position.
        """
        self._check()
        registered = self._register(stop)
        if registered is None:
            return
        self._start_slots()
        self._keeper.start()
        try:
            self._subscribe_when_there(registered, stop)
            ready.set()
            while not stop.is_set():
                self._turn()
        finally:
            self._drain(stop_timeout_s)

    # Starting

    def _check(self) -> None:
        consumer = self.consumer
        if not consumer.handlers:
            raise ConfigError(f"consumer {consumer.name} has no handler; is its module named in include=?")
        if consumer.is_async and self.floor.loop is None:
            raise ConfigError(f"consumer {consumer.name} has coroutine handlers; give the worker the event loop they run on")
        check_factory(consumer)

    def _topics(self) -> list[str]:
        topics = list(self.consumer.topics)
        if self.consumer.retry.mode == "topic":
            topics += [retry_topic(topic) for topic in topics if retry_topic(topic) not in topics]
        return topics

    def _register(self, stop: threading.Event) -> Registered | None:
        """The consumer's row, as soon as the database answers; None where ``stop`` came first."""
        while not stop.is_set():
            try:
                return self._register_once()
            except Exception as error:
                broker_away = isinstance(error, PublishError) and error.blame is Blame.BROKER
                if not broker_away and not isinstance(error, StoreUnavailable) and fault_of(error) is None:
                    raise
                _log.warning("the worker waits for the %s: %s", "broker" if broker_away else "database", error,
                             extra={"consumer": self.group})
                stop.wait(_START_AGAIN_S)
        return None

    def _register_once(self) -> Registered:
        consumer, inbox = self.consumer, self.store.inbox
        start = consumer.start.isoformat() if isinstance(consumer.start, datetime) else consumer.start
        connection = self.store.connect(name=f"bothends {consumer.name} start")
        try:
            settle(consumer, self._prefix, inbox, connection, self.broker, self._topics())
            registered: Registered = run(inbox.register(
                name=self.group, service=consumer.service.name, owner=consumer.owner or "", start_at=start,
                topics=self._topics(),
            ), connection)
            run(inbox.wake_schema(registered.id), connection)
            self.floor.set_clock(run(inbox.consumed(registered.id, 0), connection).now_s)
        finally:
            connection.close()
        self.floor.plan = Plan(
            consumer, registered.id, self.store, this_process(), self._lease_s, self.floor.now, random.random,
            watch=self.floor.watch, by_message=self._by_message,
        )
        check_middleware(self.floor.plan)
        return registered

    def _subscribe_when_there(self, registered: Registered, stop: threading.Event) -> None:
        """As soon as the broker answers, or ``stop`` comes."""
        while not stop.is_set():
            try:
                self._subscribe(registered)
                return
            except PublishError as error:
                if error.blame is not Blame.BROKER:
                    raise
                _log.warning("the worker waits for the broker (is it up, and its URL right? `bothends config`): %s", error,
                             extra={"consumer": self.group})
                stop.wait(_START_AGAIN_S)

    def _subscribe(self, registered: Registered) -> None:
        at: Any = registered.start_at
        if at not in ("earliest", "latest"):
            at = datetime.fromisoformat(at)
        if registered.processed and not registered.first:
            lags = self.broker.lag(self.group, self._topics())
            if lags and all(lag.position < 0 for lag in lags):
                first = lags[0]
                raise PositionLost(
                    first.topic, first.partition, position=-1, low=first.low, high=first.high,
                )
        self._subscription = self.broker.subscribe(
            self.group, self._topics(), start=StartAt(at), member=self._member, assigned=self._assigned,
            revoked=self._revoked, at_most_once=self.consumer.at_most_once,
        )

    def _start_slots(self) -> None:
        self._slots = [Slot(self.floor, index, forwarder=self._forwarder) for index in range(self._slot_count)]
        for slot in self._slots:
            slot.start()

    # Working

    def _turn(self) -> None:
        subscription = self._subscription
        assert subscription is not None
        self.floor.turning.beat(time.monotonic())
        self._acknowledge()
        self._replace_stuck()
        due = self.floor.take_due()
        if due:
            self._feed(due, first=True)
        self._balance()
        busy = bool(self._in_hand) or bool(self._paused)
        try:
            records = subscription.poll(_POLL_MAX, _BUSY_POLL_S if busy else _IDLE_POLL_S)
        except PublishError as error:
            self._begin_anew(error)
            return
        if records:
            self._take_in(records)

    def _take_in(self, records: Sequence[Record]) -> None:
        generations = self.floor.generations
        items = []
        for record in records:
            partition = Partition(record.origin.topic, record.origin.partition)
            generation = generations.get(partition)
            if generation is not None:
                items.append(Item(record, partition, generation, self._line_of(record)))
                self._in_hand[partition] += 1
        self._feed(items)

    def _feed(self, items: Sequence[Item], *, first: bool = False) -> None:
        by_slot: dict[int, list[Item]] = {}
        deal, now_s = self.floor.dealing.deal, time.monotonic()
        for item in items:
            by_slot.setdefault(deal(item.line, now_s), []).append(item)
        for index, some in by_slot.items():
            self._slots[index].put(some, first=first)

    def _line_of(self, record: Record) -> Line | None:
        key = record.key
        if self.consumer.format is not None and self.consumer.format.key is not None:
            key = _foreign_key(self.consumer, record)
        return None if key is None else (record.origin.topic, key)

    def _give(self, lease: Lease) -> None:
        slot = self.floor.dealing.deal((lease.key.topic, lease.key.key), time.monotonic())
        self._slots[slot].give(lease)

    def _acknowledge(self) -> None:
        settled = self.floor.take_settled()
        if not settled:
            return
        for partition, count in Counter([item.partition for item in settled]).items():
            self._in_hand[partition] -= count
            if self._in_hand[partition] <= 0:
                del self._in_hand[partition]
        assert self._subscription is not None
        self._subscription.ack([item.record.origin for item in settled])

    def _balance(self) -> None:
        """Pauses partitions whose records pile up (or all, for an operator), and resumes those that have been worked off."""
        owned = self.floor.generations
        most = max(2 * self.consumer.batch_max, 4 * self.consumer.batch_max * len(self._slots) // max(1, len(owned)))
        pause, resume = [], []
        for partition in owned:
            full = self._in_hand[partition] >= most if partition in self._in_hand else False
            if partition not in self._paused:
                if full or self.floor.paused or partition in self.floor.waiting:
                    pause.append(partition)
            elif not self.floor.paused and partition not in self.floor.waiting and self._in_hand[partition] <= most // 2:
                resume.append(partition)
        assert self._subscription is not None
        if pause:
            self._subscription.pause(pause)
            self._paused.update(pause)
        if resume:
            self._subscription.resume(resume)
            self._paused.difference_update(resume)

    def _replace_stuck(self) -> None:
        for index, slot in enumerate(self._slots):
            culprits = slot.overdue()
            successor = slot.replace(culprits) if culprits is not None else None
            if culprits is None or successor is None:
                continue
            self._abandoned += 1
            _log.error("a handler ran longer than timeout_s and was abandoned", extra={
                "consumer": self.group, "id": culprits[0].name[1], "abandoned": self._abandoned,
            })
            self._slots[index] = successor
            successor.start()
            if self._abandoned >= ABANDONED_MAX:
                _log.critical("too many handlers are stuck: this process ends and is started again")
                self._exit(EXIT_STUCK)

    def _begin_anew(self, error: PublishError) -> None:
        """The broker took this member for dead, or the client is broken: everything in hand is lost to us."""
        _log.warning("the subscription begins anew: %s", error, extra={"consumer": self.group})
        self._forget(list(self.floor.generations))
        assert self._subscription is not None
        try:
            self._subscription.close()
        except PublishError as closing:
            _log.debug("closing the old subscription: %s", closing)
        self.floor.stopping.wait(_START_AGAIN_S)
        self._subscription = self.broker.subscribe(
            self.group, self._topics(), start=StartAt(), member=self._member, assigned=self._assigned, revoked=self._revoked,
            at_most_once=self.consumer.at_most_once,
        )

    # Rebalances

    def _assigned(self, partitions: Sequence[Partition]) -> None:
        self.floor.suspects_known.clear()
        self._generation += 1
        for partition in partitions:
            self.floor.generations[partition] = self._generation
            self._in_hand.pop(partition, None)
            self._paused.discard(partition)
        self.floor.wake.set()

    def _revoked(self, partitions: Sequence[Partition], lost: bool) -> None:
        gone = set(partitions)
        for slot in self._slots:
            slot.drop(lambda item: item.partition in gone)
        if not lost:
            self._finish_batches(gone, time.monotonic() + REVOKE_S)
            self._acknowledge()
        self._forget(partitions)

    def _finish_batches(self, gone: set[Partition], deadline: float) -> None:
        while time.monotonic() < deadline:
            self.floor.turning.beat(time.monotonic())
            busy = [slot for slot in self._slots if any(partition in gone for partition, _ in slot.holding)]
            if all(slot.abandoned for slot in busy) or self.floor.halted.wait(0.01):
                return

    def _forget(self, partitions: Sequence[Partition]) -> None:
        for partition in partitions:
            self.floor.generations.pop(partition, None)
            self._in_hand.pop(partition, None)
            self._paused.discard(partition)
            with self.floor.lock:
                self.floor.set_aside.pop(partition, None)

    # Stopping

    def _drain(self, stop_timeout_s: float) -> None:
        """What runs may finish; what was not begun is left to whoever comes next."""
        deadline = time.monotonic() + stop_timeout_s
        self.floor.stopping.set()
        for slot in self._slots:
            slot.drop(lambda item: True)
            slot.wake()
        reserve_s = min(2.0, stop_timeout_s / 4)
        while any(not slot.join(0.02) for slot in self._slots) and time.monotonic() < deadline - reserve_s:
            self._keep_membership()
        self.floor.halted.set()
        for slot in self._slots:
            if not slot.join(0.0):
                slot.give_up()
        for slot in self._slots:
            slot.join(max(0.0, deadline - time.monotonic()))
        self._acknowledge_last()
        self._keeper.stop(1.0, [mark for slot in self._slots if (mark := slot.open_run()) is not None])
        self._forwarder.close()

    def _keep_membership(self) -> None:
        """While the last batches run, the membership is kept, and nothing new is taken in."""
        subscription = self._subscription
        if subscription is None:
            return
        self.floor.turning.beat(time.monotonic())
        self._acknowledge()
        self._replace_stuck()
        unpaused = [p for p in self.floor.generations if p not in self._paused]
        if unpaused:
            subscription.pause(unpaused)
            self._paused.update(unpaused)
        try:
            subscription.poll(1, 0.0)  # what still comes is not acknowledged, so it comes again
        except (PublishError, PositionLost) as error:
            _log.debug("the last polls: %s", error)

    def _acknowledge_last(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is None:
            return
        settled = self.floor.take_settled()
        if settled:
            subscription.ack([item.record.origin for item in settled])
        subscription.close()


def _foreign_key(consumer: Consumer, record: Record) -> bytes | None:
    from bothends.worker.deliveries import read

    message = read(consumer, record).message
    return message.key if message is not None else record.key
