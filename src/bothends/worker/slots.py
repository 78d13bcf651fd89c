"""Slots: each a thread with a database connection of its own. What is in hand of a key is on one slot, so its messages run
in order while other keys run beside it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

from bothends.core.consuming import HandlerTimeout, describe_error, fingerprint
from bothends.core.states import Outcome
from bothends.errors import StoreUnavailable
from bothends.ports import Partition
from bothends.stores.inboxes import Lease
from bothends.telemetry import logs
from bothends.worker.acts import Acts, Released
from bothends.worker.async_seats import AsyncSeat
from bothends.worker.deliveries import Delivery, problem_failure, read
from bothends.worker.floor import Delivered, Failed, Floor, HandlerStuck, Item, StoreLost
from bothends.worker.forwarding import Forwarder, due_s
from bothends.worker.inbox import Batch
from bothends.worker.parking import Drain
from bothends.worker.seats import Seat

__all__ = ["Slot"]

_LOOK_S = 0.2
_BACKOFF_FIRST_S, _BACKOFF_CAP_S = 0.05, 1.0
_SHRINK, _GROW = 0.7, 1.02
"""The size of a slot's batches, after one that met a lock, and after one that did not: it stays where one of twenty does.
Smaller costs more in COMMITs, larger more in what is run again; four workers on 1,000 rows were best at 24."""
_FAILED = frozenset({Outcome.PARKED, Outcome.FORWARDED, Outcome.DEAD})
_log = logs.get("worker")


def failed_of(consumer: str, delivery: Delivery) -> Failed | None:
    """What is told of a message that did not end well; None for one that only waits behind another."""
    failure = delivery.failure
    if failure is None and delivery.problem is not None:
        failure = problem_failure(delivery, hold=False)
    if failure is None or delivery.outcome is None:
        return None
    return Failed(
        consumer, delivery.outcome.value, delivery.message.type if delivery.message is not None else "",
        delivery.name[1], failure.attempts, failure.reason, failure.error, failure.fingerprint,
    )


def failed_together(consumer: str, deliveries: Sequence[Delivery], error: BaseException) -> Failed:
    """What is told of a batch handler's call that failed with several messages."""
    message = deliveries[0].message
    return Failed(
        consumer, "apart", message.type if message is not None else "", deliveries[0].name[1], 0, "handler_error",
        f"with {len(deliveries)} messages: {describe_error(error)}", fingerprint(error, "handler_error"),
    )


