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
from bothends.relay import Relay, RelaySettings
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


def raw(kafka: str, topic: str, events: int) -> float:
    """Events per second of the bare client: the same records, made before the clock starts."""
    rows = [
        (0, n, 0, 0, f"0193a5c0-7b1e-7c3e-9d4f-{n:012x}", "orders", "order.created", topic,
         f"customer-{n % 1000}".encode(), BODY, "application/json", "2026-01-01T00:00:00.000000Z", 1, None,
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
    began = time.perf_counter()
    for n, (name, key, value, headers) in enumerate(records):
        producer.produce(name, value, key, on_delivery=delivered, headers=headers)
        if n % 5000 == 0:
            producer.poll(0)
    producer.flush()
    took = time.perf_counter() - began
    gc.unfreeze()
    if failed:
        raise SystemExit(f"the bare client failed: {failed[0]}")
    return events / took


def relayed(postgresql: str, kafka: str, topic: str, events: int) -> tuple[float, int]:
    """Events per second of the relay draining a backlog, until all are recorded as published; statements it took."""
    with fresh_database(postgresql) as url:
        store = open_store(url)
        apply(store)
        with psycopg.connect(url, autocommit=True) as connection:
            fill(connection, topic, events)
        left = events
        done = threading.Event()

        def observe(event: object) -> None:
            nonlocal left
            if isinstance(event, Published):
                left -= event.records
                if left <= 0:
                    done.set()
                    stop.set()

        broker = open_broker(kafka)
        relay = Relay(store, broker, settings=RelaySettings(batch_max=int(os.environ.get("BENCH_BATCH", "2000"))), observe=observe)
        stop = threading.Event()
        gc.collect()
        gc.freeze()
        began = time.perf_counter()
        if os.environ.get("BENCH_PROFILE"):
            import cProfile
            profile = cProfile.Profile()
            profile.runcall(relay.run, stop)
            profile.print_stats("tottime")
            took = time.perf_counter() - began
        else:
            thread = threading.Thread(target=relay.run, args=(stop,))
            thread.start()
            done.wait(600)
            took = time.perf_counter() - began
            thread.join()
        gc.unfreeze()
        broker.close()
        return events / took, left


def main() -> None:
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS_EACH
    postgresql, kafka = os.environ["BOTHENDS_TEST_POSTGRESQL_URL"], os.environ["BOTHENDS_TEST_KAFKA_URL"]
    broker = open_broker(kafka)
    topic = f"bench-{uuid.uuid4().hex[:10]}"
    broker.create_topic(topic, 8)
    bare, ours = [], []
    try:
        raw(kafka, topic, 20_000)
        for _ in range(rounds):
            bare.append(raw(kafka, topic, events))
            ours.append(relayed(postgresql, kafka, topic, events)[0])
    finally:
        broker.delete_topic(topic)
    print(json.dumps({
        "bench": "relay", "events": events, "rounds": rounds, "client_per_s": round(statistics.median(bare)),
        "relay_per_s": round(statistics.median(ours)),
        "ratio": round(statistics.median(o / b for o, b in zip(ours, bare, strict=True)), 3),
        "client_all": [round(x) for x in bare], "relay_all": [round(x) for x in ours],
    }))


if __name__ == "__main__":
    main()
