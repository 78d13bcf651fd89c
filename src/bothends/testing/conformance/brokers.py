"""What every broker must do. Subclass ``BrokerConformance`` in a test module and give it the fixture ``broker``:

    class TestMyBroker(BrokerConformance):
        @pytest.fixture
        def broker(self): ...

Each test uses topics and groups of its own, and deletes its topics.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta

import pytest

from bothends.errors import Blame, PositionLost, PublishError
from bothends.message import Origin, Record
from bothends.ports import Broker, Lag, Outgoing, Partition, StartAt
from bothends.testing.conformance.members import Reader, publish, reports_of, until

__all__ = ["BrokerConformance"]

MakeTopic = Callable[[int], str]


def numbered(topic: str, start: int, stop: int, *, keys: int = 5) -> list[Outgoing]:
    return [Outgoing(topic, b"k%d" % (n % keys), b"%d" % n, []) for n in range(start, stop)]


def values(records: Sequence[Record]) -> list[bytes | None]:
    return [record.value for record in records]


def log_of(broker: Broker, topic: str) -> list[Record]:
    """Everything that the topic holds, partition by partition."""
    found: list[Record] = []
    for lag in broker.lag("conformance-nobody", [topic]):
        offset = lag.low
        while batch := broker.read(topic, partition=lag.partition, offset=offset, max_records=500):
            found += batch
            offset = batch[-1].origin.offset + 1
    return found


class BrokerConformance:
    """See this module."""

    def trim(self, broker: Broker, topic: str, before: int) -> None:
        """Removes the records of partition 0 below ``before``, as the broker's retention would."""
        broker.trim(topic, partition=0, before=before)  # type: ignore[attr-defined]

    @pytest.fixture
    def make_topic(self, broker: Broker) -> Iterator[MakeTopic]:
        made: list[str] = []

        def make(partitions: int = 1) -> str:
            name = f"conformance-{uuid.uuid4().hex[:12]}"
            assert broker.create_topic(name, partitions)
            made.append(name)
            return name

        yield make
        for name in made:
            broker.delete_topic(name)

    @pytest.fixture
    def group(self) -> str:
        return f"conformance-{uuid.uuid4().hex[:12]}"

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

    # Groups

    def test_two_groups_each_get_everything(self, broker: Broker, make_topic: MakeTopic, group: str) -> None:
        topic = make_topic(3)
        publish(broker, numbered(topic, 0, 60))
        for name in (group + "-a", group + "-b"):
            reader = Reader(broker, name, topic)
            assert sorted(int(value or b"") for value in values(reader.read(60))) == list(range(60))
            reader.quiet(0.2)
            reader.close()

    def test_two_members_share(self, broker: Broker, make_topic: MakeTopic, group: str) -> None:
        topic = make_topic(4)
        first, second = Reader(broker, group, topic), Reader(broker, group, topic)
        until(lambda: [first.poll(), second.poll()] and len(first.held) == len(second.held) == 2, "two partitions each")
        assert not first.held & second.held
        publish(broker, numbered(topic, 0, 200, keys=40))
        until(lambda: [first.poll(), second.poll()] and len(first.records) + len(second.records) >= 200, "all arrive")
        assert sorted(int(r.value or b"") for r in first.records + second.records) == list(range(200))
        assert first.records
        assert second.records
        first.ack()
        first.close()
        until(lambda: second.poll() is not None and len(second.held) == 4, "the rest takes over")
        second.quiet(0.3)
        second.close()

    def test_a_partition_is_given_up_before_another_member_has_it(
        self, broker: Broker, make_topic: MakeTopic, group: str
    ) -> None:
        """rebalance-while-a-batch-is-in-hand: finished work counts, unfinished comes again, each is told."""
        topic = make_topic(2)
        publish(broker, numbered(topic, 0, 40, keys=20))
        first = Reader(broker, group, topic)
        first.read(40)
        done = [record for record in first.records if record.origin.offset < 5]
        first.on_revoked = lambda partitions: first.ack(done)  # what ends while the partition is being given up
        second = Reader(broker, group, topic)
        until(lambda: [first.poll(), second.poll()] and len(first.held) == len(second.held) == 1, "one partition each")
        assert first.taken[-1] == (list(second.held), False)
        moved = next(iter(second.held))
        first.ack()  # too late for the partition that has moved
        expected = [r.value for r in first.records if r.origin[:2] == moved and r.origin.offset >= 5]
        until(lambda: [first.poll(), second.poll()] and len(second.records) >= len(expected), "the unfinished come again")
        assert values(second.records) == expected
        second.close()
        first.close()
        positions = {lag.partition: lag.position for lag in broker.lag(group, [topic])}
        assert positions[moved.number] == 5, "the late acknowledgement did not move the new owner's position"

    def test_positions_only_move_over_unbroken_runs(self, broker: Broker, make_topic: MakeTopic, group: str) -> None:
        """later-offset-committed-first: what was not settled comes again, whatever was settled after it."""
        topic = make_topic(1)
        publish(broker, numbered(topic, 0, 10))
        reader = Reader(broker, group, topic)
        reader.read(10)
        reader.ack(reader.records[1:])
        reader.close()
        assert [lag.position for lag in broker.lag(group, [topic])] == [0]
        again = Reader(broker, group, topic)
        assert values(again.read(10)) == [b"%d" % n for n in range(10)]
        again.ack(again.records[:4] + again.records[6:8])
        again.close()
        assert broker.lag(group, [topic]) == [Lag(topic, 0, 4, 0, 10)]
        last = Reader(broker, group, topic)
        assert values(last.read(6)) == [b"%d" % n for n in range(4, 10)]
        last.ack()
        last.close()
        assert [lag.position for lag in broker.lag(group, [topic])] == [10]

    def test_positions_are_stored_within_a_second(self, broker: Broker, make_topic: MakeTopic, group: str) -> None:
        topic = make_topic(1)
        publish(broker, numbered(topic, 0, 10))
        reader = Reader(broker, group, topic)
        reader.read(10)
        reader.ack(reader.records[:7])
        until(lambda: reader.poll() == [] and broker.lag(group, [topic])[0].position == 7, "the position is stored", 5.0)
        reader.close()

    def test_strangers_are_not_settled(self, broker: Broker, make_topic: MakeTopic, group: str) -> None:
        topic = make_topic(2)
        publish(broker, numbered(topic, 0, 10))
        reader = Reader(broker, group, topic)
        reader.read(10)
        reader.subscription.ack([Origin(topic, 0, 999), Origin(topic, 1, 10**12), Origin("other", 0, 0), Origin(topic, 7, 0)])
        reader.close()
        assert {lag.position for lag in broker.lag(group, [topic])} == {0}

    def test_pause_and_resume(self, broker: Broker, make_topic: MakeTopic, group: str) -> None:
        topic = make_topic(2)
        reader = Reader(broker, group, topic)
        reader.ready(2)
        held = sorted(reader.held)
        reader.subscription.pause(held[:1])
        publish(broker, numbered(topic, 0, 100, keys=20))
        other = [r for r in log_of(broker, topic) if r.origin.partition == held[1].number]
        assert [r.origin for r in reader.read(len(other))] == [r.origin for r in other]
        reader.quiet(0.3)
        reader.subscription.resume(held[:1])
        reader.read(100)
        assert [r.origin.offset for r in reader.records[len(other):]] == list(range(100 - len(other)))
        reader.close()

    def test_a_long_pause_keeps_the_partition(self, broker: Broker, make_topic: MakeTopic, group: str) -> None:
        """handler-slower-than-the-poll-deadline: as long as somebody polls, nobody else gets the records."""
        topic = make_topic(1)
        first, second = Reader(broker, group, topic), Reader(broker, group, topic)
        until(lambda: [first.poll(), second.poll()] and len(first.held) + len(second.held) == 1, "one of them has it")
        publish(broker, numbered(topic, 0, 2000))
        until(lambda: first.poll(10) or second.poll(10), "the first records")
        slow, idle = (first, second) if first.records else (second, first)
        slow.subscription.pause(sorted(slow.held))
        for _ in range(10):
            slow.quiet(0.1)
            idle.quiet(0.1)
        assert slow.taken == []
        slow.subscription.resume(sorted(slow.held))
        slow.read(2000)
        assert [r.origin.offset for r in slow.records] == list(range(2000))
        assert idle.records == []
        idle.close()
        slow.close()

    def test_rewind_delivers_again(self, broker: Broker, make_topic: MakeTopic, group: str) -> None:
        topic = make_topic(1)
        publish(broker, numbered(topic, 0, 20))
        reader = Reader(broker, group, topic)
        reader.read(20)
        reader.ack(reader.records[:5])
        reader.subscription.rewind(reader.records[8].origin)
        reader.read(32)
        assert values(reader.records[20:]) == [b"%d" % n for n in range(8, 20)]
        reader.ack(reader.records[20:])
        reader.subscription.ack([Origin(topic, 0, offset) for offset in (5, 6)])
        reader.close()
        assert [lag.position for lag in broker.lag(group, [topic])] == [7]

    def test_polls_are_bounded(self, broker: Broker, make_topic: MakeTopic, group: str) -> None:
        topic = make_topic(2)
        publish(broker, numbered(topic, 0, 100, keys=20))
        reader = Reader(broker, group, topic)
        until(lambda: reader.poll(7), "the first records")
        while len(reader.records) < 100:
            assert len(reader.poll(7)) <= 7
        assert len({r.origin for r in reader.records}) == 100
        reader.close()

    def test_several_topics(self, broker: Broker, make_topic: MakeTopic, group: str) -> None:
        topics = [make_topic(2), make_topic(1)]
        publish(broker, [record for topic in topics for record in numbered(topic, 0, 10)])
        reader = Reader(broker, group, *topics)
        reader.read(20)
        assert {r.origin.topic for r in reader.records} == set(topics)
        reader.ack()
        reader.close()
        assert sum(lag.position for lag in broker.lag(group, topics)) == 20

    def test_a_member_that_comes_back_goes_on(self, broker: Broker, make_topic: MakeTopic, group: str) -> None:
        topic = make_topic(2)
        publish(broker, numbered(topic, 0, 20))
        reader = Reader(broker, group, topic, member="host-1")
        reader.read(20)
        reader.ack()
        reader.close()
        assert reader.taken[-1][1] is False
        publish(broker, numbered(topic, 20, 30))
        again = Reader(broker, group, topic, member="host-1")
        assert sorted(int(value or b"") for value in values(again.read(10))) == list(range(20, 30))
        again.close()

    # Where a group begins

    def test_latest_begins_behind_what_is_there(self, broker: Broker, make_topic: MakeTopic, group: str) -> None:
        topic = make_topic(2)
        publish(broker, numbered(topic, 0, 10))
        reader = Reader(broker, group, topic, start=StartAt("latest"))
        reader.ready(2)
        assert [lag.position for lag in broker.lag(group, [topic])] == [lag.high for lag in broker.lag(group, [topic])]
        reader.close()
        publish(broker, numbered(topic, 10, 15))
        again = Reader(broker, group, topic, start=StartAt("latest"))
        assert sorted(int(value or b"") for value in values(again.read(5))) == list(range(10, 15))
        again.quiet(0.2)
        again.close()

    def test_a_date_begins_with_the_first_record_since(self, broker: Broker, make_topic: MakeTopic, group: str) -> None:
        topic = make_topic(1)
        publish(broker, numbered(topic, 0, 5))
        stamp = datetime.fromtimestamp((log_of(broker, topic)[-1].timestamp_ms + 1) / 1000, UTC)
        until(lambda: datetime.now(UTC) > stamp + timedelta(milliseconds=2), "the clock has moved on")
        publish(broker, numbered(topic, 5, 8))
        day = timedelta(days=1)
        for since, expected in ((stamp, [5, 6, 7]), (stamp - day, list(range(8))), (stamp + day, [])):
            reader = Reader(broker, f"{group}-{len(expected)}", topic, start=StartAt(since))
            reader.ready(1)
            assert [int(value or b"") for value in values(reader.read(len(expected)))] == expected
            reader.quiet(0.1)
            reader.close()

    def test_set_position_moves_a_group(self, broker: Broker, make_topic: MakeTopic, group: str) -> None:
        topic = make_topic(1)
        publish(broker, numbered(topic, 0, 10))
        broker.set_position(group, Origin(topic, 0, 6))
        assert broker.lag(group, [topic]) == [Lag(topic, 0, 6, 0, 10)]
        reader = Reader(broker, group, topic)
        assert values(reader.read(4)) == [b"6", b"7", b"8", b"9"]
        reader.ack()
        reader.close()
        broker.set_position(group, Origin(topic, 0, 3))
        again = Reader(broker, group, topic)
        assert len(again.read(7)) == 7
        again.close()

    def test_a_group_without_positions_says_so(self, broker: Broker, make_topic: MakeTopic, group: str) -> None:
        topic = make_topic(2)
        assert broker.lag(group, [topic]) == [Lag(topic, 0, -1, 0, 0), Lag(topic, 1, -1, 0, 0)]
        assert broker.lag(group, ["conformance-no-such-topic"]) == []

    def test_a_lost_position_is_reported_with_its_range(self, broker: Broker, make_topic: MakeTopic, group: str) -> None:
        topic = make_topic(1)
        publish(broker, numbered(topic, 0, 10))
        reader = Reader(broker, group, topic)
        reader.read(10)
        reader.ack(reader.records[:2])
        reader.close()
        self.trim(broker, topic, 6)
        again = Reader(broker, group, topic)
        found: list[PositionLost] = []

        def lost() -> bool:
            try:
                again.poll()
            except PositionLost as error:
                found.append(error)
            return bool(found)

        until(lost, "the loss is reported")
        error = found[0]
        assert (error.topic, error.partition, error.position, error.low, error.high) == (topic, 0, 2, 6, 10)
        assert "2 to 5" in str(error)
        assert again.records == [], "nothing goes on in silence"
        again.subscription.rewind(Origin(topic, 0, 6))
        assert values(again.read(4)) == [b"6", b"7", b"8", b"9"]
        again.close()

    def test_a_position_beyond_the_end_is_reported(self, broker: Broker, make_topic: MakeTopic, group: str) -> None:
        topic = make_topic(1)
        publish(broker, numbered(topic, 0, 3))
        broker.set_position(group, Origin(topic, 0, 1000))
        reader = Reader(broker, group, topic)
        with pytest.raises(PositionLost, match="beyond the log's end 3"):
            until(lambda: reader.poll() != [], "the loss is reported")
        assert reader.records == []
        reader.close()

    def test_at_most_once_never_delivers_again(self, broker: Broker, make_topic: MakeTopic, group: str) -> None:
        topic = make_topic(1)
        publish(broker, numbered(topic, 0, 10))
        reader = Reader(broker, group, topic, at_most_once=True)
        until(lambda: reader.poll(4), "the first records")
        seen = len(reader.records)
        assert broker.lag(group, [topic])[0].position == seen, "stored before they are handed out"
        reader.close()
        again = Reader(broker, group, topic, at_most_once=True)
        assert [int(value or b"") for value in values(again.read(10 - seen))] == list(range(seen, 10))
        again.close()

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
