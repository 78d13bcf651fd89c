"""What Kafka's administrator says: topics, lag, records read without a group, and settings that go astray."""

import threading
import time

import pytest

from bothends.brokers.kafka import KafkaBroker
from bothends.brokers.kafka.records import raw_headers
from bothends.errors import Blame, ConfigError, PublishError
from bothends.message import Origin
from bothends.ports import Lag, Outgoing
from bothends.testing.conformance.members import Reader, publish, until
from tests.brokers.foreign import produce


def numbered(topic: str, start: int, stop: int) -> list[Outgoing]:
    return [Outgoing(topic, b"k%d" % (n % 20), b"%d" % n, []) for n in range(start, stop)]


def test_asking_for_a_topic_does_not_make_it(kafka: KafkaBroker, topic_prefix: str) -> None:
    """Nothing creates topics implicitly: neither asking, nor publishing, nor subscribing."""
    name = topic_prefix + "nobody"
    reader = Reader(kafka, name + "-g", name)
    publisher = kafka.publisher("p")
    publisher.send(0, numbered(name, 0, 1))
    reader.quiet(0.5)
    publisher.poll(0.2)
    publisher.abandon()
    reader.close()
    assert kafka.topic(name).state == "missing"
    assert kafka.topic(name).partitions == 0


@pytest.mark.parametrize("name", ["", "a b", "x" * 300, "."])
def test_a_topics_name_that_kafka_refuses_is_the_places_fault(kafka: KafkaBroker, name: str) -> None:
    with pytest.raises((PublishError, ConfigError)):
        kafka.create_topic(name, 1)


def test_a_topic_can_be_used_as_soon_as_it_is_made(kafka: KafkaBroker, topic_prefix: str) -> None:
    for n in range(5):
        name = f"{topic_prefix}quick-{n}"
        assert kafka.create_topic(name, 3)
        assert kafka.topic(name).partitions == 3
        publish(kafka, numbered(name, 0, 3))
        kafka.delete_topic(name)
        assert kafka.topic(name).state == "missing"


def test_lag_over_several_topics_and_groups(kafka: KafkaBroker, topic: str, topic_prefix: str) -> None:
    other = topic_prefix + "other"
    kafka.create_topic(other, 1)
    publish(kafka, [*numbered(topic, 0, 40), *numbered(other, 0, 5)])
    kafka.set_position(topic + "-g", Origin(other, 0, 2))
    found = kafka.lag(topic + "-g", [topic, other, other, topic_prefix + "missing"])
    assert [(lag.topic, lag.partition) for lag in found] == [(topic, 0), (topic, 1), (other, 0)]
    assert found[2] == Lag(other, 0, 2, 0, 5)
    assert {lag.position for lag in found[:2]} == {-1}
    assert sum(lag.high for lag in found[:2]) == 40
    assert kafka.lag(topic + "-other", [other]) == [Lag(other, 0, -1, 0, 5)]
    kafka.delete_topic(other)


def test_reading_does_not_touch_any_group(kafka: KafkaBroker, topic: str) -> None:
    publish(kafka, numbered(topic, 0, 40))
    reader = Reader(kafka, topic + "-g", topic)
    reader.read(40)
    reader.ack(reader.records[:1])
    for number in (0, 1):
        kafka.read(topic, partition=number, offset=0, max_records=100)
    until(lambda: reader.poll() == [] and sum(max(0, lag.position) for lag in kafka.lag(topic + "-g", [topic])) == 1, "stored")
    reader.close()


def test_several_threads_may_ask_at_once(kafka: KafkaBroker, topic: str) -> None:
    publish(kafka, numbered(topic, 0, 100))
    wrong: list[object] = []

    def ask(number: int) -> None:
        for _ in range(5):
            records = kafka.read(topic, partition=number, offset=0, max_records=1000)
            if [r.origin.offset for r in records] != list(range(len(records))) or not records:
                wrong.append(records)
            if kafka.topic(topic).partitions != 2:
                wrong.append("partitions")

    threads = [threading.Thread(target=ask, args=[n % 2]) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_headers_are_read_again_from_the_log(kafka: KafkaBroker, topic: str) -> None:
    servers = kafka.url.removeprefix("kafka://")
    produce(servers, topic, b"k", b"v", [(b"a", b"1"), (b"\xff", b""), (b"a", b"\x00\xff")])
    produce(servers, topic, b"k", b"v", [])
    partition = next(lag.partition for lag in kafka.lag("nobody", [topic]) if lag.high)
    settings = {"bootstrap.servers": servers, "client.id": "again", "socket.keepalive.enable": True}
    assert raw_headers(Origin(topic, partition, 0), settings) == [("a", b"1"), ("\udcff", b""), ("a", b"\x00\xff")]
    assert raw_headers(Origin(topic, partition, 1), settings) == []


def test_headers_that_cannot_be_read_again_are_an_error(topic_prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bothends.brokers.kafka.records._FETCH_MS", 200)
    with pytest.raises(OSError, match="again"):
        raw_headers(Origin(topic_prefix, 0, 0), {"bootstrap.servers": "127.0.0.1:1"})


def test_a_record_whose_headers_cannot_be_read_now_comes_later(
    kafka: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is neither skipped nor overtaken by what comes behind it."""
    servers = kafka.url.removeprefix("kafka://")
    for n in range(10):
        produce(servers, topic, b"k", b"%d" % n, [(b"\xff" if n == 4 else b"a", b"1")])
    failures: list[Origin] = []

    def fails(origin: Origin, settings: dict[str, object]) -> list[tuple[str, bytes]]:
        failures.append(origin)
        if len(failures) < 3:
            raise OSError(f"cannot read {origin} again")
        return raw_headers(origin, settings)

    monkeypatch.setattr("bothends.brokers.kafka.records.raw_headers", fails)
    reader = Reader(kafka, topic + "-g", topic)
    reader.read(10)
    assert [r.value for r in reader.records] == [b"%d" % n for n in range(10)]
    assert list(reader.records[4].headers) == [("\udcff", b"1")]
    assert len(failures) == 3
    reader.close()


def test_requests_to_a_broker_that_is_away_are_bounded_and_blame_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bothends.brokers.kafka.admin.REQUEST_S", 0.3)
    away = KafkaBroker("kafka://127.0.0.1:1")
    started = time.monotonic()
    for ask in (lambda: away.topic("t"), lambda: away.lag("g", ["t"]),
                lambda: away.read("t", partition=0, offset=0, max_records=1)):
        with pytest.raises(PublishError) as refusal:
            ask()
        assert refusal.value.blame is Blame.BROKER
        assert "127.0.0.1:1" in str(refusal.value)
    assert time.monotonic() - started < 5.0
    away.close()


def test_a_closed_broker_opens_again_when_it_is_used(kafka_url: str) -> None:
    broker = KafkaBroker(kafka_url)
    first = broker.cluster_id()
    broker.close()
    broker.close()
    assert broker.cluster_id() == first
    broker.close()
