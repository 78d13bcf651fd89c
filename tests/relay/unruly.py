"""A broker that refuses, goes silent or dies when told to, around a real one. What it takes, the real one has."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from bothends.errors import Blame, PublishError
from bothends.ports import BatchReport, Broker, Outgoing, Publisher, TopicState

Judge = Callable[[Outgoing], PublishError | None]


def refuse(blame: Blame, reason: str = "test") -> PublishError:
    return PublishError(f"refused: {reason}", blame=blame, reason=reason)


class Unruly:
    """See ``ports.Broker``; everything that is not here is the real broker's."""

    def __init__(self, real: Broker) -> None:
        self.real = real
        self.judge: Judge = lambda record: None
        self.down = threading.Event()
        """Set: nothing is answered, nothing is reported."""
        self.silent = threading.Event()
        """Set: reports are kept back, but pings are answered."""
        self.sent: list[list[Outgoing]] = []
        """Every batch that was handed over, in order, by any publisher."""
        self.publishers: list[UnrulyPublisher] = []
        self.away: set[str] = set()
        """Topics that are said to be missing."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def ping(self, timeout_s: float) -> None:
        if self.down.is_set():
            raise refuse(Blame.BROKER, "unreachable")
        self.real.ping(timeout_s)

    def topic(self, name: str) -> TopicState:
        if name in self.away:
            return TopicState("missing", detail="said the test")
        return self.real.topic(name)

    def publisher(self, name: str) -> Publisher:
        made = UnrulyPublisher(self, name)
        self.publishers.append(made)
        return made

    def alone(self, value: bytes) -> int:
        """How often a record with this body was sent alone."""
        return sum(len(batch) == 1 and batch[0].value == value for batch in self.sent)


class UnrulyPublisher:
    def __init__(self, broker: Unruly, name: str) -> None:
        self._broker, self._real, self.name = broker, broker.real.publisher(name), name
        self._reports: list[BatchReport] = []
        self._culprit: PublishError | None = None
        self._pending = 0
        self.abandoned = False

    def send(self, batch: int, records: Sequence[Outgoing]) -> None:
        self._broker.sent.append(list(records))
        self._pending += len(records)
        failures = {
            index: error for index, record in enumerate(records)
            if (error := self._broker.judge(record)) is not None
        }
        for index, record in enumerate(records):
            if index not in failures and record.topic in self._broker.away:
                failures[index] = refuse(Blame.PLACE, "unknown_topic")
        if self._culprit is None and not failures:
            self._real.send(batch, records)
            return
        if self._culprit is None:
            self._culprit = next(iter(failures.values()))
        rest = PublishError("went down with another one", blame=self._culprit.blame, reason="not_sent")
        self._reports.append(BatchReport(batch, {n: failures.get(n, rest) for n in range(len(records))}))

    def poll(self, timeout_s: float) -> list[BatchReport]:
        if self._broker.down.is_set() or self._broker.silent.is_set():
            threading.Event().wait(timeout_s)
            return []
        reports = [*self._real.poll(0 if self._reports else timeout_s), *self._reports]
        self._reports.clear()
        self._pending = self._real.pending()
        return reports

    def pending(self) -> int:
        return self._pending

    def broken(self) -> PublishError | None:
        return None

    def abandon(self) -> None:
        self.abandoned = True
        self._pending = 0
        self._real.abandon()

    def close(self, timeout_s: float) -> list[BatchReport]:
        return self._real.close(timeout_s)
