"""What the suites of a broker share: topics and groups of their own, and the log as it stands."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence

import pytest

from bothends.message import Record
from bothends.ports import Broker, Outgoing

__all__ = ["LogSuite", "MakeTopic", "log_of", "numbered", "values"]

MakeTopic = Callable[[int], str]


def numbered(topic: str, start: int, stop: int, *, keys: int = 5) -> list[Outgoing]:
    return [Outgoing(topic, b"k%d" % (n % keys), b"%d" % n, []) for n in range(start, stop)]


def values(records: Sequence[Record]) -> list[bytes | None]:
    return [record.value for record in records]


def log_of(broker: Broker, topic: str) -> list[Record]:
    """Everything that the topic holds, partition by partition."""
    found: list[Record] = []
    for lag in broker.lag("conformance-nobody", [topic]):
        offset = lag.low
        while batch := broker.read(topic, partition=lag.partition, offset=offset, max_records=500):
            found += batch
            offset = batch[-1].origin.offset + 1
    return found


class LogSuite:
    """Fixtures of every suite; the user gives ``broker``."""

    def trim(self, broker: Broker, topic: str, before: int) -> None:
        """Removes the records of partition 0 below ``before``, as the broker's retention would."""
        broker.trim(topic, partition=0, before=before)  # type: ignore[attr-defined]

    @pytest.fixture
    def make_topic(self, broker: Broker) -> Iterator[MakeTopic]:
        made: list[str] = []

        def make(partitions: int = 1) -> str:
            name = f"conformance-{uuid.uuid4().hex[:12]}"
            assert broker.create_topic(name, partitions)
            made.append(name)
            return name

        yield make
        for name in made:
            broker.delete_topic(name)

    @pytest.fixture
    def group(self) -> str:
        return f"conformance-{uuid.uuid4().hex[:12]}"
