"""KafkaPublisher: an idempotent, gapless producer that reports by batch.

The hot path is the loop in ``send``: one call of ``produce`` per record, one shared callback per batch that only counts
down. Which record of a batch failed is found out afterwards, by comparing; failures are rare and cost nothing before.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from bothends.brokers.kafka.blame import COLLATERAL, error_of, publish_error
from bothends.brokers.kafka.client import LOG, PRODUCER, PRODUCER_DEFAULTS, ClientLog, refuse_settings
from bothends.errors import Blame, PublishError
from bothends.ports import BatchReport, Checked, Outgoing
from bothends.urls import mask

__all__ = ["KafkaPublisher"]

ROOM_TIMEOUT_S = 5.0
PUSH_S, PUSH_MAX = 0.001, 256
"""Seconds at most that a push takes, and with how many records on their way there is none."""
_ABANDON_S = 2.0
_NAMES_MAX = 10_000


class _Batch:
    """A batch on its way. ``left`` counts the records whose end is not known yet."""

    __slots__ = ("failures", "lost", "number", "records")

    def __init__(self, number: int, records: Sequence[Outgoing]) -> None:
        self.number = number
        self.records = records
        self.failures: dict[int, PublishError] = {}
        """By index: records that were never handed to the client."""
        self.lost: list[tuple[tuple[str, bytes, bytes], KafkaError]] = []
        """What delivery reports said, by content: they don't carry an index."""


def _content(topic: str, key: bytes | None, value: bytes | None) -> tuple[str, bytes, bytes]:
    return topic, key or b"", value or b""


