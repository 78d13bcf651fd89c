"""One record on its own way to the broker, so that a rejection is surely its own. The pipeline goes on beside it."""

from __future__ import annotations

import time

from bothends.errors import Blame, PublishError
from bothends.ports import BatchReport, Broker, Publisher
from bothends.relay.records import Row, outgoing

__all__ = ["Probe"]

_LAST_WORDS_S = 2.0


class Probe:
    """At most one record is out. After a failure the publisher is given up, as its port asks."""

    def __init__(self, broker: Broker, name: str, silence_s: float) -> None:
        self._broker, self._name, self._silence_s = broker, name, silence_s
        self._publisher: Publisher | None = None
        self._number = 0
        self._sent_at = 0.0
        self.row: Row | None = None

    def send(self, row: Row) -> PublishError | None:
        """Sends ``row``. What was refused at once, or None: the answer comes through ``answer``."""
        try:
            records = outgoing([row])
        except ValueError as error:
            return PublishError(f"the row cannot be read: {error}", blame=Blame.EVENT, reason="unreadable")
        if self._publisher is None:
            self._publisher = self._broker.publisher(self._name)
            self._number = 0
        self._number += 1
        try:
            self._publisher.send(self._number, records)
        except PublishError as error:
            self.abandon()
            return error
        self.row, self._sent_at = row, time.monotonic()
        return None

    def answer(self) -> tuple[Row, PublishError | None] | None:
        """The row and what became of it (None: confirmed); None while the broker says nothing."""
        if self.row is None or self._publisher is None:
            return None
        row = self.row
        reports = self._publisher.poll(0) or self._last_words(self._publisher)
        error: PublishError | None
        if reports:
            error = reports[0].failures.get(0)
            if error is not None and error.reason == "not_sent":
                error = self._publisher.broken() or error
        elif (broken := self._publisher.broken()) is not None:
            error = broken
        elif time.monotonic() - self._sent_at > self._silence_s:
            error = PublishError("no answer", blame=Blame.BROKER, reason="silent")
        else:
            return None
        self.row = None
        if error is not None:
            self.abandon()
        return row, error

    @staticmethod
    def _last_words(publisher: Publisher) -> list[BatchReport]:
        """A client that comes to its end because of this very record says that first, and why afterwards."""
        deadline = time.monotonic() + _LAST_WORDS_S
        while publisher.broken() is not None and publisher.pending() and time.monotonic() < deadline:
            if reports := publisher.poll(0.05):
                return reports
        return []

    def abandon(self) -> None:
        publisher, self._publisher, self.row = self._publisher, None, None
        if publisher is not None:
            publisher.abandon()
