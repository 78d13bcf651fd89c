"""Starting: where a member begins in the partitions that it has just been given.

A partition with a stored position begins there. Without one, either the group is new to the topic, and begins as declared,
or the partition is new, and begins at its first record. To tell the two apart, a new group stores the positions of *all*
partitions of the topic at once; the member that was given the lowest partition does it, the others wait for it a little.
"""

from __future__ import annotations

import time
import zlib
from collections import defaultdict
from collections.abc import Sequence

from confluent_kafka import Consumer, TopicPartition

from bothends.brokers.kafka.client import LOG
from bothends.ports import Partition, StartAt

__all__ = ["instance_id", "starting_positions"]

_REQUEST_S = 5.0
_OTHERS_S = 3.0
_LOOK_AGAIN_S = 0.1
_PARTITIONS_MAX = 100_000


def instance_id(member: str, topics: Sequence[str]) -> str:
    """The static member's name at the broker. The topics are part of it: a member that comes back under the name of its
    predecessor is given what that one had, whatever it has subscribed to now."""
    return f"{member}.{zlib.crc32(' '.join(sorted(set(topics))).encode()):08x}"


def starting_positions(client: Consumer, given: Sequence[Partition], start: StartAt) -> dict[Partition, int]:
    """The offset of the first record to read, for each partition given. What was not stored before is stored now.

    Raises KafkaException when the broker does not answer.
    """
    found: dict[Partition, int] = {}
    by_topic: dict[str, list[Partition]] = defaultdict(list)
    for partition, offset in _stored(client, given).items():
        if offset >= 0:
            found[partition] = offset
        else:
            by_topic[partition.topic].append(partition)
    for topic, missing in by_topic.items():
        found |= _start_topic(client, topic, missing, start)
    return found


def _start_topic(client: Consumer, topic: str, missing: list[Partition], start: StartAt) -> dict[Partition, int]:
    partitions = _partitions(client, topic) or missing
    deadline = time.monotonic() + _OTHERS_S
    first = Partition(topic, 0)
    while True:
        stored = {partition: offset for partition, offset in _stored(client, partitions).items() if offset >= 0}
        if stored or first in missing or time.monotonic() >= deadline:
            break
        time.sleep(_LOOK_AGAIN_S)  # the member that has partition 0 is about to store the positions of all
    if stored:
        positions = {partition: stored.get(partition, -1) for partition in missing}
        added = [partition for partition, offset in positions.items() if offset < 0]
        if added:
            LOG.info("new partitions of %s begin at their first record: %s", topic, [p.number for p in added])
            lows = _low(client, added)
            _store(client, lows)
            positions |= lows
        return positions
    positions = _declared(client, partitions, start)
    _store(client, positions)
    return {partition: positions[partition] for partition in missing}


def _partitions(client: Consumer, topic: str) -> list[Partition]:
    found = client.list_topics(topic, timeout=_REQUEST_S).topics.get(topic)
    numbers = sorted(found.partitions)[:_PARTITIONS_MAX] if found is not None and found.error is None else []
    return [Partition(topic, number) for number in numbers]


def _stored(client: Consumer, partitions: Sequence[Partition]) -> dict[Partition, int]:
    asked = [TopicPartition(topic, number) for topic, number in partitions]
    return {Partition(p.topic, p.partition): p.offset for p in client.committed(asked, timeout=_REQUEST_S)}


def _low(client: Consumer, partitions: Sequence[Partition]) -> dict[Partition, int]:
    return {p: client.get_watermark_offsets(TopicPartition(*p), timeout=_REQUEST_S)[0] for p in partitions}


def _high(client: Consumer, partitions: Sequence[Partition]) -> dict[Partition, int]:
    return {p: client.get_watermark_offsets(TopicPartition(*p), timeout=_REQUEST_S)[1] for p in partitions}


def _declared(client: Consumer, partitions: Sequence[Partition], start: StartAt) -> dict[Partition, int]:
    if start.at == "earliest":
        return _low(client, partitions)
    if start.at == "latest":
        return _high(client, partitions)
    since_ms = int(start.at.timestamp() * 1000)
    asked = [TopicPartition(topic, number, since_ms) for topic, number in partitions]
    found = {Partition(p.topic, p.partition): p.offset for p in client.offsets_for_times(asked, timeout=_REQUEST_S)}
    none_since = [partition for partition, offset in found.items() if offset < 0]
    return found | _high(client, none_since)


def _store(client: Consumer, positions: dict[Partition, int]) -> None:
    client.commit(offsets=[TopicPartition(*p, offset) for p, offset in positions.items()], asynchronous=False)
