"""KafkaAdmin: topics, positions and lag, and records read without a group."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic

from bothends.brokers.kafka.blame import error_of, publish_error
from bothends.brokers.kafka.client import CONSUMER, LOG, ClientLog, refuse_settings
from bothends.brokers.kafka.records import record_of
from bothends.core.retention import Window
from bothends.errors import Blame, ConfigError, PositionLost, PublishError
from bothends.message import Origin, Record
from bothends.ports import Lag, TopicState
from bothends.urls import mask

__all__ = ["KafkaAdmin"]

REQUEST_S = 10.0
_GROUP_EMPTY_S = 12.0
_LOOK_AGAIN_S = 0.25
_LEADER_S = 5.0
_NO_LEADER = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.UNKNOWN_TOPIC_OR_PART)


class KafkaAdmin:
    """Requests of one broker. Usable from several threads."""

    def __init__(self, url: str, settings: dict[str, Any]) -> None:
        self._url, self._settings = mask(url), settings
        try:
            self._client = AdminClient(settings | {"logger": ClientLog(), "error_cb": self._on_error})
        except KafkaException as error:
            raise refuse_settings(url, error) from error
        self._reader: Consumer | None = None
        self._reading = threading.Lock()

    def _on_error(self, error: KafkaError) -> None:
        LOG.debug("%s: %s", self._url, error.str())

    def cluster_id(self, timeout_s: float) -> str:
        try:
            found: str | None = self._client.list_topics(timeout=timeout_s).cluster_id
        except KafkaException as error:
            raise publish_error(error, self._url) from error
        if not found:
            raise PublishError(f"{self._url}: the broker names no cluster", blame=Blame.BROKER, reason="no_cluster")
        return str(found)

    # Topics

    def topic(self, name: str) -> TopicState:
        try:
            found = self._client.list_topics(name, timeout=REQUEST_S).topics[name]
        except KafkaException as error:
            raise publish_error(error, self._url) from error
        if found.error is not None:
            if found.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                return TopicState("denied", detail=found.error.str())
            if found.error.code() == KafkaError.LEADER_NOT_AVAILABLE:
                return TopicState("no_leader", detail=found.error.str())
            return TopicState("missing", detail=found.error.str())
        headless = sorted(number for number, partition in found.partitions.items() if partition.leader < 0)
        if headless:
            return TopicState("no_leader", len(found.partitions), f"partitions without a leader: {headless[:20]}")
        return TopicState("ok", len(found.partitions))

    def create_topic(self, name: str, partitions: int) -> bool:
        # -1: the broker's own default.replication.factor, which only its operator knows.
        made = self._client.create_topics(
            [NewTopic(name, partitions, -1)], operation_timeout=REQUEST_S, request_timeout=REQUEST_S
        )[name]
        try:
            made.result(REQUEST_S + 1)
        except KafkaException as error:
            if error_of(error).code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return False
            raise publish_error(error, f"topic {name!r}") from error
        self._wait_until(name, there=True)
        return True

    def delete_topic(self, name: str) -> None:
        gone = self._client.delete_topics([name], operation_timeout=REQUEST_S, request_timeout=REQUEST_S)[name]
        try:
            gone.result(REQUEST_S + 1)
        except KafkaException as error:
            if error_of(error).code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise publish_error(error, f"topic {name!r}") from error
        self._wait_until(name, there=False)

    def _wait_until(self, name: str, *, there: bool) -> None:
        """A change is answered by the controller before every broker has heard of it."""
        deadline = time.monotonic() + REQUEST_S
        while (self.topic(name).state == "ok") is not there:
            if time.monotonic() >= deadline:
                raise PublishError(f"topic {name!r} is {'not usable' if there else 'still there'} after {REQUEST_S:.0f} s",
                                   blame=Blame.PLACE, reason="slow_metadata")
            time.sleep(0.02)

    def window(self, name: str) -> Window:
        """From ``retention.ms``, ``segment.ms`` and ``cleanup.policy``; how much fits (``retention.bytes``) can only make
        it shorter."""
        try:
            asked = self._client.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, name)],
                                                  request_timeout=REQUEST_S)
            [found] = [answer.result(REQUEST_S + 1) for answer in asked.values()]
        except KafkaException as error:
            raise publish_error(error, f"topic {name!r}") from error
        keep_ms = int(found["retention.ms"].value)
        if keep_ms < 0 or "compact" in found["cleanup.policy"].value:
            return Window(name, None)
        return Window(name, keep_ms / 1000, int(found["segment.ms"].value) / 1000)

    # Positions

    def lag(self, group: str, topics: Sequence[str]) -> list[Lag]:
        partitions = [
            TopicPartition(topic, number) for topic in dict.fromkeys(topics) for number in range(self.topic(topic).partitions)
        ]
        if not partitions:
            return []
        try:
            lows, highs = self._ranges(partitions)
            stored = self._client.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group, partitions)], request_timeout=REQUEST_S
            )[group].result(REQUEST_S + 1)
        except KafkaException as error:
            raise publish_error(error, self._url) from error
        positions = {(p.topic, p.partition): p.offset for p in stored.topic_partitions}
        return [
            Lag(p.topic, p.partition, max(-1, positions.get((p.topic, p.partition), -1)),
                lows[p.topic, p.partition], highs[p.topic, p.partition])
            for p in partitions
        ]

    def _ranges(
        self, partitions: Sequence[TopicPartition]
    ) -> tuple[dict[tuple[str, int], int], dict[tuple[str, int], int]]:
        """First and end offsets. A topic that was made a moment ago may have no leader yet, or one that the client does
        not know: asked again for a while."""
        deadline = time.monotonic() + _LEADER_S
        while True:
            try:
                lows = self._offsets(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
                return lows, self._offsets(partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]
            except KafkaException as failure:
                if error_of(failure).code() not in _NO_LEADER or time.monotonic() >= deadline:
                    raise
                threading.Event().wait(_LOOK_AGAIN_S)

    def _offsets(self, partitions: Sequence[TopicPartition], which: OffsetSpec) -> dict[tuple[str, int], int]:
        asked = self._client.list_offsets(
            dict.fromkeys(partitions, which), isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=REQUEST_S
        )
        return {(p.topic, p.partition): answer.result(REQUEST_S + 1).offset for p, answer in asked.items()}

    def set_position(self, group: str, position: Origin) -> None:
        """A static member stays in its group for the session timeout after it left: that long this waits."""
        target = ConsumerGroupTopicPartitions(group, [TopicPartition(*position)])
        deadline = time.monotonic() + _GROUP_EMPTY_S
        while True:
            try:
                done = self._client.alter_consumer_group_offsets([target], request_timeout=REQUEST_S)[group]
                error = done.result(REQUEST_S + 1).topic_partitions[0].error
            except KafkaException as failure:
                error = error_of(failure)
            if error is None:
                return
            if error.code() not in (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.NON_EMPTY_GROUP,
                                    KafkaError.REBALANCE_IN_PROGRESS, KafkaError.FENCED_INSTANCE_ID):
                raise publish_error(error, f"the position of group {group!r} in topic {position.topic!r}")
            if time.monotonic() >= deadline:
                raise ConfigError(
                    f"group {group!r} has live members, which would overwrite a position that is set now: stop them first"
                )
            time.sleep(_LOOK_AGAIN_S)

    # Reading

    def read(self, topic: str, partition: int, offset: int, max_records: int) -> list[Record]:
        state = self.topic(topic)
        if state.state == "missing" or partition >= state.partitions:
            raise PublishError(f"topic {topic!r} has no partition {partition}: {state.detail or state.state}",
                               blame=Blame.PLACE, reason="unknown_topic")
        with self._reading:
            if self._reader is None:
                self._reader = Consumer(self._settings | CONSUMER | {
                    "group.id": "bothends-reader", "enable.partition.eof": True, "fetch.wait.max.ms": 100,
                    "logger": ClientLog(), "error_cb": self._on_error,
                })
            try:
                return self._read(self._reader, TopicPartition(topic, partition, offset), max_records)
            except KafkaException as error:
                raise publish_error(error, self._url) from error
            finally:
                self._reader.unassign()

    def _read(self, reader: Consumer, start: TopicPartition, max_records: int) -> list[Record]:
        low, high = reader.get_watermark_offsets(start, timeout=REQUEST_S)
        if start.offset >= high:
            return []
        if start.offset < low:
            raise PositionLost(start.topic, start.partition, position=start.offset, low=low, high=high)
        reader.assign([start])
        records: list[Record] = []
        deadline = time.monotonic() + REQUEST_S
        while len(records) < max_records and time.monotonic() < deadline:
            for message in reader.consume(1, 0.5) + reader.consume(max(0, max_records - len(records) - 1), 0):
                error = message.error()
                if error is None:
                    records.append(record_of(message, self._settings))
                elif error.code() == KafkaError._PARTITION_EOF:
                    return records
                else:
                    raise KafkaException(error)
        return records[:max_records]

    def close(self) -> None:
        with self._reading:
            reader, self._reader = self._reader, None
            if reader is not None:
                reader.close()


