"""The relay, polling, in one process, against the same Kafka client publishing the same bytes from memory [S1]."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

import psycopg
from confluent_kafka import Producer

from bench import places
from bench.figures import figure, goal, ratios, report
from bench.shop import BODY, HEADERS, backlog
from bothends.brokers import open_broker
from bothends.brokers.kafka.client import PRODUCER, PRODUCER_DEFAULTS, ClientLog
from bothends.codecs.cloudevents import pack_headers
from bothends.operating.child import settle_memory
from bothends.relay import Relay
from bothends.relay.events import Published
from bothends.relay.records import outgoing
from bothends.stores import open_store

ROUNDS = 5
EVENTS, EVENTS_QUICK = 200_000, 5_000
PARTITIONS = 8
WAIT_S = 600


def measure(rounds: int | None = None, quick: bool = False) -> dict[str, Any]:
    events = EVENTS_QUICK if quick else EVENTS
    settle_memory()
    client: list[tuple[float, float]] = []
    relay: list[tuple[float, float]] = []
    with places.broker() as broker, places.topic(broker, PARTITIONS) as topic:
        from_memory(topic, min(events, 20_000))
        for _ in range(rounds or (1 if quick else ROUNDS)):
            client.append(from_memory(topic, events))
            relay.append(relayed(topic, events))
    rates = [rate for rate, _ in relay], [rate for rate, _ in client]
    ratio = figure(ratios(*rates), "of the client's rate", 3)
    return report(
        "Relay: PostgreSQL to Kafka",
        """A backlog is drained by one relay, in one process, until all is recorded as published; the clock includes
        registering, taking lanes and the first metadata. The reference is confluent-kafka's producer in the same process
        with the same settings (acks=all, idempotent), the same records with the same headers and a delivery callback for
        each, made before the clock starts. Rounds alternate.""",
        """Both share the two processors with the broker and, the relay only, with PostgreSQL: on a machine of its own the
        relay has more. Bodies are hexadecimal; compression is off.""",
        setting={"events": events, "body_bytes": len(BODY), "own_headers": len(HEADERS), "keys": 1000,
                 "partitions": PARTITIONS, "rounds": len(relay)},
        figures={
            "client_per_s": figure(rates[1], "events/s"), "relay_per_s": figure(rates[0], "events/s"), "ratio": ratio,
            "client_cpu_us": figure([cpu / events * 1e6 for _, cpu in client], "µs of CPU per event", 2),
            "relay_cpu_us": figure([cpu / events * 1e6 for _, cpu in relay], "µs of CPU per event", 2),
        },
        goals=[goal("S1", "relay against the bare client", ratio, "at least", 0.60)],
    )


def from_memory(topic: str, events: int) -> tuple[float, float]:
    """Events per second of the bare client, and the CPU seconds of this process."""
    own = pack_headers(HEADERS)
    records = outgoing([
        (0, n, 0, b"0193a5c0-7b1e-7c3e-9d4f-%012x" % n, "orders", "order.created", topic, b"customer-%d" % (n % 1000),
         BODY, "application/json", b"2026-01-01T00:00:00.000000Z", 1, None, own)
        for n in range(events)
    ])
    producer: Any = Producer({
        "bootstrap.servers": places.service_url("kafka").removeprefix("kafka://"), **PRODUCER_DEFAULTS, **PRODUCER,
        "queue.buffering.max.messages": 1_000_000, "queue.buffering.max.kbytes": 1_048_576, "logger": ClientLog(),
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


def relayed(topic: str, events: int) -> tuple[float, float]:
    """The same for the relay."""
    with places.database() as url:
        with psycopg.connect(url, autocommit=True) as connection:
            backlog(connection, topic, events)
            connection.execute("select count(*) from bothends.outbox")  # hint bits, as any reader before would have set
        left = events
        done, stop = threading.Event(), threading.Event()

        def observe(event: object) -> None:
            nonlocal left
            if isinstance(event, Published):
                left -= event.records
                if left <= 0:
                    done.set()

        broker = open_broker(places.service_url("kafka"))
        relay = Relay(open_store(url), broker, observe=observe)
        gc.collect()
        gc.freeze()
        began, cpu = time.perf_counter(), time.process_time()
        thread = threading.Thread(target=relay.run, args=(stop,))
        thread.start()
        finished = done.wait(WAIT_S)
        took, spent = time.perf_counter() - began, time.process_time() - cpu
        stop.set()
        thread.join()
        gc.unfreeze()
        broker.close()
        if not finished:
            raise SystemExit(f"the relay has {left} of {events} events left after {WAIT_S} s")
        return events / took, spent
