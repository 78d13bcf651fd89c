"""What only Kafka's members do: names that are not UTF-8, new partitions, gaps, soft pauses, broken callbacks, death."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from bothends.brokers.kafka import KafkaBroker, subscription
from bothends.brokers.kafka.client import CONSUMER
from bothends.errors import PublishError
from bothends.message import Origin
from bothends.ports import Outgoing, Partition, StartAt
from bothends.testing.conformance.members import Reader, publish, reports_of, until
from tests.brokers.foreign import produce


def servers(kafka: KafkaBroker) -> str:
    return kafka.url.removeprefix("kafka://")


def numbered(topic: str, start: int, stop: int, keys: int = 20) -> list[Outgoing]:
    return [Outgoing(topic, b"k%d" % (n % keys), b"%d" % n, []) for n in range(start, stop)]


def test_what_the_promises_rest_on() -> None:
    assert CONSUMER["auto.offset.reset"] == "error"
    assert CONSUMER["enable.auto.commit"] is False
    assert CONSUMER["allow.auto.create.topics"] is False
    assert CONSUMER["partition.assignment.strategy"] == "cooperative-sticky"


def test_header_names_that_are_not_utf8_stop_nobody(kafka: KafkaBroker, topic: str) -> None:
    """header-bytes-not-utf8: the names and values of all headers arrive, and so does the next record."""
    # An interpreter that has called a method often calls it in another way: the names must not be read by luck.
    publish(kafka, [Outgoing(topic, b"\x83", b"", [("id", b"%d" % n)]) for n in range(100)])
    warm = Reader(kafka, topic + "-warm", topic)
    warm.read(100)
    warm.close()
    kafka.delete_topic(topic)
    kafka.create_topic(topic, 2)
    produce(servers(kafka), topic, b"\x83", b"{}", [(b"id", b"m1"), (b"n\xff\xfe", b"\xc3\x28"), (b"name", "ø".encode())])
    produce(servers(kafka), topic, b"\x83", b"{}", [(b"id", b"m2")])
    reader = Reader(kafka, topic + "-g", topic)
    reader.read(2)
    assert [list(record.headers) for record in reader.records] == [
        [("id", b"m1"), ("n\udcff\udcfe", b"\xc3\x28"), ("name", "ø".encode())], [("id", b"m2")],
    ]
    assert reader.records[0].key == b"\x83"
    assert reader.records[0].headers[1][0].encode("utf-8", "surrogateescape") == b"n\xff\xfe"
    reader.close()
    partition = reader.records[0].origin.partition
    assert len(kafka.read(topic, partition=partition, offset=0, max_records=9)) == 2


def test_a_header_without_a_value_is_empty(kafka: KafkaBroker, topic: str) -> None:
    producer = Producer({"bootstrap.servers": servers(kafka), "log_level": 0})
    producer.produce(topic, None, b"k", headers=[("none", None), ("empty", b"")])
    producer.flush(10)
    reader = Reader(kafka, topic + "-g", topic)
    assert list(reader.read(1)[0].headers) == [("none", b""), ("empty", b"")]
    assert reader.records[0].value is None
    reader.close()


def test_aborted_and_committed_transactions_leave_gaps(kafka: KafkaBroker, topic: str) -> None:
    """Markers and aborted records take offsets; they are not delivered, and do not hold the position."""
    producer = Producer({"bootstrap.servers": servers(kafka), "transactional.id": topic, "log_level": 0})
    producer.init_transactions(10)
    for n, commit in enumerate((True, False, True)):
        producer.begin_transaction()
        for i in range(3):
            producer.produce(topic, b"%d-%d" % (n, i), b"k", partition=0)
        producer.flush(10)
        (producer.commit_transaction if commit else producer.abort_transaction)(10)
    reader = Reader(kafka, topic + "-g", topic)
    reader.read(6)
    assert [r.value for r in reader.records] == [b"%d-%d" % (n, i) for n in (0, 2) for i in range(3)]
    assert [r.origin.offset for r in reader.records] == [0, 1, 2, 8, 9, 10]
    reader.ack(reader.records[1:])
    reader.ack(reader.records[:1])
    reader.close()
    assert kafka.lag(topic + "-g", [topic])[0].position == 11
    again = Reader(kafka, topic + "-g", topic)
    again.ready(2)
    again.quiet(0.3)
    again.close()


def test_new_partitions_begin_at_their_first_record(kafka: KafkaBroker, topic: str) -> None:
    """Also for a group that began at the latest: its records were published while it existed."""
    reader = Reader(kafka, topic + "-g", topic, start=StartAt("latest"))
    reader.ready(2)
    reader.close()
    admin = AdminClient({"bootstrap.servers": servers(kafka), "log_level": 0})
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result(10)
    until(lambda: kafka.topic(topic) and kafka.topic(topic).partitions == 4, "four partitions")
    publish(kafka, numbered(topic, 0, 40))
    again = Reader(kafka, topic + "-g", topic, start=StartAt("latest"))
    again.read(40)
    assert {r.origin.partition for r in again.records} == {0, 1, 2, 3}
    again.close()


def test_latest_is_recorded_for_all_partitions_at_once(kafka: KafkaBroker, topic: str) -> None:
    """Two members of a new group: whoever comes second must not take its partition for a new one."""
    publish(kafka, numbered(topic, 0, 20))
    members = [Reader(kafka, topic + "-g", topic, start=StartAt("latest")) for _ in range(2)]
    until(lambda: [m.poll() for m in members] and all(len(m.held) == 1 for m in members), "one partition each")
    publish(kafka, numbered(topic, 20, 40))
    until(lambda: [m.poll() for m in members] and sum(len(m.records) for m in members) >= 20, "the new records")
    assert sorted(int(r.value or b"") for m in members for r in m.records) == list(range(20, 40))
    for member in members:
        member.close()


def test_a_topic_that_comes_later_is_read(kafka_url: str, topic_prefix: str) -> None:
    kafka = KafkaBroker(f"{kafka_url}/?topic.metadata.refresh.interval.ms=500")
    name = topic_prefix + "late"
    reader = Reader(kafka, name + "-g", name)
    reader.quiet(0.2)
    kafka.create_topic(name, 1)
    publish(kafka, numbered(name, 0, 3))
    reader.read(3)
    reader.close()
    kafka.delete_topic(name)
    kafka.close()


def test_a_soft_pause_becomes_a_hard_one_and_loses_nothing(kafka: KafkaBroker, topic: str) -> None:
    publish(kafka, numbered(topic, 0, 5000))
    reader = Reader(kafka, topic + "-g", topic)
    reader.read(1)
    for _ in range(20):
        reader.subscription.pause(sorted(reader.held))
        reader.quiet(0.05)
        reader.subscription.resume(sorted(reader.held))
        reader.poll(50)
    reader.read(5000)
    for number in (0, 1):
        offsets = [r.origin.offset for r in reader.records if r.origin.partition == number]
        assert offsets == list(range(len(offsets)))
    assert len(reader.records) == 5000
    reader.ack()
    reader.close()
    assert all(lag.position == lag.high for lag in kafka.lag(topic + "-g", [topic]))


def test_rewinding_a_paused_partition(kafka: KafkaBroker, topic: str) -> None:
    publish(kafka, [Outgoing(topic, b"k", b"%d" % n, []) for n in range(2000)])
    reader = Reader(kafka, topic + "-g", topic)
    reader.read(10)
    partition = Partition(topic, reader.records[0].origin.partition)
    reader.subscription.pause([partition])
    reader.quiet(0.3)
    reader.subscription.rewind(Origin(*partition, 5))
    reader.quiet(0.2)
    seen = len(reader.records)
    reader.subscription.resume([partition])
    reader.read(seen + 10)
    assert [r.origin.offset for r in reader.records[seen:seen + 10]] == list(range(5, 15))
    reader.close()


def test_an_error_in_a_callback_is_raised_and_costs_no_record(kafka: KafkaBroker, topic: str) -> None:
    publish(kafka, numbered(topic, 0, 50))
    reader = Reader(kafka, topic + "-g", topic)
    calls: list[Sequence[Partition]] = []

    def fails(partitions: Sequence[Partition]) -> None:
        calls.append(partitions)
        raise ZeroDivisionError

    reader.subscription._assigned = fails  # type: ignore[attr-defined]
    with pytest.raises(ZeroDivisionError):
        until(lambda: reader.poll() is None, "the error comes out")
    reader.read(50)
    assert len({r.origin for r in reader.records}) == 50
    assert len(calls) == 1
    reader.close()


def test_a_name_that_is_taken_over_fences_the_old_member(kafka: KafkaBroker, topic: str) -> None:
    first = Reader(kafka, topic + "-g", topic, member="one")
    first.ready(2)
    second = Reader(kafka, topic + "-g", topic, member="one")
    second.ready(2)
    with pytest.raises(PublishError) as refusal:
        until(lambda: second.poll() is first.poll(), "the first hears of it")
    assert "instance" in str(refusal.value)
    second.close()
    first.close()


MEMBER = """
    import sys
    from bothends.brokers import open_broker
    from bothends.ports import StartAt

    url, group, topic = sys.argv[1:]
    nothing = lambda *_: None
    member = open_broker(url).subscribe(group, [topic], start=StartAt(), member="one", assigned=nothing, revoked=nothing)
    got = []
    while len(got) < 10:
        got += member.poll(10, 1.0)
    member.ack([r.origin for r in got if r.origin.offset != 0])
    while True:
        member.poll(10, 0.1)
        print("polling", flush=True)
