"""What only Kafka's publisher does: rejections by the real broker, outages, and names that the client cannot carry."""

import time
from collections import defaultdict

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bothends.brokers.kafka import KafkaBroker
from bothends.brokers.kafka.blame import publish_error
from bothends.brokers.kafka.client import PRODUCER
from bothends.brokers.kafka.publisher import PUSH_MAX
from bothends.errors import Blame, PublishError
from bothends.ports import Outgoing
from bothends.testing.conformance.members import publish, reports_of, until


def small_topic(kafka: KafkaBroker, name: str) -> str:
    """A topic whose broker takes batches of at most 2,000 bytes."""
    admin = AdminClient({"bootstrap.servers": kafka.url.removeprefix("kafka://"), "log_level": 0})
    admin.create_topics([NewTopic(name, 2, 1, config={"max.message.bytes": "2000"})])[name].result(10)
    until(lambda: kafka.topic(name).state == "ok", "the topic is known")
    return name


@pytest.mark.parametrize(("code", "blame", "reason"), [
    (KafkaError.MSG_SIZE_TOO_LARGE, Blame.EVENT, "too_large"),
    (KafkaError.INVALID_RECORD, Blame.EVENT, "invalid"),
    (KafkaError.UNKNOWN_TOPIC_OR_PART, Blame.PLACE, "unknown_topic"),
    (KafkaError._UNKNOWN_TOPIC, Blame.PLACE, "unknown_topic"),
    (KafkaError.TOPIC_AUTHORIZATION_FAILED, Blame.PLACE, "denied"),
    (KafkaError.LEADER_NOT_AVAILABLE, Blame.PLACE, "no_leader"),
    (KafkaError._TRANSPORT, Blame.BROKER, "transport"),
    (KafkaError._ALL_BROKERS_DOWN, Blame.BROKER, "all_brokers_down"),
    (KafkaError.CLUSTER_AUTHORIZATION_FAILED, Blame.BROKER, "cluster_authorization_failed"),
    (KafkaError._TIMED_OUT, Blame.BROKER, "timed_out"),
])
def test_blame(code: int, blame: Blame, reason: str) -> None:
    for failure in (KafkaError(code), KafkaException(KafkaError(code))):
        error = publish_error(failure, "topic 'x'")
        assert (error.blame, error.reason) == (blame, reason)
        assert "topic 'x'" in str(error)


def test_what_the_promises_rest_on() -> None:
    assert PRODUCER == {
        "acks": "all", "enable.idempotence": True, "enable.gapless.guarantee": True, "message.timeout.ms": 0,
        "partitioner": "murmur2_random", "allow.auto.create.topics": False,
    }


def test_a_rejection_leaves_no_holes(kafka: KafkaBroker, topic_prefix: str) -> None:
    """one-oversized-message: the broker's rejection of a batch says nothing of its neighbours, and what was handed over
    later for a key is never appended after a failure of an earlier one."""
    topic = small_topic(kafka, topic_prefix + "small")
    publisher = kafka.publisher("p")
    batches = {
        n: [Outgoing(topic, b"k%d" % (i % 4), b"x" * 5000 if (n, i) == (6, 3) else b"%d" % (n * 20 + i), []) for i in range(20)]
        for n in range(15)
    }
    failures: dict[int, dict[int, PublishError]] = {}
    for number, records in batches.items():
        publisher.send(number, records)
    failures = reports_of(publisher, len(batches))
    assert (failures[6][3].blame, failures[6][3].reason) == (Blame.EVENT, "too_large")
    assert {f.blame for found in failures.values() for f in found.values()} == {Blame.EVENT}
    broken = publisher.broken()
    assert broken is not None
    assert broken.blame is Blame.BROKER
    started = time.monotonic()
    publisher.abandon()
    assert time.monotonic() - started < 2.5
    log: dict[bytes | None, list[bytes | None]] = defaultdict(list)
    for partition in (0, 1):
        for record in kafka.read(topic, partition=partition, offset=0, max_records=1000):
            log[record.key].append(record.value)
    for key in (b"k0", b"k1", b"k2", b"k3"):
        sent = [r.value for records in batches.values() for r in records if r.key == key]
        assert log[key] == sent[: len(log[key])], "a run without holes"
        confirmed = [r.value for n, records in batches.items() for i, r in enumerate(records)
                     if r.key == key and i not in failures[n]]
        assert set(confirmed) <= set(log[key]), "what is in no list was appended"
    kafka.delete_topic(topic)


def test_who_waits_has_nothing_more_to_send(kafka_url: str, kafka: KafkaBroker, topic: str) -> None:
    """Few records need not wait for company (linger.ms) once their sender waits for them; many do, in batches that are full."""
    patient = KafkaBroker(f"{kafka_url}?linger.ms=600000")
    few, many = patient.publisher("few"), patient.publisher("many")
    few.send(0, [Outgoing(topic, b"k", b"v", [])])
    assert few.poll(0) == [], "a look is no wait"
    until(lambda: few.poll(0.1), "the broker has it")
    many.send(0, [Outgoing(topic, b"k", b"v", [])] * (PUSH_MAX + 1))
    assert many.poll(0.3) == []
    assert len(many.close(10)) == 1
    few.close(1)
    patient.close()


