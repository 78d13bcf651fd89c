"""What only the memory broker does: one process, no lease, a bounded number of records."""

import threading

import pytest

from bothends.brokers.memory import MemoryBroker
from bothends.errors import Blame, PublishError
from bothends.ports import Outgoing
from bothends.testing.conformance.members import Reader, publish, reports_of, until


@pytest.fixture
def broker(topic_prefix: str) -> MemoryBroker:
    broker = MemoryBroker(f"memory://{topic_prefix}")
    broker.create_topic("t", 2)
    return broker


def numbered(start: int, stop: int) -> list[Outgoing]:
    return [Outgoing("t", b"k%d" % (n % 20), b"%d" % n, []) for n in range(start, stop)]


def test_it_says_that_it_is_of_one_process(broker: MemoryBroker) -> None:
    assert broker.features.cross_process is False
    broker.ping(0.0)


def test_the_log_outlives_its_brokers(broker: MemoryBroker) -> None:
    publish(broker, numbered(0, 10))
    broker.close()
    again = MemoryBroker(broker.url)
    assert sum(lag.high for lag in again.lag("g", ["t"])) == 10


def test_a_full_log_is_an_outage_until_it_is_trimmed(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bothends.brokers.memory.RECORDS_MAX", 30)
    publish(broker, numbered(0, 25))
    publisher = broker.publisher("p")
    publisher.send(0, numbered(25, 35))
    assert publisher.poll(0) == []
    assert publisher.pending() == 10
    for lag in broker.lag("g", ["t"]):
        broker.trim("t", partition=lag.partition, before=lag.high)
    assert reports_of(publisher, 1) == {0: {}}
    assert sum(lag.high - lag.low for lag in broker.lag("g", ["t"])) == 10
    broker.trim("t", partition=0, before=10**9)
    assert broker.lag("g", ["t"])[0].low == broker.lag("g", ["t"])[0].high


def test_deleting_a_topic_makes_room(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bothends.brokers.memory.RECORDS_MAX", 30)
    publish(broker, numbered(0, 30))
    broker.delete_topic("t")
    broker.create_topic("t", 1)
    publish(broker, numbered(0, 30))


def test_a_waiting_member_is_woken(broker: MemoryBroker) -> None:
    reader = Reader(broker, "g", "t")
    reader.ready(2)
    sender = threading.Timer(0.05, publish, [broker, numbered(0, 1)])
    sender.start()
    assert len(reader.poll(10, 10.0)) == 1
    sender.join()
    reader.close()


def test_a_name_that_is_taken_over_fences_the_old_member(broker: MemoryBroker) -> None:
    publish(broker, numbered(0, 10))
    first = Reader(broker, "g", "t", member="one")
    first.read(10)
    second = Reader(broker, "g", "t", member="one")
    second.read(10)
    first.ack()
    with pytest.raises(PublishError) as refusal:
        first.poll()
    assert (refusal.value.blame, refusal.value.reason) == (Blame.BROKER, "fenced")
    first.close()
    assert sum(lag.position for lag in broker.lag("g", ["t"])) == 0
    second.ack()
    second.close()
    assert sum(lag.position for lag in broker.lag("g", ["t"])) == 10


def test_threads_share_a_group(broker: MemoryBroker) -> None:
    readers = [Reader(broker, "g", "t") for _ in range(2)]
    enough = threading.Event()

    def work(reader: Reader) -> None:
        while not enough.is_set():
            reader.poll(10, 0.01)
        reader.ack()
        reader.close()

    threads = [threading.Thread(target=work, args=[reader]) for reader in readers]
    for thread in threads:
        thread.start()
    for batch in range(20):
        publish(broker, numbered(batch * 10, batch * 10 + 10))
    until(lambda: len({r.origin for reader in readers for r in reader.records}) == 200, "all arrive")
    enough.set()
    for thread in threads:
        thread.join()
    assert sum(lag.position for lag in broker.lag("g", ["t"])) == 200
