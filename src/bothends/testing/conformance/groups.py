"""What every broker must do for groups of consumers: see ``brokers.py``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from bothends.errors import PositionLost
from bothends.message import Origin
from bothends.ports import Broker, Lag, StartAt
from bothends.testing.conformance.members import Reader, publish, until
from bothends.testing.conformance.topics import LogSuite, MakeTopic, log_of, numbered, values

__all__ = ["GroupConformance"]


class GroupConformance(LogSuite):
    """Sharing, positions, pauses, and where a group begins."""

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
