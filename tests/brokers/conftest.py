from collections.abc import Iterator

import pytest

from bothends.brokers.kafka import KafkaBroker


@pytest.fixture
def kafka(kafka_url: str) -> Iterator[KafkaBroker]:
    broker = KafkaBroker(kafka_url)
    yield broker
    broker.close()


@pytest.fixture
def topic(kafka: KafkaBroker, topic_prefix: str) -> Iterator[str]:
    """A topic of two partitions, deleted after the test."""
    name = f"{topic_prefix}topic"
    kafka.create_topic(name, 2)
    yield name
    kafka.delete_topic(name)
