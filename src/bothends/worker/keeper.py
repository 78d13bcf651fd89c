"""Keeper: a worker's own errands at the database, on a thread and a connection of their own.

It reads the marks of dead workers after each assignment, leases keys whose time has come, renews what this worker holds,
says to the database every third of a lease that its handlers' transactions are alive, and ends those of frozen workers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from bothends.core.consuming import describe_error
from bothends.ports import Partition
from bothends.stores.connection import Connection
from bothends.stores.inboxes import Lease
from bothends.stores.steps import run
from bothends.telemetry import logs
from bothends.worker.floor import Floor
from bothends.worker.slots import Slot

__all__ = ["Keeper"]

_BUSY_S, _IDLE_S = 0.05, 0.5
_REPORT_S = 1.0
_LEASES_MAX = 64
_OUTAGE_S = 0.5
_log = logs.get("worker")


class Keeper:
    """``slots`` gives the slots as they are now; ``give`` brings a leased key to its slot."""

    def __init__(self, floor: Floor, slots: Callable[[], Sequence[Slot]], give: Callable[[Lease], None]) -> None:
        self._floor = floor
        self._slots, self._give = slots, give
        self._connection: Connection | None = None
        self._reported_at = self._renewed_at = 0.0
        self._unfinished: Sequence[int] = ()
        self._busy = True
        self._looked = False
        """Whether partitions that wait from before this start were looked for."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bothends-keeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float, unfinished: Sequence[int] = ()) -> None:
        """To be called when the slots have ended: until then their leases are renewed. ``unfinished`` are start marks of
        runs that the stop has cut off: they say nothing about their messages."""
        self._unfinished = unfinished
        self._ended.set()
        self._floor.wake.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self._round()
                pause_s = _BUSY_S if self._busy else _IDLE_S
            except Exception as error:
                _log.debug("the keeper waits for the database: %s", describe_error(error))
                self._drop()
                pause_s = _OUTAGE_S
            self._floor.wake.wait(min(pause_s, self._floor.the_plan.lease_s / 6))
            self._floor.wake.clear()
        try:
            self._report(force=True)
            if self._unfinished:
                plan = self._floor.the_plan
                run(plan.store.inbox.void(plan.worker, self._unfinished), self._open())
        except Exception as error:
            _log.debug("the last errands could not be run: %s", describe_error(error))
        self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _open(self) -> Connection:
        if self._connection is None or not self._connection.usable():
            plan = self._floor.the_plan
            self._connection = plan.store.connect(name=f"bothends {plan.consumer.name} keeper")
        return self._connection

    def _round(self) -> None:
        floor, plan = self._floor, self._floor.the_plan
        connection = self._open()
        if not floor.suspects_known.is_set():
            # Cleared by the next assignment before its records come, so that what is read here is never too old.
            floor.suspects_known.set()
            try:
                plan.suspects.load(run(plan.store.inbox.open_runs(plan.number, plan.worker), connection))
            except BaseException:
                floor.suspects_known.clear()
                raise
            for slot in self._slots():
                slot.wake()
        self._report()
        self._renew(connection)
        if not (floor.paused or floor.stopping.is_set()):
            self._lease(connection)
        if plan.retry.mode == "block":
            self._look_at_waiting(connection)
        floor.answering.beat(time.monotonic())

    def _report(self, *, force: bool = False) -> None:
        if not force and time.monotonic() - self._reported_at < _REPORT_S:
            return
        floor, plan = self._floor, self._floor.the_plan
        counts = floor.take_counts()
        try:
            said = run(plan.store.inbox.consumed(plan.number, counts["processed"]), self._open())
        except BaseException:
            floor.count(counts)
            raise
        self._reported_at = time.monotonic()
        floor.set_clock(said.now_s)
        floor.paused = said.paused

    def _lease(self, connection: Connection) -> None:
        floor, plan = self._floor, self._floor.the_plan
        room = _LEASES_MAX - len(floor.leases)
        if room <= 0:
            return
        due = run(
            plan.store.inbox.lease_due(plan.number, plan.worker, lease_s=plan.lease_s, most=room), connection,
        )
        self._busy = bool(due) or bool(floor.leases)
        for lease in due:
            with floor.lock:
                floor.leases[lease.key] = lease
            self._give(lease)

    def _renew(self, connection: Connection) -> None:
        """Every third of a lease: what is alive says so, and what is not is ended."""
        floor, plan = self._floor, self._floor.the_plan
        now = time.monotonic()
        if now - self._renewed_at < plan.lease_s / 3:
            return
        self._renewed_at = now
        with floor.lock:
            held = list(floor.leases.values())
        if held:
            run(plan.store.inbox.renew(plan.number, held, lease_s=plan.lease_s), connection)
        waiting: list[int] = []
        for slot in self._slots():
            seat = slot.seat
            scope = seat.scope if seat.running is not None else None
            renewals = scope.renewals() if scope is not None else None
            if renewals is not None:
                run(renewals, connection)
            seat.keep_alive(older_than_s=plan.lease_s / 4)
            if seat.begun_at is not None and now - seat.begun_at > plan.lease_s:
                waiting += seat.backend()
        if waiting and run(plan.store.inbox.end_frozen(waiting, plan.worker, plan.lease_s), connection):
            _log.warning("ended the transaction of a frozen worker", extra={"consumer": self._floor.group})

    def _look_at_waiting(self, connection: Connection) -> None:
        floor, plan = self._floor, self._floor.the_plan
        before = set(floor.waiting)
        if not before and self._looked:
            return
        self._looked = True
        found = {Partition(*p) for p in run(plan.store.inbox.blocking(plan.number), connection)}
        with floor.lock:
            # What a slot has added since ``before`` was read stays.
            floor.waiting = (floor.waiting - before) | found
        self._busy = self._busy or bool(found)