class KafkaPublisher:
    """See ``ports.Publisher``."""

    def __init__(self, url: str, settings: dict[str, Any], name: str) -> None:
        self._url = mask(url)
        conf = PRODUCER_DEFAULTS | settings | PRODUCER
        conf |= {"client.id": name, "error_cb": self._on_error, "logger": ClientLog()}
        self._queue_max = int(conf["queue.buffering.max.messages"])
        try:
            self._producer: Producer | None = Producer(conf)
        except KafkaException as error:
            raise refuse_settings(url, error) from error
        self._ended: list[BatchReport] = []
        self._pending = 0
        self._culprit: PublishError | None = None
        self._fatal: PublishError | None = None
        self._names: set[str] = set()

    # Handing over

    def send(self, batch: int, records: Sequence[Outgoing]) -> None:
        producer = self._client()
        self._serve(producer, 0)  # after a failure that is known already nothing more may be handed over
        self._make_room(producer, len(records))
        if not isinstance(records, Checked):
            self._check_names(records)
        entry = _Batch(batch, records)
        self._pending += len(records)
        left = len(records)

        def delivered(error: KafkaError | None, message: Message) -> None:
            nonlocal left
            if error is not None:
                self._on_failure(entry, error, message)
            left -= 1
            if not left:
                self._end(entry)

        handed_over = 0
        if self._culprit is None and self._fatal is None:
            produce: Any = producer.produce  # its stub wants headers of a type that is wider than ours
            # By position (partition, callback, its alias, timestamp): naming them costs a tenth of the call.
            try:
                for topic, key, value, headers in records:
                    produce(topic, value, key, -1, delivered, None, 0, headers)
                    handed_over += 1
            except (BufferError, KafkaException, TypeError, ValueError) as error:
                handed_over = self._go_on(entry, handed_over, delivered, error)
        if handed_over < len(records):
            self._refuse_rest(entry, handed_over)
            left -= len(records) - handed_over
            if not left:
                self._end(entry)
        elif not records:
            self._end(entry)

    def _make_room(self, producer: Producer, records: int) -> None:
        """Waits until the client's queue has room for all; for more than it ever has, until it is empty."""
        if len(producer) + records <= self._queue_max:
            return
        deadline = time.monotonic() + ROOM_TIMEOUT_S
        while len(producer) + min(records, self._queue_max) > self._queue_max:
            if time.monotonic() >= deadline:
                raise PublishError(
                    f"{self._url}: no room for {records} records, {len(producer)} of at most {self._queue_max} are waiting"
                    f" for the broker; send again later (limit: queue.buffering.max.messages)",
                    blame=Blame.BROKER, reason="full",
                )
            self._serve(producer, 0.05)

    def _check_names(self, records: Sequence[Outgoing]) -> None:
        """A header name that is not UTF-8 ends the process inside the client (2.16), and a NUL cuts the name short."""
        names = {name for record in records for name, _ in record[3]}
        if names <= self._names:
            return
        for name in names - self._names:
            if "\0" in name or any("\ud800" <= c <= "\udfff" for c in name):
                raise PublishError(
                    f"the header name {name!r} cannot be written by the Kafka client: it must be UTF-8 without NUL",
                    blame=Blame.EVENT, reason="invalid",
                )
        if len(self._names) + len(names) > _NAMES_MAX:
            self._names.clear()
        self._names |= names

    def _go_on(self, entry: _Batch, at: int, delivered: Any, error: Exception) -> int:
        """After ``produce`` refused the record ``at``: where it was only for room, wait and go on. Else it is the
        culprit. Returns how many records of the batch were handed over."""
        producer = self._client()
        produce: Any = producer.produce
        deadline = time.monotonic() + ROOM_TIMEOUT_S
        while isinstance(error, BufferError) and time.monotonic() < deadline:
            self._serve(producer, 0.01)
            try:
                while at < len(entry.records):
                    topic, key, value, headers = entry.records[at]
                    produce(topic, value, key, -1, delivered, None, 0, headers)
                    at += 1
                    deadline = time.monotonic() + ROOM_TIMEOUT_S
                return at
            except BufferError:
                continue
            except (KafkaException, TypeError, ValueError) as refusal:
                error = refusal
        topic = entry.records[at].topic
        if isinstance(error, KafkaException):
            if error_of(error).code() in COLLATERAL:
                self._serve(producer, 0)  # the report that names the culprit may be waiting already
                entry.failures[at] = self._not_sent()
                return at
            culprit = self._blame(error_of(error), topic)
        elif isinstance(error, BufferError):
            culprit = PublishError(f"{self._url}: the client's queue is full (queue.buffering.max.kbytes)",
                                   blame=Blame.BROKER, reason="full")
        else:
            culprit = PublishError(f"topic {topic!r}: {error}", blame=Blame.EVENT, reason="invalid")
        entry.failures[at] = culprit
        self._culprit = self._culprit or culprit
        return at

    def _refuse_rest(self, entry: _Batch, start: int) -> None:
        """Records behind a failure are not handed over: a later one of its key would overtake it."""
        for index in range(start, len(entry.records)):
            if index not in entry.failures:
                entry.failures[index] = self._not_sent()

    # Hearing back

    def poll(self, timeout_s: float) -> list[BatchReport]:
        producer = self._client()
        if timeout_s and not self._ended and 0 < self._pending <= PUSH_MAX:
            self._push(producer)
        self._serve(producer, 0 if self._ended else timeout_s)
        return self._take()

    def pending(self) -> int:
        return self._pending

    def broken(self) -> PublishError | None:
        return self._fatal

    def _take(self) -> list[BatchReport]:
        ended, self._ended = self._ended, []
        return ended

    def _push(self, producer: Producer) -> None:
        """Nothing follows for now: what waits for company (linger.ms) goes out at once. Only with few records on their way:
        where there are many, others follow soon, and batches that are full cost client and broker less."""
        self._call_back(lambda: producer.flush(PUSH_S))

    def _serve(self, producer: Producer, timeout_s: float) -> None:
        self._call_back(lambda: producer.poll(timeout_s))

    def _call_back(self, wait: Callable[[], object]) -> None:
        """Callbacks run in here. A fatal error of the client is raised by what waits instead of being called back."""
        try:
            wait()
        except KafkaException as error:
            fatal = error_of(error)
            LOG.warning("%s: this publisher is at its end: %s", self._url, fatal.str())
            self._fatal = self._fatal or PublishError(f"{self._url}: {fatal.str()}", blame=Blame.BROKER, reason="fatal")

    def _on_error(self, error: KafkaError) -> None:
        LOG.debug("%s: %s", self._url, error.str())

    def _on_failure(self, entry: _Batch, error: KafkaError, message: Message) -> None:
        topic = message.topic() or ""
        entry.lost.append((_content(topic, message.key(), message.value()), error))
        if error.code() not in COLLATERAL and self._culprit is None:
            self._culprit = self._blame(error, topic)

    def _end(self, entry: _Batch) -> None:
        failures = entry.failures
        if entry.lost:
            by_content = dict(reversed(entry.lost))
            for index, (topic, key, value, _) in enumerate(entry.records):
                if index not in failures and (error := by_content.get(_content(topic, key, value))) is not None:
                    # Of records with one content all count as failed: a second copy is allowed, a hole is not.
                    failures[index] = self._not_sent() if error.code() in COLLATERAL else self._blame(error, topic)
            if not failures:
                raise AssertionError("a delivery report names a record that is not in its batch")
        self._pending -= len(entry.records)
        self._ended.append(BatchReport(entry.number, failures))

    def _blame(self, error: KafkaError, topic: str) -> PublishError:
        return publish_error(error, f"topic {topic!r}")

    def _not_sent(self) -> PublishError:
        cause = self._culprit or self._fatal
        return PublishError(
            f"not sent, because of an earlier failure of this publisher: {cause or 'it was abandoned'}",
            blame=cause.blame if cause else Blame.BROKER, reason="not_sent",
        )

    # Ending

    def abandon(self) -> None:
        producer, self._producer = self._producer, None
        if producer is None:
            return
        deadline = time.monotonic() + _ABANDON_S
        with contextlib.suppress(KafkaException):  # a fatal client refuses; it is given up in any case
            producer.purge(blocking=False)
        while len(producer) and time.monotonic() < deadline - _ABANDON_S / 2:
            self._serve(producer, 0.01)
        self._ended.clear()
        self._pending = 0
        doomed = [producer]
        del producer
        # Freeing the client waits for its threads, and those for a broker that may not answer.
        freeing = threading.Thread(target=doomed.clear, name="bothends-kafka-free", daemon=True)
        freeing.start()
        freeing.join(max(0.0, deadline - time.monotonic()))

    def close(self, timeout_s: float) -> list[BatchReport]:
        if self._producer is None:
            return []
        self._producer.flush(timeout_s)
        reports = self._take()
        self.abandon()
        return reports

    def _client(self) -> Producer:
        if self._producer is None:
            raise PublishError(f"{self._url}: this publisher is closed; ask the broker for a new one",
                               blame=Blame.BROKER, reason="closed")
        return self._producer
