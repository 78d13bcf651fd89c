"""LogPublisher: batches on their way into a log."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence

from bothends.brokers.logs.log import Log
from bothends.brokers.logs.refusing import not_sent
from bothends.errors import Blame, PublishError
from bothends.ports import BatchReport, Outgoing

__all__ = ["LogPublisher"]

LOG = logging.getLogger("bothends.brokers")

_QUEUED_MAX = 100_000
_ROOM_TIMEOUT_S = 5.0
_LOOK_AGAIN_S = 0.05


class LogPublisher:
    """See ``ports.Publisher``. Batches wait here until ``poll`` has written them; a log that cannot be reached leaves them
    unreported."""

    def __init__(self, log: Log) -> None:
        self._log: Log | None = log
        self._waiting: deque[tuple[int, Sequence[Outgoing]]] = deque()
        self._ended: list[BatchReport] = []
        self._queued = 0
        self._unreported = 0
        self._culprit: PublishError | None = None
        self._broken: PublishError | None = None

    def send(self, batch: int, records: Sequence[Outgoing]) -> None:
        log = self._open()
        deadline = time.monotonic() + _ROOM_TIMEOUT_S
        while self._queued + len(records) > _QUEUED_MAX:
            if len(records) > _QUEUED_MAX or time.monotonic() >= deadline:
                raise PublishError(f"no room for {len(records)} records: {self._queued} of at most {_QUEUED_MAX} wait for "
                                   f"the log; send again later", blame=Blame.BROKER, reason="full")
            self._write(log, _LOOK_AGAIN_S)
        self._waiting.append((batch, records))
        self._queued += len(records)
        self._unreported += len(records)

    def poll(self, timeout_s: float) -> list[BatchReport]:
        log = self._open()
        if self._waiting:
            self._write(log, timeout_s)
        ended, self._ended = self._ended, []
        self._unreported = self._queued
        return ended

    def _write(self, log: Log, timeout_s: float) -> None:
        """As many batches in one transaction as are waiting; one by one where that is refused."""
        try:
            if self._culprit is None and len(self._waiting) > 1:
                together = [record for _, records in self._waiting for record in records]
                if not log.append(together, timeout_s):
                    while self._waiting:
                        self._end({})
            while self._waiting:
                records = self._waiting[0][1]
                cause = self._culprit
                if cause is None:
                    failures = log.append(records, timeout_s)
                    self._culprit = next((f for f in failures.values() if f.reason != "not_sent"), None)
                else:
                    failures = {index: not_sent(cause) for index in range(len(records))}
                self._end(failures)
        except PublishError as error:
            LOG.debug("the log cannot be written now: %s", error)
            if error.reason == "disk_full":  # said at once, without waiting: to be tried again after a pause, not at once
                self._broken = error
                self._waiting.clear()
                self._queued = 0

    def _end(self, failures: dict[int, PublishError]) -> None:
        batch, records = self._waiting.popleft()
        self._queued -= len(records)
        self._ended.append(BatchReport(batch, failures))

    def pending(self) -> int:
        return self._unreported

    def broken(self) -> PublishError | None:
        return self._broken

    def abandon(self) -> None:
        log, self._log = self._log, None
        self._waiting.clear()
        self._ended.clear()
        self._queued = self._unreported = 0
        if log is not None:
            log.close()

    def close(self, timeout_s: float) -> list[BatchReport]:
        if self._log is None:
            return []
        reports = self.poll(timeout_s)
        self.abandon()
        return reports

    def _open(self) -> Log:
        if self._log is None:
            raise PublishError("this publisher is closed; ask the broker for a new one", blame=Blame.BROKER,
                               reason="closed")
        return self._log
