"""What every broker must do. Subclass ``BrokerConformance`` in a test module and give it the fixture ``broker``:

    class TestMyBroker(BrokerConformance):
        @pytest.fixture
        def broker(self): ...

Each test uses topics and groups of its own, and deletes its topics.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from datetime import UTC, datetime, timedelta

import pytest

from bothends.errors import Blame, PositionLost, PublishError
from bothends.ports import Broker, Outgoing, Partition
from bothends.testing.conformance.groups import GroupConformance
from bothends.testing.conformance.members import Reader, publish, reports_of
from bothends.testing.conformance.topics import MakeTopic, log_of, numbered, values

__all__ = ["BrokerConformance"]


class BrokerConformance(GroupConformance):
    """See this module. Topics, publishing and reading are here; groups in ``groups.py``."""

    # Topics

    def test_topics_are_made_once_and_deleted(self, broker: Broker) -> None:
        name = f"conformance-{uuid.uuid4().hex[:12]}"
        assert broker.topic(name).state == "missing"
        assert broker.create_topic(name, 3) is True
        assert broker.create_topic(name, 3) is False
        assert (broker.topic(name).state, broker.topic(name).partitions) == ("ok", 3)
        broker.delete_topic(name)
        assert broker.topic(name).state == "missing"
        broker.delete_topic(name)

    def test_it_answers_and_has_an_identity(self, broker: Broker) -> None:
        broker.ping(10.0)
        assert broker.cluster_id()
        assert broker.cluster_id() == broker.cluster_id()

    # Publishing

    def test_each_batch_is_reported_once(self, broker: Broker, make_topic: MakeTopic) -> None:
        topic = make_topic(3)
        publisher = broker.publisher("conformance")
        for batch in range(20):
            publisher.send(batch, numbered(topic, batch * 50, batch * 50 + 50))
        assert publisher.pending() == 1000
        assert reports_of(publisher, 20) == {batch: {} for batch in range(20)}
        assert publisher.pending() == 0
        assert publisher.broken() is None
        assert publisher.poll(0) == []
        assert publisher.close(1.0) == []
        assert len(log_of(broker, topic)) == 1000

    def test_an_empty_batch_is_reported_too(self, broker: Broker) -> None:
        publisher = broker.publisher("conformance")
        publisher.send(7, [])
        assert reports_of(publisher, 1) == {7: {}}
        publisher.close(1.0)

    def test_order_per_key_across_batches(self, broker: Broker, make_topic: MakeTopic) -> None:
        topic = make_topic(4)
        publisher = broker.publisher("conformance")
        for batch in range(30):
            publisher.send(batch, numbered(topic, batch * 37, batch * 37 + 37, keys=11))
        reports_of(publisher, 30)
        publisher.close(1.0)
        by_key: dict[bytes | None, list[int]] = defaultdict(list)
        places: dict[bytes | None, set[int]] = defaultdict(set)
        for record in log_of(broker, topic):
            by_key[record.key].append(int(record.value or b""))
            places[record.key].add(record.origin.partition)
        assert by_key == {b"k%d" % k: [n for n in range(30 * 37) if n % 11 == k] for k in range(11)}
        assert all(len(found) == 1 for found in places.values()), "a key stays in one partition"

    def test_bytes_are_exact(self, broker: Broker, make_topic: MakeTopic) -> None:
        topic = make_topic(1)
        bodies = [None, b"", b"null", b"{}", bytes(range(256)), b"x" * 100_000]
        headers = [
            ("id", b"m1"), ("bad", b"\xc3\x28"), ("name", "ø".encode()), ("empty", b""), ("ø", b"1"),
            ("all", bytes(range(256))),
        ]
        publish(broker, [Outgoing(topic, b"\x83", body, headers) for body in bodies])
        found = log_of(broker, topic)
        assert values(found) == bodies
        assert [record.key for record in found] == [b"\x83"] * len(bodies)
        assert all(list(record.headers) == headers for record in found)

    def test_repeated_headers_keep_their_order(self, broker: Broker, make_topic: MakeTopic) -> None:
        if not broker.features.repeated_headers:
            return
        topic = make_topic(1)
        headers = [("a", b"1"), ("b", b"2"), ("a", b"3"), ("a", b"1")]
        publish(broker, [Outgoing(topic, None, b"", headers)])
        assert list(log_of(broker, topic)[0].headers) == headers

    def test_an_empty_key_is_a_key(self, broker: Broker, make_topic: MakeTopic) -> None:
        topic = make_topic(4)
        composed, decomposed = "é".encode(), "e\u0301".encode()
        keys = (None, b"", composed, decomposed)
        publish(broker, [Outgoing(topic, key, b"%d" % n, []) for n in range(100) for key in keys])
        places: dict[bytes | None, set[int]] = defaultdict(set)
        order: dict[bytes | None, list[int]] = defaultdict(list)
        for record in log_of(broker, topic):
            places[record.key].add(record.origin.partition)
            order[record.key].append(int(record.value or b""))
        assert set(places) == set(keys)
        for key in (b"", composed, decomposed):
            assert len(places[key]) == 1
            assert order[key] == list(range(100))
        assert sorted(order[None]) == list(range(100))

    def test_records_are_stamped_by_the_clock(self, broker: Broker, make_topic: MakeTopic) -> None:
        topic = make_topic(1)
        before = datetime.now(UTC) - timedelta(seconds=5)
        publish(broker, numbered(topic, 0, 1))
        stamp = datetime.fromtimestamp(log_of(broker, topic)[0].timestamp_ms / 1000, UTC)
        assert before <= stamp <= datetime.now(UTC) + timedelta(seconds=5)

    def test_a_record_that_is_too_large_is_the_events_fault(self, broker: Broker, make_topic: MakeTopic) -> None:
        topic = make_topic(1)
        publisher = broker.publisher("conformance")
        publisher.send(0, numbered(topic, 0, 3))
        batch = [Outgoing(topic, b"a", b"1", []), Outgoing(topic, b"b", b"x" * 2_000_000, []), Outgoing(topic, b"b", b"3", [])]
        publisher.send(1, batch)
        publisher.send(2, numbered(topic, 3, 6))
        reports = reports_of(publisher, 3)
        assert reports[0] == {}
        assert (reports[1][1].blame, reports[1][1].reason) == (Blame.EVENT, "too_large")
        assert reports[1][2].reason == "not_sent", "nothing later of its key may be appended"
        assert all(failure.blame is Blame.EVENT for failure in reports[1].values())
        assert {failure.reason for failure in reports[2].values()} == {"not_sent"}
        assert len(reports[2]) == 3
        publisher.abandon()
        confirmed = [record.value for index, record in enumerate(batch) if index not in reports[1]]
        assert values(log_of(broker, topic)) == [b"0", b"1", b"2", *confirmed]

    def test_a_missing_topic_is_the_places_fault(self, broker: Broker) -> None:
        if not broker.features.topics:
            return
        publisher = broker.publisher("conformance")
        publisher.send(0, numbered("conformance-no-such-topic", 0, 3))
        failures = reports_of(publisher, 1)[0]
        assert sorted(failures) == [0, 1, 2]
        assert {failure.blame for failure in failures.values()} == {Blame.PLACE}
        assert "unknown_topic" in {failure.reason for failure in failures.values()}
        publisher.abandon()
        assert broker.topic("conformance-no-such-topic").state == "missing"

    def test_after_abandon_a_publisher_takes_nothing(self, broker: Broker, make_topic: MakeTopic) -> None:
        topic = make_topic(1)
        publisher = broker.publisher("conformance")
        publisher.send(0, numbered(topic, 0, 10))
        publisher.abandon()
        publisher.abandon()
        assert publisher.pending() == 0
        with pytest.raises(PublishError) as refusal:
            publisher.send(1, numbered(topic, 10, 20))
        assert (refusal.value.blame, refusal.value.reason) == (Blame.BROKER, "closed")
        assert publisher.close(1.0) == []
        assert len(log_of(broker, topic)) <= 10

    def test_close_waits_for_what_is_queued(self, broker: Broker, make_topic: MakeTopic) -> None:
        topic = make_topic(2)
        publisher = broker.publisher("conformance")
        for batch in range(5):
            publisher.send(batch, numbered(topic, batch * 100, batch * 100 + 100))
        assert sorted(publisher.close(10.0)) == [(batch, {}) for batch in range(5)]
        assert len(log_of(broker, topic)) == 500

    # Reading without a group

    def test_read_needs_no_group(self, broker: Broker, make_topic: MakeTopic) -> None:
        topic = make_topic(1)
        publish(broker, numbered(topic, 0, 30))
        assert values(broker.read(topic, partition=0, offset=10, max_records=5)) == [b"%d" % n for n in range(10, 15)]
        assert values(broker.read(topic, partition=0, offset=28, max_records=50)) == [b"28", b"29"]
        assert broker.read(topic, partition=0, offset=30, max_records=5) == []
        assert broker.read(topic, partition=0, offset=31, max_records=5) == []
        with pytest.raises(PublishError) as refusal:
            broker.read("conformance-no-such-topic", partition=0, offset=0, max_records=5)
        assert refusal.value.blame is Blame.PLACE
        self.trim(broker, topic, 12)
        with pytest.raises(PositionLost):
            broker.read(topic, partition=0, offset=10, max_records=5)
        assert values(broker.read(topic, partition=0, offset=12, max_records=1)) == [b"12"]

    def test_partitions_name_their_topic(self, broker: Broker, make_topic: MakeTopic, group: str) -> None:
        topic = make_topic(3)
        reader = Reader(broker, group, topic)
        reader.ready(3)
        assert reader.held == {Partition(topic, number) for number in range(3)}
        reader.close()
        assert reader.held == set()