"""


def test_killed_with_the_oldest_still_in_hand(kafka: KafkaBroker, topic_prefix: str) -> None:
    """later-offset-committed-first, with SIGKILL; a static member that is restarted goes on within a second or two."""
    topic = topic_prefix + "one"
    kafka.create_topic(topic, 1)
    publish(kafka, numbered(topic, 0, 10))
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(MEMBER), kafka.url, topic + "-g", topic], stdout=subprocess.PIPE, text=True,
    )
    assert process.stdout is not None
    for _ in range(15):  # a position would have been stored by now
        assert process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert kafka.lag(topic + "-g", [topic])[0].position == 0
    started = time.monotonic()
    again = Reader(kafka, topic + "-g", topic, member="one")
    assert [r.origin.offset for r in again.read(10)] == list(range(10))
    assert time.monotonic() - started < 5.0, "sooner than the session timeout"
    again.close()
    kafka.delete_topic(topic)


def test_set_position_refuses_while_somebody_reads(
    kafka: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bothends.errors import ConfigError

    monkeypatch.setattr("bothends.brokers.kafka.admin._GROUP_EMPTY_S", 0.3)
    reader = Reader(kafka, topic + "-g", topic)
    reader.ready(2)
    with pytest.raises(ConfigError, match="live members"):
        kafka.set_position(topic + "-g", Origin(topic, 0, 0))
    reader.close()
    kafka.set_position(topic + "-g", Origin(topic, 0, 0))


def test_starting_positions_are_asked_for_until_they_come(
    kafka: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that does not answer while partitions are given: nothing is read from a guessed position."""
    publish(kafka, numbered(topic, 0, 20))
    real, calls = subscription.starting_positions, []

    def fails(client: Consumer, given: Sequence[Partition], start: StartAt) -> dict[Partition, int]:
        calls.append(given)
        if len(calls) < 4:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return real(client, given, start)

    monkeypatch.setattr(subscription, "starting_positions", fails)
    reader = Reader(kafka, topic + "-g", topic, start=StartAt("latest"))
    until(lambda: reader.poll() == [] and len(calls) >= 4, "positions are found")
    publish(kafka, numbered(topic, 20, 30))
    assert sorted(int(r.value or b"") for r in reader.read(10)) == list(range(20, 30))
    reader.close()


