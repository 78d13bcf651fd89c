"""LogSubscription: one member of a group that reads a log."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from bothends.brokers.logs.log import Log, Member
from bothends.core.ordering import Runs
from bothends.errors import PositionLost, PublishError
from bothends.message import Origin, Record
from bothends.ports import Partition

__all__ = ["LogSubscription"]

LOG = logging.getLogger("bothends.brokers")

STORE_EVERY_S = 0.5
_LOOK_AGAIN_S = 0.05


class LogSubscription:
    """See ``ports.Subscription``."""

    def __init__(
        self, log: Log, member: Member, *, assigned: Callable[[Sequence[Partition]], None],
        revoked: Callable[[Sequence[Partition], bool], None], at_most_once: bool,
    ) -> None:
        self._log, self._member, self._at_most_once = log, member, at_most_once
        self._assigned, self._revoked = assigned, revoked
        self._runs: Runs[Partition] = Runs()
        self._turns: deque[Partition] = deque()
        """Our partitions; the one whose turn it is comes first."""
        self._paused: set[Partition] = set()
        self._beat_at = self._store_at = 0.0
        self._joined = self._closed = False

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        if self._closed:
            raise RuntimeError("this subscription is closed")
        deadline = time.monotonic() + timeout_s
        while True:
            records: list[Record] = []
            pause_s = min(max(0.0, deadline - time.monotonic()), _LOOK_AGAIN_S)
            try:
                version = self._log.version()
                self._beat_if_due()
                self._store_if_due()
                records = self._read(min(max_records, self._runs.room))
                if records or time.monotonic() >= deadline:
                    return records
                now = time.monotonic()
                self._log.wait(version, min(deadline - now, max(self._beat_at - now, pause_s)))
            except PublishError as error:
                if error.reason == "fenced":
                    raise
                LOG.debug("the log cannot be reached now: %s", error)
                if time.monotonic() >= deadline:
                    return []
                time.sleep(pause_s)

    def _read(self, wanted: int) -> list[Record]:
        records: list[Record] = []
        for _ in range(len(self._turns)):
            if len(records) >= wanted:
                break
            partition = self._turns[0]
            self._turns.rotate(-1)
            if partition in self._paused:
                continue
            try:
                records += self._log.read(partition, self._runs.next(partition), wanted - len(records))
            except PositionLost:
                if not records:  # the other partitions go on: first what they have, the loss when its turn comes again
                    raise
                break
        if self._at_most_once and records:
            ends = {Partition(r.origin.topic, r.origin.partition): r.origin.offset + 1 for r in records}
            self._log.store(self._member, ends)
        for record in records:
            topic, number, offset = record.origin
            self._runs.hand_out(Partition(topic, number), offset)
        return records

    # Membership

    def _beat_if_due(self) -> None:
        now = time.monotonic()
        if now < self._beat_at:
            return
        try:
            if not self._joined:
                self._log.join(self._member)
                self._joined = True
            standing = self._log.beat(self._member)
        except PublishError as error:
            if error.reason == "fenced":
                self._drop(list(self._runs), lost=True)
            raise
        self._drop([partition for partition in self._runs if partition not in standing.held], lost=True)
        if standing.surplus:
            self._give_up(standing.surplus)
        given = [p for p in standing.held if p not in self._runs and p not in standing.surplus]
        for partition in given:
            self._runs.begin(partition, standing.held[partition])
            self._turns.append(partition)
        self._beat_at = now + (min(self._log.beat_s, _LOOK_AGAIN_S) if standing.wanting else self._log.beat_s)
        if given:
            self._assigned(given)

    def _give_up(self, partitions: list[Partition]) -> None:
        held = [partition for partition in partitions if partition in self._runs]
        if held:
            self._revoked(held, False)
            self._store(held)
        self._log.give_up(self._member, partitions)
        for partition in held:
            self._forget(partition)

    def _drop(self, partitions: list[Partition], *, lost: bool) -> None:
        for partition in partitions:
            self._forget(partition)
        if partitions:
            self._revoked(partitions, lost)

    def _forget(self, partition: Partition) -> None:
        self._runs.end(partition)
        self._paused.discard(partition)
        if partition in self._turns:
            self._turns.remove(partition)

    # Positions

    def _store_if_due(self) -> None:
        now = time.monotonic()
        if now >= self._store_at:
            self._store(self._runs)
            self._store_at = now + STORE_EVERY_S

    def _store(self, partitions: Iterable[Partition]) -> None:
        due = self._runs.to_store()
        positions = {partition: due[partition] for partition in partitions if partition in due}
        if positions and not self._at_most_once:
            self._log.store(self._member, positions)
            self._runs.stored(positions)

    def ack(self, positions: Sequence[Origin]) -> None:
        settle = self._runs.settle
        for topic, number, offset in positions:
            settle(Partition(topic, number), offset)

    def pause(self, partitions: Sequence[Partition]) -> None:
        self._paused.update(partition for partition in partitions if partition in self._runs)

    def resume(self, partitions: Sequence[Partition]) -> None:
        self._paused.difference_update(partitions)

    def rewind(self, position: Origin) -> None:
        self._runs.rewind(Partition(position.topic, position.partition), position.offset)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        partitions = list(self._runs)
        try:
            if partitions:
                self._revoked(partitions, False)
        finally:
            try:
                self._store(partitions)
                self._log.leave(self._member)
            except PublishError as error:
                LOG.warning("left the group without storing its positions, these records will come again: %s", error)
            self._log.close()