class Slot:
    """``put`` and ``give`` are called by other threads; everything else happens on the slot's own."""

    def __init__(
        self, floor: Floor, index: int, *, forwarder: Forwarder, queue: deque[Item] | None = None,
        drains: deque[Lease] | None = None, first: Batch | Drain | None = None, first_items: Sequence[Item] = (),
    ) -> None:
        self.floor = floor
        self.index = index
        self.queue: deque[Item] = queue if queue is not None else deque()
        self.drains: deque[Lease] = drains if drains is not None else deque()
        self.holding: frozenset[tuple[Partition, int]] = frozenset()
        self.abandoned = False
        self._finishing = False
        """What is in hand has come to its end: too late to abandon it."""
        self._forwarder = forwarder
        self._condition = threading.Condition()
        self._current: Batch | Drain | None = first
        self._items: list[Item] = list(first_items)
        self._size = float(self.floor.the_plan.consumer.batch_max)
        plan = floor.the_plan
        options: dict[str, Any] = {
            "resources": floor.resources, "isolation": floor.isolation, "fence": self._fenced,
            "stopping": floor.halted.is_set,
        }
        self.seat: Seat | AsyncSeat = AsyncSeat(plan, **options) if plan.consumer.is_async else Seat(plan, **options)
        self._thread = threading.Thread(target=self._run, name=f"bothends-slot-{index}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, items: Sequence[Item], *, first: bool = False) -> None:
        """``first``: before what is queued already (records that were set aside are older)."""
        with self._condition:
            if first:
                self.queue.extendleft(reversed(items))
            else:
                self.queue.extend(items)
            self._condition.notify_all()

    def give(self, lease: Lease) -> None:
        with self._condition:
            self.drains.append(lease)
            self._condition.notify_all()

    def drop(self, lost: Callable[[Item], bool]) -> None:
        """Forgets records that were not begun."""
        with self._condition:
            gone = [item for item in self.queue if lost(item)]
            kept = [item for item in self.queue if not lost(item)]
            self.queue.clear()
            self.queue.extend(kept)
        self._leave(gone)

    def wake(self) -> None:
        with self._condition:
            self._condition.notify_all()

    def busy(self) -> bool:
        return self._current is not None

    def open_run(self) -> int | None:
        """The start mark of the work in hand."""
        work = self._current
        return work.run if work is not None else None

    def join(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def give_up(self) -> None:
        """The time to stop is over: a synchronous handler that still runs loses its connection, and never commits."""
        if isinstance(self.seat, Seat):
            self.abandoned = True
            self.seat.abandon()

    def overdue(self) -> Sequence[Delivery] | None:
        """The messages whose synchronous handler runs for too long: one, or those of a batch handler's call."""
        running = self.seat.running if isinstance(self.seat, Seat) else None
        if running is None or time.monotonic() - running[1] <= self.floor.the_plan.consumer.timeout_s:
            return None
        return running[0]

    def replace(self, culprits: Sequence[Delivery]) -> Slot | None:
        """Abandons this slot's thread, which is stuck in a handler, and goes on in another one: a message that ran alone
        is charged with its run, the others are run again. None where the handler has come to its end meanwhile."""
        with self._condition:
            if self._finishing or self.overdue() is not culprits:
                return None
            self.abandoned = True
        seat, work = self.seat, self._current
        assert isinstance(seat, Seat)
        threading.Thread(target=seat.abandon, name="bothends-abandon", daemon=True).start()
        timeout_s = self.floor.the_plan.consumer.timeout_s
        error = HandlerTimeout(f"the handler ran longer than timeout_s={timeout_s:g}")
        successor = work.successor(culprits, error) if work is not None else None
        self.floor.observe(HandlerStuck(self.floor.group))
        return Slot(
            self.floor, self.index, forwarder=self._forwarder, queue=self.queue, drains=self.drains, first=successor,
            first_items=self._items,
        )

    def _fenced(self) -> bool:
        return self.abandoned or self.floor.fenced(self.holding)

    def _run(self) -> None:
        try:
            while not self.abandoned and (self._current is not None or self._take()):
                self._work()
        finally:
            self._close()

    def _take(self) -> bool:
        """Waits for work; False where there will be none."""
        floor = self.floor
        while True:
            with self._condition:
                while not (self.queue or self.drains) or not floor.suspects_known.is_set():
                    if floor.stopping.is_set() or self.abandoned:
                        return False
                    self._condition.wait(_LOOK_S)
                if floor.stopping.is_set() or self.abandoned:
                    return False
                if self.drains:
                    self._current, self._items = Drain(floor.the_plan, self.drains.popleft()), []
                    self.holding = frozenset()
                    floor.dealing.begin(self.index, time.monotonic())
                    return True
                most = max(1, int(self._size))
                items = [self.queue.popleft() for _ in range(min(most, len(self.queue)))]
                self._items = self._those_that_may_run(items)
                self.holding = frozenset((item.partition, item.generation) for item in self._items)
                if self._items:
                    consumer = floor.the_plan.consumer
                    self._current = Batch(floor.the_plan, [read(consumer, item.record) for item in self._items])
                    floor.dealing.begin(self.index, time.monotonic())
                    return True

    def _those_that_may_run(self, items: Sequence[Item]) -> list[Item]:
        may = [self._may_run(item) for item in items]
        if not all(may):
            self._leave([item for item, goes in zip(items, may, strict=True) if not goes])
        return [item for item, goes in zip(items, may, strict=True) if goes]

    def _leave(self, items: Sequence[Item]) -> None:
        self.floor.dealing.leave(self.index, [item.line for item in items])

    def _may_run(self, item: Item) -> bool:
        floor = self.floor
        if not floor.owns(item):
            return False
        due = due_s(item.record)
        if item.partition in floor.waiting or item.partition in floor.set_aside or (due and due > floor.now_s()):
            floor.put_aside(item, due)
            return False
        return True

    def _work(self) -> None:
        work = self._current
        assert work is not None
        began = time.monotonic()
        wait_s = _BACKOFF_FIRST_S
        lost = False
        while True:
            try:
                self._drive(work.acts())
                break
            except Released:
                break
            except Exception as error:
                if self.abandoned:
                    return
                if not lost:
                    lost = True
                    self._tell_lost(error)
                if self._fenced() or self.floor.halted.wait(wait_s) or self._give_up():
                    break
                wait_s = min(wait_s * 2, _BACKOFF_CAP_S)
        with self._condition:
            if self.abandoned:
                return
            self._finishing = True
        if lost:
            _log.info("the database is back, or the work was given up", extra={"consumer": self.floor.group})
        ended = time.monotonic()
        self.floor.dealing.end(self.index, ended, len(self._items))
        self._finish(work, ended - began)
        with self._condition:
            self._current, self._items, self.holding = None, [], frozenset()
            self._finishing = False

    def _give_up(self) -> bool:
        """Stopping while the database is away: what is in hand is released."""
        return self.floor.stopping.is_set()

    def _tell_lost(self, error: Exception) -> None:
        name = self.floor.group
        if isinstance(error, StoreUnavailable):
            _log.warning("consumption waits for the database: %s", error, extra={"consumer": name})
        else:
            _log.critical("the engine broke; the batch is tried again", exc_info=error, extra={"consumer": name})
        self.floor.observe(StoreLost(name))

    def _drive(self, acts: Acts[None]) -> None:
        seat = self.seat
        if isinstance(seat, Seat):
            seat.drive(acts)
            return
        loop = self.floor.loop
        assert loop is not None
        with seat.sharing():
            future = asyncio.run_coroutine_threadsafe(seat.drive(acts), loop)
            while not concurrent.futures.wait([future], timeout=_LOOK_S).done:
                if self._fenced() and not seat.cancelled:
                    seat.cancelled = True
                    future.cancel()
            seat.cancelled = False
            if future.cancelled():
                raise Released("the process is stopping, or the partition was given up")
            future.result()

    def _finish(self, work: Batch | Drain, seconds: float) -> None:
        """Hands on what is settled, and takes back what is not."""
        floor = self.floor
        deliveries = work.deliveries if isinstance(work, Batch) else work.done
        counts = Counter(d.outcome.value for d in deliveries if d.outcome is not None and d.outcome is not Outcome.RELEASED)
        if isinstance(work, Drain):
            floor.dealing.leave(self.index, [(work.lease.key.topic, work.lease.key.key)])
            with floor.lock:
                floor.leases.pop(work.lease.key, None)
        else:
            self._hand_on(work)
        if counts["parked"] or isinstance(work, Drain):
            floor.wake.set()
        if counts:
            floor.count(counts)
            floor.observe(Delivered(floor.group, dict(counts), seconds))
        for parted, error in work.parted:
            floor.observe(failed_together(floor.group, parted, error))
        for delivery in deliveries:
            if delivery.outcome in _FAILED and (failed := failed_of(floor.group, delivery)) is not None:
                floor.observe(failed)
        self._resize(work)

    def _hand_on(self, batch: Batch) -> None:
        floor = self.floor
        if batch.waiting_partitions:
            with floor.lock:
                floor.waiting.update(Partition(*p) for p in batch.waiting_partitions)
        again: list[Item] = []
        done: list[Item] = []
        for item, delivery in zip(self._items, batch.deliveries, strict=True):
            if delivery.outcome is None or delivery.outcome is Outcome.RELEASED:
                again.append(item)
            elif delivery.outcome is not Outcome.FORWARDED or self._forwarder.forward(delivery, self._fenced):
                done.append(item)
            else:
                again.append(item)
        floor.settle(done)
        self._leave(done)
        kept = self._those_that_may_run(again)
        if kept:
            with self._condition:
                self.queue.extendleft(reversed(kept))

    def _resize(self, work: Batch | Drain) -> None:
        """Smaller batches where locks are fought for, slowly growing again."""
        size = self._size * (_SHRINK if work.contended else _GROW)
        self._size = min(max(1.0, size), float(self.floor.the_plan.consumer.batch_max))

    def _close(self) -> None:
        seat = self.seat
        if isinstance(seat, Seat):
            seat.close()
        elif self.floor.loop is not None and self.floor.loop.is_running():
            try:
                asyncio.run_coroutine_threadsafe(seat.close(), self.floor.loop).result(2)
            except Exception as error:
                _log.debug("closing a connection: %s", describe_error(error))
