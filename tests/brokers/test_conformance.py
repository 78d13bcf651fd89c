"""All our brokers under the suite that is shipped to users."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bothends.brokers import open_broker
from bothends.ports import Broker
from bothends.testing.conformance.brokers import BrokerConformance


class TestMemory(BrokerConformance):
    @pytest.fixture
    def broker(self, topic_prefix: str) -> Iterator[Broker]:
        broker = open_broker(f"memory://{topic_prefix}")
        yield broker
        broker.close()


class TestEmbedded(BrokerConformance):
    @pytest.fixture
    def broker(self, tmp_path: Path) -> Iterator[Broker]:
        broker = open_broker(f"embedded:///{tmp_path}/events.log")
        yield broker
        broker.close()


class TestKafka(BrokerConformance):
    @pytest.fixture
    def broker(self, kafka_url: str) -> Iterator[Broker]:
        # A topic that is missing is given up sooner than as shipped: the tests have less patience.
        broker = open_broker(f"{kafka_url}/?topic.metadata.propagation.max.ms=500")
        yield broker
        broker.close()

    def trim(self, broker: Broker, topic: str, before: int) -> None:
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": broker.url.split("/")[2], "log_level": 0})
        for done in admin.delete_records([TopicPartition(topic, 0, before)]).values():
            done.result(10)
