"""Apache Kafka, through confluent-kafka."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from bothends.brokers.kafka.admin import REQUEST_S, KafkaAdmin
from bothends.brokers.kafka.client import common_settings
from bothends.brokers.kafka.publisher import KafkaPublisher
from bothends.brokers.kafka.subscription import KafkaSubscription
from bothends.core.retention import Window
from bothends.message import Origin, Record
from bothends.ports import Features, Lag, Partition, Publisher, StartAt, Subscription, TopicState
from bothends.urls import mask

__all__ = ["KafkaBroker"]


class KafkaBroker:
    """``kafka://[user:password@]host:port[,host:port][/?setting=value]``; settings are librdkafka's, by their names.

    See ``ports.Broker``. ``options`` are client settings too. Raises ConfigError where a setting contradicts a promise.
    """

    features = Features()

    def __init__(self, url: str, **options: Any) -> None:
        self.url = url
        self._settings = common_settings(url, options)
        self._made: KafkaAdmin | None = None
        self._making = threading.Lock()

    def __repr__(self) -> str:
        return f"KafkaBroker({mask(self.url)!r})"

    @property
    def _admin(self) -> KafkaAdmin:
        with self._making:
            if self._made is None:
                self._made = KafkaAdmin(self.url, self._settings)
            return self._made

    def cluster_id(self) -> str:
        return self._admin.cluster_id(REQUEST_S)

    def ping(self, timeout_s: float) -> None:
        self._admin.cluster_id(timeout_s)

    def publisher(self, name: str) -> Publisher:
        return KafkaPublisher(self.url, self._settings, name)

    def subscribe(
        self, group: str, topics: Sequence[str], *, start: StartAt, member: str | None = None,
        assigned: Callable[[Sequence[Partition]], None], revoked: Callable[[Sequence[Partition], bool], None],
        at_most_once: bool = False,
    ) -> Subscription:
        return KafkaSubscription(
            self.url, self._settings, group, topics, start=start, member=member, assigned=assigned, revoked=revoked,
            at_most_once=at_most_once,
        )

    def topic(self, name: str) -> TopicState:
        return self._admin.topic(name)

    def create_topic(self, name: str, partitions: int) -> bool:
        return self._admin.create_topic(name, partitions)

    def delete_topic(self, name: str) -> None:
        self._admin.delete_topic(name)

    def window(self, topic: str) -> Window:
        return self._admin.window(topic)

    def lag(self, group: str, topics: Sequence[str]) -> list[Lag]:
        return self._admin.lag(group, topics)

    def set_position(self, group: str, position: Origin) -> None:
        self._admin.set_position(group, position)

    def read(self, topic: str, *, partition: int, offset: int, max_records: int) -> list[Record]:
        return self._admin.read(topic, partition, offset, max_records)

    def close(self) -> None:
        with self._making:
            made, self._made = self._made, None
        if made is not None:
            made.close()
