"""The relay as a process of its own, PostgreSQL 15 and 18 to a real Kafka, killed and frozen for real."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from bothends.brokers import open_broker
from bothends.relay import Relay, RelaySettings
from bothends.relay.events import Dead, Published
from bothends.stores import Store, open_store
from bothends.stores.schema import apply
from tests.conftest import fresh_database

MAIN = """
import sys, threading
from bothends.brokers import open_broker
from bothends.relay import Relay, RelaySettings
from bothends.stores import open_store
settings = RelaySettings(lease_s=1.5, renew_s=0.3, batch_max=200, poll_idle_s=0.01)
Relay(open_store(sys.argv[1]), open_broker(sys.argv[2]), name=sys.argv[3], settings=settings).run(threading.Event())
"""
PARTITIONS = 4
INSERT = (
    "insert into bothends.outbox (id, source, type, topic, key, body, time) "
    "values (%s, 's', 't', %s, %s, %s, '2026-01-01T00:00:00Z')"
)


@pytest.fixture(scope="module", params=[
    pytest.param("postgresql_url", marks=pytest.mark.needs("postgresql"), id="15"),
    pytest.param("postgresql18_url", marks=pytest.mark.needs("postgresql18"), id="18"),
])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    with fresh_database(request.getfixturevalue(request.param)) as url:
        found = open_store(url)
        apply(found)
        yield found


class Kafka:
    """A topic of its own, and a reader that keeps what it has read."""

    def __init__(self, url: str, topic: str) -> None:
        self.url, self.topic = url, topic
        self.broker = open_broker(url)
        self.broker.create_topic(topic, PARTITIONS)
        self._reader = Consumer({
            "bootstrap.servers": url.removeprefix("kafka://"), "group.id": topic, "enable.auto.commit": False,
            "auto.offset.reset": "earliest", "fetch.wait.max.ms": 50,
        })
        self._reader.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        self._records: list[tuple[bytes, bytes]] = []

    def records(self) -> list[tuple[bytes, bytes]]:
        """(key, value) of what was read so far, in order per partition; reads on for a moment."""
        for message in self._reader.consume(20_000, timeout=0.2):
            assert message.error() is None, message.error()
            self._records.append((message.key() or b"", message.value() or b""))
        return self._records

    def close(self) -> None:
        self._reader.close()
        self.broker.delete_topic(self.topic)
        self.broker.close()

    def by_key(self) -> dict[bytes, list[int]]:
        """Bodies per key, as numbers, in the order of their first copies."""
        found: dict[bytes, dict[int, None]] = {}
        for key, value in self.records():
            found.setdefault(key, {})[int(value)] = None
        return {key: list(bodies) for key, bodies in found.items()}


@pytest.fixture
def kafka(kafka_url: str, topic_prefix: str) -> Iterator[Kafka]:
    made = Kafka(kafka_url, f"{topic_prefix}relay")
    yield made
    made.close()


@pytest.fixture
def process(store: Store, kafka: Kafka) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, "-c", MAIN, store.url, kafka.url, name]))
        return started[-1]

    yield start
    for each in started:
        each.send_signal(signal.SIGCONT)
        each.kill()
        each.wait(10)


class Writer:
    """Adds numbered events under ten keys, twenty per transaction, until it is stopped."""

    def __init__(self, store: Store, topic: str) -> None:
        self.count: dict[bytes, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(store.url, topic))
        self._thread.start()

    def _run(self, url: str, topic: str) -> None:
        with psycopg.connect(url) as connection:
            for n in itertools.count():
                key = b"k%d" % (n % 10)
                first = self.count.get(key, 0)
                rows = [(f"{os.urandom(6).hex()}-{m}", topic, key, b"%d" % m) for m in range(first, first + 20)]
                connection.cursor().executemany(INSERT, rows)
                connection.commit()
                self.count[key] = first + 20
                if self._stop.wait(0.01):
                    return

    def stop(self) -> dict[bytes, int]:
        self._stop.set()
        self._thread.join(60)
        return self.count


def until(what: Callable[[], Any], timeout_s: float = 40.0) -> Any:
    deadline = time.monotonic() + timeout_s
    paused = threading.Event()
    while not (found := what()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        paused.wait(0.05)
    return found


def complete(kafka: Kafka, count: dict[bytes, int]) -> bool:
    return sum(map(len, kafka.by_key().values())) >= sum(count.values())


def check(kafka: Kafka, count: dict[bytes, int]) -> None:
    until(lambda: complete(kafka, count))
    assert kafka.by_key() == {key: list(range(n)) for key, n in count.items()}


def owners(store: Store) -> dict[str, int]:
    with psycopg.connect(store.url, autocommit=True) as connection:
        found = connection.execute(
            "select r.name, count(*) from bothends.relay_lanes l join bothends.relays r on r.id = l.relay group by 1")
        return {str(name): int(lanes) for name, lanes in found.fetchall()}


@pytest.mark.needs("kafka")
def test_killed_relays_lose_nothing_and_keep_the_order(
    store: Store, kafka: Kafka, process: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    running = [process("a0"), process("b0")]
    until(lambda: len(owners(store)) == 2)
    writer = Writer(store, kafka.topic)
    for turn in range(1, 5):
        seen = len(kafka.records())
        until(lambda seen=seen: len(kafka.records()) > seen + 200)  # type: ignore[misc]
        which = turn % 2
        running[which].kill()
        running[which].wait(10)
        running[which] = process(f"{'ab'[which]}{turn}")
    check(kafka, writer.stop())


@pytest.mark.needs("kafka")
def test_a_frozen_relay_is_replaced_and_does_no_harm_when_it_thaws(
    store: Store, kafka: Kafka, process: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    frozen = process("frozen")
    until(lambda: owners(store).get("frozen") == 64)
    writer = Writer(store, kafka.topic)
    until(lambda: len(kafka.records()) > 500)
    frozen.send_signal(signal.SIGSTOP)
    process("heir")
    until(lambda: owners(store) == {"heir": 64})
    seen = len(kafka.records())
    until(lambda: len(kafka.records()) > seen + 500)
    frozen.send_signal(signal.SIGCONT)
    until(lambda: owners(store) == {"heir": 32, "frozen": 32})
    check(kafka, writer.stop())


@pytest.mark.needs("kafka")
def test_kafka_refuses_one_large_event_and_the_others_arrive(store: Store, kafka: Kafka, topic_prefix: str) -> None:
    seen: list[object] = []
    stop = threading.Event()
    settings = RelaySettings(poll_idle_s=0.01)
    relay = Relay(store, kafka.broker, settings=settings, observe=seen.append)
    with psycopg.connect(store.url, autocommit=True) as connection, connection.transaction():
        for n in range(60):
            body = b"7" * 1_500_000 if n == 30 else b"%d" % n
            connection.execute(INSERT, [f"large {n} {topic_prefix}", kafka.topic, b"key %d" % (n % 20), body])
    thread = threading.Thread(target=relay.run, args=(stop,))
    thread.start()
    try:
        until(lambda: any(isinstance(event, Dead) for event in seen))
        until(lambda: sum(event.records for event in seen if isinstance(event, Published)) == 58)
    finally:
        stop.set()
        thread.join(10)
    found = kafka.by_key()
    assert found == {
        b"key %d" % n: [m for m in (n, n + 20, n + 40) if m not in (30, 50)] for n in range(20)
    }
    with psycopg.connect(store.url, autocommit=True) as connection:
        held = connection.execute("select length(body), state, reason from bothends.held order by seq").fetchall()
        connection.execute("truncate bothends.held")
    assert held[0] == (1_500_000, "dead", "too_large")
    assert [row[1] for row in held[1:]] == ["behind"]


@pytest.mark.needs("kafka")
def test_an_event_above_the_topics_own_limit_is_to_blame_and_not_the_broker(
    store: Store, kafka: Kafka, topic_prefix: str
) -> None:
    """The broker's rejection ends a gapless client, which says so before it says which record it was."""
    resource = ConfigResource(ResourceType.TOPIC, kafka.topic, incremental_configs=[
        ConfigEntry("max.message.bytes", "2000", incremental_operation=AlterConfigOpType.SET)])
    admin = AdminClient({"bootstrap.servers": kafka.broker.url.removeprefix("kafka://")})
    admin.incremental_alter_configs([resource])[resource].result(10)
    seen: list[object] = []
    stop = threading.Event()
    relay = Relay(store, kafka.broker, settings=RelaySettings(poll_idle_s=0.01), observe=seen.append)
    with psycopg.connect(store.url, autocommit=True) as connection, connection.transaction():
        for n in range(20):
            body = b"7" * 5_000 if n == 10 else b"%d" % n
            connection.execute(INSERT, [f"limit {n} {topic_prefix}", kafka.topic, b"key %d" % n, body])
    thread = threading.Thread(target=relay.run, args=(stop,))
    thread.start()
    try:
        until(lambda: any(isinstance(event, Dead) for event in seen))
        until(lambda: sum(event.records for event in seen if isinstance(event, Published)) == 19)
    finally:
        stop.set()
        thread.join(10)
    assert kafka.by_key() == {b"key %d" % n: [n] for n in range(20) if n != 10}
    with psycopg.connect(store.url, autocommit=True) as connection:
        held = connection.execute("select length(body), state, reason, attempts from bothends.held").fetchall()
        connection.execute("truncate bothends.held")
    assert held == [(5_000, "dead", "too_large", 1)]


@pytest.mark.needs("kafka")
def test_a_topic_that_kafka_does_not_have_holds_only_its_own(store: Store, kafka: Kafka, topic_prefix: str) -> None:
    stop = threading.Event()
    relay = Relay(store, kafka.broker, settings=RelaySettings(poll_idle_s=0.01))
    missing = f"{topic_prefix}missing"
    with psycopg.connect(store.url, autocommit=True) as connection:
        for n in range(20):
            topic = missing if n % 2 else kafka.topic
            connection.execute(INSERT, [f"place {n} {topic_prefix}", topic, b"k", b"%d" % n])
    thread = threading.Thread(target=relay.run, args=(stop,))
    thread.start()
    try:
        until(lambda: kafka.by_key() == {b"k": list(range(0, 20, 2))})
        kafka.broker.create_topic(missing, 1)
        until(lambda: len(kafka.broker.read(missing, partition=0, offset=0, max_records=100)) == 10)
    finally:
        stop.set()
        thread.join(10)
    bodies = [r.value for r in kafka.broker.read(missing, partition=0, offset=0, max_records=100)]
    assert bodies == [b"%d" % n for n in range(1, 20, 2)]
    kafka.broker.delete_topic(missing)