def test_alone_only_the_large_one_is_rejected(kafka: KafkaBroker, topic_prefix: str) -> None:
    topic = small_topic(kafka, topic_prefix + "small")
    outcomes = []
    for value in (b"1", b"x" * 5000, b"3"):
        publisher = kafka.publisher("p")
        publisher.send(0, [Outgoing(topic, b"k", value, [])])
        outcomes.append({f.reason for f in reports_of(publisher, 1)[0].values()})
        publisher.abandon()
    assert outcomes == [set(), {"too_large"}, set()]
    kafka.delete_topic(topic)


def test_an_outage_fails_nothing() -> None:
    """recorded-as-sent-before-the-broker-said-so: without a broker nothing is reported, and giving up is quick."""
    publisher = KafkaBroker("kafka://127.0.0.1:1").publisher("p")
    records = [Outgoing("t", b"k", b"v", [])] * 10
    for batch in range(5):
        publisher.send(batch, records)
    assert publisher.poll(1.0) == []
    assert publisher.pending() == 50
    assert publisher.broken() is None
    started = time.monotonic()
    publisher.abandon()
    assert time.monotonic() - started < 2.5
    assert publisher.pending() == 0


def test_a_close_without_a_broker_is_bounded_and_reports_nothing() -> None:
    publisher = KafkaBroker("kafka://127.0.0.1:1").publisher("p")
    publisher.send(0, [Outgoing("t", b"k", b"v", [])])
    started = time.monotonic()
    assert publisher.close(0.3) == []
    assert time.monotonic() - started < 3.0


def test_room_is_bounded_and_all_or_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bothends.brokers.kafka.publisher.ROOM_TIMEOUT_S", 0.2)
    publisher = KafkaBroker("kafka://127.0.0.1:1/?queue.buffering.max.messages=100").publisher("p")
    records = [Outgoing("t", b"k", b"v", [])] * 60
    publisher.send(0, records)
    for batch in (records, records * 2):
        with pytest.raises(PublishError) as refusal:
            publisher.send(1, batch)
        assert (refusal.value.blame, refusal.value.reason) == (Blame.BROKER, "full")
    assert publisher.pending() == 60
    publisher.send(1, records[:40])
    publisher.abandon()


def test_a_batch_that_is_larger_than_the_queue_goes_out_in_parts(topic: str, kafka: KafkaBroker) -> None:
    """No waiting makes room for it at once: its relay waited for ever."""
    publisher = KafkaBroker(f"{kafka.url}?queue.buffering.max.messages=100").publisher("p")
    publisher.send(0, [Outgoing(topic, b"k", b"%d" % n, []) for n in range(350)])
    assert reports_of(publisher, 1) == {0: {}}
    publisher.close(1.0)


def test_a_queue_that_is_full_of_bytes_lets_nothing_overtake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bothends.brokers.kafka.publisher.ROOM_TIMEOUT_S", 0.2)
    publisher = KafkaBroker("kafka://127.0.0.1:1/?queue.buffering.max.kbytes=100").publisher("p")
    publisher.send(0, [Outgoing("t", b"k", b"x" * 30_000, [])] * 10)
    publisher.send(1, [Outgoing("t", b"k", b"small", [])])
    reports = reports_of(publisher, 1)
    assert set(reports) == {1}, "the first batch still waits for its first records"
    assert {f.reason for f in reports[1].values()} == {"not_sent"}
    publisher.abandon()


@pytest.mark.parametrize("name", ["n\udcff", "\ud800", "a\0b"])
def test_a_header_name_that_would_end_the_process_is_refused(kafka: KafkaBroker, topic: str, name: str) -> None:
    publisher = kafka.publisher("p")
    with pytest.raises(PublishError) as refusal:
        publisher.send(0, [Outgoing(topic, b"k", b"v", [("ok", b"1"), (name, b"2")])])
    assert (refusal.value.blame, refusal.value.reason) == (Blame.EVENT, "invalid")
    assert publisher.pending() == 0
    publisher.send(0, [Outgoing(topic, b"k", b"v", [("ok", b"1")])])
    assert reports_of(publisher, 1) == {0: {}}
    publisher.close(1.0)


def test_keys_go_where_java_puts_them(kafka: KafkaBroker, topic_prefix: str) -> None:
    """Kafka's own partitioner: (murmur2(key) & 0x7fffffff) % partitions. Values of org.apache.kafka.common.utils.Utils."""
    topic = topic_prefix + "murmur"
    kafka.create_topic(topic, 10)
    murmur2 = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536,
               b"a-little-bit-longer-string": -1486304829, b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971}
    publish(kafka, [Outgoing(topic, key, b"", []) for key in murmur2])
    for key, value in murmur2.items():
        found = kafka.read(topic, partition=(value & 0x7FFFFFFF) % 10, offset=0, max_records=10)
        assert key in {record.key for record in found}
    kafka.delete_topic(topic)
