"""Forwarding: retry topics (``Retry(mode="topic")``). A failed message is published to ``<topic>.retry`` with the runs
charged so far, the time before which it must not run, and its last error; then its source is acknowledged.

The body stays byte for byte what it was, and each header of ours is replaced, so a message does not grow from hop to hop.
Order is given up. While the broker cannot be reached, the source is not acknowledged.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable

from bothends.errors import Blame, PublishError
from bothends.message import Record
from bothends.ports import Broker, Outgoing, Publisher
from bothends.telemetry import logs
from bothends.worker.deliveries import ATTEMPTS_HEADER, Delivery

__all__ = ["RETRY_SUFFIX", "Forwarder", "due_s", "retry_topic"]

RETRY_SUFFIX = ".retry"
NOT_BEFORE_HEADER = "bothends-not-before"
"""Unix seconds by the consumer's database."""
ERROR_HEADER = "bothends-error"
ORIGIN_HEADER = "bothends-origin"
"""``topic:partition:offset:timestamp_ms`` of the first delivery."""
_OURS = frozenset({ATTEMPTS_HEADER, NOT_BEFORE_HEADER, ERROR_HEADER})
_SECONDS = re.compile(rb"[0-9]{1,12}(\.[0-9]{1,6})?")
_CONFIRM_S = 10.0
_AGAIN_S = 0.5
_log = logs.get("worker")


def retry_topic(topic: str) -> str:
    """Where a failed message of ``topic`` waits; a retry topic is its own."""
    return topic if topic.endswith(RETRY_SUFFIX) else topic + RETRY_SUFFIX


def due_s(record: Record) -> float:
    """The database time before which a record of a retry topic must not run; 0 for any other record."""
    if record.origin.topic.endswith(RETRY_SUFFIX):
        for name, value in record.headers:
            if name == NOT_BEFORE_HEADER and _SECONDS.fullmatch(value):
                return float(value)
    return 0.0


class Forwarder:
    """One publisher, made at first use; slots take turns."""

    def __init__(self, broker: Broker, name: str, now_s: Callable[[], float]) -> None:
        self._broker, self._name, self._now_s = broker, name, now_s
        self._lock = threading.Lock()
        self._publisher: Publisher | None = None
        self._batch = 0

    def forward(self, delivery: Delivery, give_up: Callable[[], bool]) -> bool:
        """True once the broker has confirmed; False where ``give_up()`` said so before."""
        outgoing = self._outgoing(delivery)
        told = False
        while not give_up():
            with self._lock:
                error = self._publish(outgoing, give_up)
            if error is None:
                return True
            if not told:
                told = True
                _log.warning("a retry topic does not take a message, which is tried until it does: %s", error, extra={
                    "topic": outgoing.topic, "reason": error.reason, "id": delivery.name[1],
                })
            until = time.monotonic() + _AGAIN_S
            while time.monotonic() < until and not give_up():
                threading.Event().wait(0.05)
        return False

    def close(self) -> None:
        with self._lock:
            if self._publisher is not None:
                self._publisher.abandon()
                self._publisher = None

    def _outgoing(self, delivery: Delivery) -> Outgoing:
        record, failure = delivery.record, delivery.failure
        assert failure is not None
        headers = [(name, value) for name, value in record.headers if name not in _OURS]
        if not any(name == ORIGIN_HEADER for name, _ in headers):
            topic, partition, offset = record.origin
            headers.append((ORIGIN_HEADER, f"{topic}:{partition}:{offset}:{record.timestamp_ms}".encode()))
        headers += [
            (ATTEMPTS_HEADER, str(failure.attempts).encode()),
            (NOT_BEFORE_HEADER, f"{self._now_s() + failure.delay_s:.3f}".encode()),
            (ERROR_HEADER, failure.error.encode()),
        ]
        return Outgoing(retry_topic(record.origin.topic), record.key, record.value, headers)

    def _publish(self, outgoing: Outgoing, give_up: Callable[[], bool]) -> PublishError | None:
        try:
            if self._publisher is None:
                self._publisher = self._broker.publisher(self._name)
            self._batch += 1
            self._publisher.send(self._batch, [outgoing])
            deadline = time.monotonic() + _CONFIRM_S
            while time.monotonic() < deadline and not give_up():
                for report in self._publisher.poll(0.1):
                    if report.batch == self._batch:
                        if report.failures:
                            self._drop()
                        return report.failures.get(0)
                if (broken := self._publisher.broken()) is not None:
                    self._drop()
                    return broken
        except PublishError as error:
            self._drop()
            return error
        self._drop()
        return PublishError("no confirmation in time", blame=Blame.BROKER, reason="timeout")

    def _drop(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.abandon()