def test_at_most_once_hands_out_nothing_that_is_not_stored(
    kafka: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(kafka, numbered(topic, 0, 20))
    reader = Reader(kafka, topic + "-g", topic, at_most_once=True)
    real, failures = subscription.KafkaSubscription._commit, []

    def fails(self: subscription.KafkaSubscription, positions: dict[Partition, int]) -> None:
        if len(failures) < 2:
            failures.append(positions)
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        real(self, positions)

    monkeypatch.setattr(subscription.KafkaSubscription, "_commit", fails)
    for _ in range(2):
        with pytest.raises(PublishError):
            until(lambda: reader.poll(5) is None, "the failure comes out")
    assert reader.records == []
    reader.read(20)
    for number in (0, 1):
        offsets = [r.origin.offset for r in reader.records if r.origin.partition == number]
        assert offsets == list(range(len(offsets)))
    reader.close()


def test_a_group_without_a_broker_waits(topic_prefix: str) -> None:
    reader = Reader(KafkaBroker("kafka://127.0.0.1:1"), topic_prefix + "g", topic_prefix + "t")
    reader.quiet(0.3)
    started = time.monotonic()
    reader.close()
    assert time.monotonic() - started < 5.5


def test_throughput_of_a_group_is_not_one_by_one(kafka: KafkaBroker, topic: str) -> None:
    publisher = kafka.publisher("p")
    for batch in range(10):
        publisher.send(batch, numbered(topic, batch * 1000, batch * 1000 + 1000))
    reports_of(publisher, 10)
    publisher.close(1.0)
    reader = Reader(kafka, topic + "-g", topic)
    polls = 0
    while len(reader.records) < 10_000:
        polls += bool(reader.poll(1000, 1.0))
    assert polls < 200
    reader.close()


def test_waiting_does_not_spin(kafka: KafkaBroker, topic: str) -> None:
    """The client cannot wait for less than a millisecond: the rest of a timeout must not become a busy loop."""
    class Counting:
        def __init__(self, client: Any) -> None:
            self.client, self.polls = client, 0

        def poll(self, timeout_s: float) -> Any:
            self.polls += 1
            return self.client.poll(timeout_s)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.client, name)

    publish(kafka, numbered(topic, 0, 1))
    reader = Reader(kafka, topic + "-g", topic)
    reader.read(1)
    member: Any = reader.subscription
    counting = member._client = Counting(member._client)
    for _ in range(20):
        assert member.poll(10, 0.0105) == []
    assert counting.polls <= 60
    reader.close()


def test_a_member_that_comes_back_with_other_topics_gets_them(kafka: KafkaBroker, topic: str) -> None:
    """The broker gives a static member that comes back what its predecessor had, and asks nobody anew: a deployment that
    changes a consumer's topics would read the old ones, and the new ones nobody would."""
    other = f"{topic}-other"
    kafka.create_topic(other, 2)
    publish(kafka, numbered(other, 0, 10))
    before = Reader(kafka, topic + "-g", topic, member="one")
    before.ready(2)
    before.close()
    after = Reader(kafka, topic + "-g", other, member="one")
    after.read(10)
    assert {record.origin.topic for record in after.records} == {other}
    assert {partition.topic for partition in after.held} == {other}
    after.close()
    kafka.delete_topic(other)
