"""The relay, polling, in one process, against the same Kafka client publishing the same bytes from memory [S1].

    python -m bench.relay [EVENTS] [ROUNDS]      one JSON line; rounds alternate, so that noise hits both

Bodies of 200 bytes, 1,000 keys, three headers of the event's own beside CloudEvents'; acks=all, idempotent, 8 partitions;
PostgreSQL with fsync and synchronous_commit.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import sys
import threading
import time
import uuid
from typing import Any

import psycopg
from confluent_kafka import Producer

from bothends.brokers import open_broker
from bothends.brokers.kafka.client import PRODUCER, PRODUCER_DEFAULTS
from bothends.codecs.cloudevents import pack_headers
from bothends.relay import Relay
from bothends.relay.events import Published
from bothends.relay.records import outgoing
from bothends.stores import open_store
from bothends.stores.schema import apply
from tests.conftest import fresh_database

BODY = os.urandom(100).hex().encode()
HEADERS = [("tenant", b"acme"), ("trace", b"0123456789abcdef"), ("schema", b"order-v1")]
ROUNDS_EACH = 3


def fill(connection: psycopg.Connection[Any], topic: str, events: int) -> None:
    copy = "copy bothends.outbox (id, source, type, topic, key, body, content_type, time, headers) from stdin"
    headers = pack_headers(HEADERS)
    with connection.cursor().copy(copy) as rows:
        for n in range(events):
            rows.write_row((
                f"0193a5c0-7b1e-7c3e-9d4f-{n:012x}", "orders", "order.created", topic, f"customer-{n % 1000}".encode(),
                BODY, "application/json", "2026-01-01T00:00:00.000000Z", headers,
            ))
    connection.execute("select count(*) from bothends.outbox")


def raw(kafka: str, topic: str, events: int) -> tuple[float, float]:
    """Events per second of the bare client: the same records, made before the clock starts; CPU seconds it took."""
    rows = [
        (0, n, 0, 0, b"0193a5c0-7b1e-7c3e-9d4f-%012x" % n, "orders", "order.created", topic,
         f"customer-{n % 1000}".encode(), BODY, "application/json", b"2026-01-01T00:00:00.000000Z", 1, None,
         pack_headers(HEADERS))
        for n in range(events)
    ]
    records = outgoing(rows)
    producer = Producer({
        "bootstrap.servers": kafka.removeprefix("kafka://"), **PRODUCER_DEFAULTS, **PRODUCER,
        "queue.buffering.max.messages": 1_000_000, "queue.buffering.max.kbytes": 1_048_576,
    })
    failed: list[Any] = []

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            failed.append(error)

    gc.collect()
    gc.freeze()
    began, cpu = time.perf_counter(), time.process_time()
    for n, (name, key, value, headers) in enumerate(records):
        producer.produce(name, value, key, on_delivery=delivered, headers=headers)
        if n % 5000 == 0:
            producer.poll(0)
    producer.flush()
    took, spent = time.perf_counter() - began, time.process_time() - cpu
    gc.unfreeze()
    if failed:
        raise SystemExit(f"the bare client failed: {failed[0]}")
    return events / took, spent


def relayed(postgresql: str, kafka: str, topic: str, events: int) -> tuple[float, float]:
    """Events per second of the relay draining a backlog, until all are recorded as published; CPU seconds it took."""
    with fresh_database(postgresql) as url:
        store = open_store(url)
        apply(store)
        with psycopg.connect(url, autocommit=True) as connection:
            fill(connection, topic, events)
        left = events
        done, stop = threading.Event(), threading.Event()

        def observe(event: object) -> None:
            nonlocal left
            if isinstance(event, Published):
                left -= event.records
                if left <= 0:
                    done.set()

        broker = open_broker(kafka)
        relay = Relay(store, broker, observe=observe)
        gc.collect()
        gc.freeze()
        began, cpu = time.perf_counter(), time.process_time()
        thread = threading.Thread(target=relay.run, args=(stop,))
        thread.start()
        if not done.wait(600):
            raise SystemExit(f"the relay has {left} of {events} events left after 600 s")
        took, spent = time.perf_counter() - began, time.process_time() - cpu
        stop.set()
        thread.join()
        gc.unfreeze()
        broker.close()
        return events / took, spent


def main() -> None:
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS_EACH
    postgresql, kafka = os.environ["BOTHENDS_TEST_POSTGRESQL_URL"], os.environ["BOTHENDS_TEST_KAFKA_URL"]
    broker = open_broker(kafka)
    topic = f"bench-{uuid.uuid4().hex[:10]}"
    broker.create_topic(topic, 8)
    bare: list[tuple[float, float]] = []
    ours: list[tuple[float, float]] = []
    try:
        raw(kafka, topic, 20_000)
        for _ in range(rounds):
            bare.append(raw(kafka, topic, events))
            ours.append(relayed(postgresql, kafka, topic, events))
    finally:
        broker.delete_topic(topic)
    pairs = list(zip(ours, bare, strict=True))
    print(json.dumps({
        "bench": "relay", "events": events, "rounds": rounds,
        "client_per_s": round(statistics.median(rate for rate, _ in bare)),
        "relay_per_s": round(statistics.median(rate for rate, _ in ours)),
        "ratio": round(statistics.median(o / b for (o, _), (b, _) in pairs), 3),
        "client_cpu_us": round(statistics.median(cpu for _, cpu in bare) / events * 1e6, 2),
        "relay_cpu_us": round(statistics.median(cpu for _, cpu in ours) / events * 1e6, 2),
        "client_all": [round(rate) for rate, _ in bare], "relay_all": [round(rate) for rate, _ in ours],
    }))


if __name__ == "__main__":
    main()
