"""Records: what has arrived in a topic, when the broker wrote it, and in which order."""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.peers.peer import NUMBER

__all__ = ["Arrived", "Records", "number", "records", "watch"]

PARTITIONS = 8
_BATCH = 10_000
_READ_S = 60.0
_ANSWER_S = 10.0
_NUMBER = re.compile(NUMBER)


def number(value: bytes | None) -> int:
    """Which event a record is of; -1: of none of ours."""
    found = _NUMBER.search(value or b"")
    return int(found[1]) if found else -1


@dataclass
class Arrived:
    """A stretch of the topic, read to its end."""

    events: set[int] = field(default_factory=set)
    records: int = 0
    swapped: int = 0
    """Records that came after a later one of the same key."""
    first_ms: int = 0
    """When the broker wrote the first of them, and the last."""
    last_ms: int = 0

    @property
    def seconds(self) -> float:
        return max(1, self.last_ms - self.first_ms) / 1000


class Records:
    def __init__(self, topic: str, servers: str) -> None:
        self.topic = topic
        self._consumer = Consumer({
            "bootstrap.servers": servers, "group.id": "bench.peers", "enable.auto.commit": False,
            "queued.min.messages": 100_000, "queued.max.messages.kbytes": 65_536,
        })

    def ends(self) -> list[int]:
        """Each partition's next offset."""
        return [
            self._consumer.get_watermark_offsets(TopicPartition(self.topic, n), timeout=_ANSWER_S)[1]
            for n in range(PARTITIONS)
        ]

    def read(self, start: list[int]) -> Arrived:
        """Everything from ``start`` to what is there now. The order is by the event's number, per key of the event."""
        stop, arrived, last = self.ends(), Arrived(), dict[int, int]()
        left = sum(stop) - sum(start)
        self._consumer.assign([TopicPartition(self.topic, n, at) for n, at in enumerate(start)])
        deadline = time.monotonic() + _READ_S
        while arrived.records < left and time.monotonic() < deadline:
            for message in self._consumer.consume(_BATCH, 0.5):
                if message.error():
                    raise KafkaException(message.error())
                self._take(message, arrived, last)
        self._consumer.unassign()
        return arrived

    @staticmethod
    def _take(message: Any, arrived: Arrived, last: dict[int, int]) -> None:
        written_ms = message.timestamp()[1]
        arrived.first_ms = min(arrived.first_ms or written_ms, written_ms)
        arrived.last_ms = max(arrived.last_ms, written_ms)
        arrived.records += 1
        event = number(message.value())
        if event not in arrived.events:
            arrived.events.add(event)
            key = event % 1000
            arrived.swapped += event < last.get(key, -1)
            last[key] = max(event, last.get(key, -1))

    def close(self) -> None:
        self._consumer.close()


@contextmanager
def records(servers: str) -> Iterator[Records]:
    """A topic in which the broker notes when it wrote a record, gone afterwards."""
    name, admin = f"bench-peers-{uuid.uuid4().hex[:10]}", AdminClient({"bootstrap.servers": servers})
    admin.create_topics([
        NewTopic(name, PARTITIONS, 1, config={"message.timestamp.type": "LogAppendTime"})
    ])[name].result(_ANSWER_S)
    opened = Records(name, servers)
    try:
        yield opened
    finally:
        opened.close()
        admin.delete_topics([name])[name].result(_ANSWER_S)


def watch(task: dict[str, Any], state: Any, stop: threading.Event) -> None:
    """A child's role: says when it saw which event, from now on, as a consumer that wants them at once."""
    consumer = Consumer({
        "bootstrap.servers": task["servers"], "group.id": "bench.peers.watch", "enable.auto.commit": False,
        "fetch.wait.max.ms": 5, "fetch.min.bytes": 1,
    })
    partitions = [TopicPartition(task["topic"], n) for n in range(PARTITIONS)]
    for each in partitions:
        each.offset = consumer.get_watermark_offsets(each, timeout=_ANSWER_S)[1]
    consumer.assign(partitions)
    consumer.poll(1.0)
    state.assigned = PARTITIONS
    seen: dict[int, float] = {}
    while not stop.is_set():
        message = consumer.poll(0.1)
        if message is not None and not message.error() and (event := number(message.value())) >= task["first"]:
            now = time.monotonic()
            if event not in seen:
                seen[event] = now
                state.count(1)
    consumer.close()
    state.final["seen"] = list(seen.items())
