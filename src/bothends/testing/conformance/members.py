"""A group's member and a publisher as the conformance suites use them: with a limit to every wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from bothends.errors import PublishError
from bothends.message import Record
from bothends.ports import Broker, Outgoing, Partition, Publisher, StartAt

__all__ = ["WITHIN_S", "Reader", "publish", "reports_of", "until"]

WITHIN_S = 20.0
"""How long a test waits for what must happen. Rebalances of real brokers take seconds."""


def until(condition: Callable[[], object], what: str, within_s: float = WITHIN_S) -> None:
    """Evaluates ``condition`` again and again until it holds; it does the waiting itself (it polls)."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s:.0f} s: {what}"


class Reader:
    """One member of a group; everything that it was given is in ``records``, in order of arrival."""

    def __init__(self, broker: Broker, group: str, *topics: str, start: StartAt | None = None, **options: Any) -> None:
        self.held: set[Partition] = set()
        self.records: list[Record] = []
        self.given: list[list[Partition]] = []
        self.taken: list[tuple[list[Partition], bool]] = []
        self.on_revoked: Callable[[Sequence[Partition]], None] = lambda partitions: None
        self.subscription = broker.subscribe(
            group, topics, start=start or StartAt(), assigned=self._assigned, revoked=self._revoked, **options
        )

    def _assigned(self, partitions: Sequence[Partition]) -> None:
        self.given.append(list(partitions))
        self.held.update(partitions)

    def _revoked(self, partitions: Sequence[Partition], lost: bool) -> None:
        self.on_revoked(partitions)
        self.taken.append((list(partitions), lost))
        self.held.difference_update(partitions)

    def poll(self, max_records: int = 100, timeout_s: float = 0.05) -> list[Record]:
        got = self.subscription.poll(max_records, timeout_s)
        self.records += got
        return got

    def read(self, count: int, within_s: float = WITHIN_S) -> list[Record]:
        """Polls until ``count`` records have arrived in all."""
        deadline = time.monotonic() + within_s
        while len(self.records) < count:
            self.poll()
            assert time.monotonic() < deadline, f"{len(self.records)} of {count} records within {within_s:.0f} s"
        return self.records

    def quiet(self, for_s: float = 0.5) -> None:
        """Nothing arrives for a while."""
        deadline = time.monotonic() + for_s
        while time.monotonic() < deadline:
            assert self.poll() == []

    def ready(self, partitions: int) -> None:
        until(lambda: self.poll() is not None and len(self.held) == partitions, f"{partitions} partitions are held")

    def ack(self, records: Sequence[Record] | None = None) -> None:
        self.subscription.ack([record.origin for record in (self.records if records is None else records)])

    def close(self) -> None:
        self.subscription.close()


def reports_of(publisher: Publisher, batches: int, within_s: float = WITHIN_S) -> dict[int, dict[int, PublishError]]:
    """The failures of each of ``batches`` batches; asserts that none is reported twice."""
    found: dict[int, dict[int, PublishError]] = {}
    deadline = time.monotonic() + within_s
    while len(found) < batches:
        for batch, failures in publisher.poll(0.05):
            assert batch not in found, f"batch {batch} was reported twice"
            found[batch] = failures
        assert time.monotonic() < deadline, f"reports of {sorted(found)}, {batches} were expected"
    return found


def publish(broker: Broker, records: Sequence[Outgoing]) -> None:
    """All of them, confirmed."""
    publisher = broker.publisher("conformance")
    publisher.send(0, records)
    assert reports_of(publisher, 1) == {0: {}}
    publisher.close(1.0)
