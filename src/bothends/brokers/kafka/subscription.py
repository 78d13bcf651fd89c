"""KafkaSubscription: one member of a consumer group.

The client's own queue is thrown away by each pause, so a pause is soft first: records of a paused partition wait here, and
only when there are many is the client told to stop fetching.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from bothends.brokers.kafka.blame import publish_error
from bothends.brokers.kafka.client import CONSUMER, CONSUMER_DEFAULTS, LOG, ClientLog, refuse_settings
from bothends.brokers.kafka.records import origin_of, record_of
from bothends.brokers.kafka.starting import instance_id, starting_positions
from bothends.core.ordering import Runs
from bothends.errors import BothendsError, PositionLost
from bothends.message import Origin, Record
from bothends.ports import Partition, StartAt
from bothends.urls import mask

__all__ = ["KafkaSubscription"]

STORE_EVERY_S = 0.5
_CLOSE_S = 5.0
_CLIENT_TICK_S = 0.001
"""The client waits whole milliseconds: asked to wait for less, it does not wait, and a loop around it spins."""
_HELD_RECORDS_MAX = 2_000
_HELD_BYTES_MAX = 4 * 1024 * 1024
"""Of one partition, before the client is told to stop. It is told to go on when half of that is left: after a pause it
needs a tenth of a second and more for its next records, in which the worker would stand idle."""
_NO_POSITION = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError._NO_OFFSET, KafkaError.OFFSET_OUT_OF_RANGE})
_REFUSED = frozenset({
    KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.FENCED_INSTANCE_ID,
    KafkaError._FATAL, KafkaError.INCONSISTENT_GROUP_PROTOCOL, KafkaError.INVALID_GROUP_ID, KafkaError.TOPIC_EXCEPTION,
})


class _Held:
    """Records of one partition that were fetched but not handed out."""

    __slots__ = ("records", "size")

    def __init__(self) -> None:
        self.records: deque[Record] = deque()
        self.size = 0

    def put(self, record: Record) -> None:
        self.records.append(record)
        self.size += len(record.value or b"") + len(record.key or b"")

    def take(self) -> Record:
        record = self.records.popleft()
        self.size -= len(record.value or b"") + len(record.key or b"")
        return record

    def full(self) -> bool:
        return len(self.records) >= _HELD_RECORDS_MAX or self.size >= _HELD_BYTES_MAX

    def low(self) -> bool:
        return len(self.records) <= _HELD_RECORDS_MAX // 2 and self.size <= _HELD_BYTES_MAX // 2


class KafkaSubscription:
    """See ``ports.Subscription``."""

    def __init__(
        self, url: str, settings: dict[str, Any], group: str, topics: Sequence[str], *, start: StartAt,
        member: str | None, assigned: Callable[[Sequence[Partition]], None],
        revoked: Callable[[Sequence[Partition], bool], None], at_most_once: bool,
    ) -> None:
        self._url, self._settings, self._start = mask(url), settings, start
        self._assigned, self._revoked, self._at_most_once = assigned, revoked, at_most_once
        self._runs: Runs[Partition] = Runs()
        self._held: dict[Partition, _Held] = {}
        self._paused: set[Partition] = set()
        self._stopped: set[Partition] = set()
        """Partitions that the client does not fetch."""
        self._unplaced: set[Partition] = set()
        """Partitions whose first position could not be found out when they were given."""
        self._trouble: Exception | None = None
        """To be raised once everything that was fetched is in safety."""
        self._store_at = 0.0
        self._closed = False
        conf = CONSUMER_DEFAULTS | settings | CONSUMER | {
            "group.id": group, "on_commit": self._on_commit, "error_cb": self._on_error, "logger": ClientLog(),
        }
        if member is not None:
            conf["group.instance.id"] = instance_id(member, topics)
        try:
            self._client = Consumer(conf)
        except KafkaException as error:
            raise refuse_settings(url, error) from error
        self._client.subscribe(
            list(topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    # Records

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        deadline = time.monotonic() + timeout_s
        while True:
            self._store_if_due()
            room = min(max_records, self._runs.room)
            self._fetch(room, 0.0 if self._ready() else max(0.0, deadline - time.monotonic()))
            records = self._hand_out(room)
            if not records and self._trouble is not None:
                trouble, self._trouble = self._trouble, None
                raise trouble
            if records or time.monotonic() > deadline - _CLIENT_TICK_S:
                return records

    def _ready(self) -> bool:
        return any(partition not in self._paused and held.records for partition, held in self._held.items())

    def _fetch(self, wanted: int, timeout_s: float) -> None:
        """Serves the callbacks, and moves what the client has into ``_held``. Waits for the first record only."""
        if self._unplaced:
            self._place_again()
        try:
            first = self._client.poll(timeout_s)
            if first is None:
                return
            # Held before the next call: where that gives the partition away, what is held of it goes too.
            self._take_over([first])
            if wanted > 1:
                self._take_over(self._client.consume(wanted - 1, 0))
        except KafkaException as error:  # a fatal one: this member can go on no more
            raise publish_error(error, self._url) from error
        self._stop_full()

    def _take_over(self, messages: list[Message]) -> None:
        """The client will not give these messages again, so nothing may be raised here before all of them are held."""
        skipped: set[Partition] = set()
        for message in messages:
            if (error := message.error()) is not None:
                try:
                    self._on_message_error(message, error)
                except BothendsError as trouble:
                    self._trouble = self._trouble or trouble
                continue
            origin = origin_of(message)
            partition = Partition(origin.topic, origin.partition)
            if partition in self._runs and partition not in skipped and not self._hold(partition, origin, message):
                skipped.add(partition)

    def _hold(self, partition: Partition, origin: Origin, message: Message) -> bool:
        try:
            record = record_of(message, self._settings)
        except OSError as error:
            LOG.warning("%s; trying again", error)
            self._seek(origin)
            return False
        self._held.setdefault(partition, _Held()).put(record)
        return True

    def _hand_out(self, wanted: int) -> list[Record]:
        out: list[Record] = []
        for partition in list(self._held):
            if partition in self._paused:
                continue
            held = self._held[partition]
            while held.records and len(out) < wanted:
                out.append(held.take())
            if held.low():
                self._fetch_again(partition)
            if not held.records:
                del self._held[partition]
            if len(out) >= wanted:
                if partition in self._held:  # the others come first next time
                    self._held[partition] = self._held.pop(partition)
                break
        if self._at_most_once and out:
            self._store_before(out)
        for record in out:
            self._runs.hand_out(Partition(record.origin.topic, record.origin.partition), record.origin.offset)
        return out

    def _store_before(self, records: list[Record]) -> None:
        """At most once: the position moves past the records before anybody sees them."""
        ends = {Partition(r.origin.topic, r.origin.partition): r.origin.offset + 1 for r in records}
        try:
            self._commit(ends)
        except KafkaException as error:
            for record in reversed(records):
                held = self._held.setdefault(Partition(record.origin.topic, record.origin.partition), _Held())
                held.records.appendleft(record)
                held.size += len(record.value or b"") + len(record.key or b"")
            raise publish_error(error, self._url) from error

    def _stop_full(self) -> None:
        full = [p for p, held in self._held.items() if held.full() and p not in self._stopped]
        if full:
            self._client.pause([TopicPartition(*p) for p in full])
            self._stopped.update(full)

    # What the worker says

    def ack(self, positions: Sequence[Origin]) -> None:
        settle = self._runs.settle
        for topic, number, offset in positions:
            settle(Partition(topic, number), offset)

    def pause(self, partitions: Sequence[Partition]) -> None:
        self._paused.update(p for p in partitions if p in self._runs)

    def resume(self, partitions: Sequence[Partition]) -> None:
        self._paused.difference_update(partitions)

    def rewind(self, position: Origin) -> None:
        partition = Partition(position.topic, position.partition)
        if self._runs.rewind(partition, position.offset):
            self._held.pop(partition, None)
            self._seek(position)
            self._fetch_again(partition)

    def _seek(self, position: Origin) -> None:
        place = TopicPartition(*position)
        try:
            self._client.seek(place)
        except KafkaException as error:  # not fetching (yet): begin anew
            LOG.debug("%s: cannot seek to %s: %s", self._url, position, error)
            self._client.incremental_unassign([place])
            self._client.incremental_assign([place])

    def _fetch_again(self, partition: Partition) -> None:
        if partition in self._stopped:
            self._stopped.discard(partition)
            self._client.resume([TopicPartition(*partition)])

    # Positions

    def _store_if_due(self) -> None:
        now = time.monotonic()
        if now < self._store_at or self._at_most_once:
            return
        self._store_at = now + STORE_EVERY_S
        positions = self._runs.to_store()
        if positions:
            self._client.commit(offsets=[TopicPartition(*p, o) for p, o in positions.items()], asynchronous=True)
            self._runs.stored(positions)

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            if error is not None or partition.error is not None:
                LOG.info("%s: position of %s[%s] not stored, again soon: %s", self._url, partition.topic,
                         partition.partition, error or partition.error)
                self._runs.not_stored(Partition(partition.topic, partition.partition))

    def _commit(self, positions: dict[Partition, int]) -> None:
        stored = self._client.commit(offsets=[TopicPartition(*p, o) for p, o in positions.items()], asynchronous=False)
        for partition in stored or ():
            if partition.error is not None:
                raise KafkaException(partition.error)

    def _commit_last(self, partitions: Iterable[Partition]) -> None:
        """Before partitions are given up. If it fails their records come again; nothing is lost."""
        due = self._runs.to_store()
        positions = {partition: due[partition] for partition in partitions if partition in due}
        if not positions or self._at_most_once:
            return
        try:
            self._commit(positions)
            self._runs.stored(positions)
        except KafkaException as error:
            LOG.warning("%s: positions not stored, these records will come again: %s", self._url, error)

    # Membership

    def _on_assign(self, client: Consumer, given: list[TopicPartition]) -> None:
        partitions = [Partition(p.topic, p.partition) for p in given]
        if self._closed:
            client.incremental_assign(given)
            return
        try:
            positions = starting_positions(client, partitions, self._start) if partitions else {}
        except KafkaException as error:
            LOG.warning("%s: no starting positions yet, trying again: %s", self._url, error)
            positions = {}
            self._unplaced.update(partitions)
        client.incremental_assign([TopicPartition(*p, positions.get(p, 0)) for p in partitions])
        if unplaced := [p for p in partitions if p in self._unplaced]:
            client.pause([TopicPartition(*p) for p in unplaced])
        for partition in partitions:
            self._forget(partition)
            self._runs.begin(partition, positions.get(partition, 0))
        if partitions:
            self._call(self._assigned, partitions)

    def _place_again(self) -> None:
        unplaced = list(self._unplaced)
        try:
            positions = starting_positions(self._client, unplaced, self._start)
        except KafkaException as error:
            LOG.debug("%s: no starting positions yet: %s", self._url, error)
            return
        self._unplaced.clear()
        for partition, position in positions.items():
            self._runs.begin(partition, position)
            self._seek(Origin(*partition, position))
        self._client.resume([TopicPartition(*p) for p in unplaced])

    def _on_revoke(self, client: Consumer, taken: list[TopicPartition]) -> None:
        partitions = [Partition(p.topic, p.partition) for p in taken]
        try:
            if not self._closed and partitions:
                self._give_up(partitions)
        finally:
            client.incremental_unassign(taken)

    def _give_up(self, partitions: list[Partition]) -> None:
        self._call(self._revoked, partitions, False)
        self._commit_last(partitions)
        for partition in partitions:
            self._drop(partition)

    def _on_lost(self, client: Consumer, gone: list[TopicPartition]) -> None:
        partitions = [Partition(p.topic, p.partition) for p in gone]
        for partition in partitions:
            self._drop(partition)
        client.incremental_unassign(gone)
        if partitions and not self._closed:
            self._call(self._revoked, partitions, True)

    def _call(self, callback: Callable[..., None], *arguments: Any) -> None:
        """An exception inside the client's callback would cost us the messages that it was about to return."""
        try:
            callback(*arguments)
        except Exception as error:
            self._trouble = self._trouble or error

    def _forget(self, partition: Partition) -> None:
        self._held.pop(partition, None)
        self._paused.discard(partition)
        self._stopped.discard(partition)

    def _drop(self, partition: Partition) -> None:
        self._runs.end(partition)
        self._forget(partition)
        self._unplaced.discard(partition)

    # Errors

    def _on_error(self, error: KafkaError) -> None:
        LOG.debug("%s: %s", self._url, error.str())

    def _on_message_error(self, message: Message, error: KafkaError) -> None:
        topic, number = message.topic(), message.partition()
        if error.code() in _NO_POSITION and topic is not None and number is not None:
            self._lost(Partition(topic, number))
        if error.fatal() or error.code() in _REFUSED:
            raise publish_error(error, self._url)
        LOG.info("%s: %s", self._url, error.str())

    def _lost(self, partition: Partition) -> None:
        if partition not in self._runs or partition in self._unplaced:
            return
        position = self._runs.next(partition)
        try:
            low, high = self._client.get_watermark_offsets(TopicPartition(*partition), timeout=5)
        except KafkaException as error:
            raise publish_error(error, self._url) from error
        raise PositionLost(partition.topic, partition.number, position=position, low=low, high=high)

    def close(self) -> None:
        if self._closed:
            return
        deadline = time.monotonic() + _CLOSE_S
        partitions = list(self._runs)
        try:
            if partitions:
                self._revoked(partitions, False)
        finally:
            self._closed = True
            # Waits for the broker, which may be away; the group notices a member that left without a word.
            leaving = threading.Thread(target=self._leave, args=(partitions,), name="bothends-kafka-leave", daemon=True)
            leaving.start()
            leaving.join(max(0.1, deadline - time.monotonic()))

    def _leave(self, partitions: list[Partition]) -> None:
        self._commit_last(partitions)
        self._client.close()

