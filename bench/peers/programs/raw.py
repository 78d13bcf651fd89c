"""The bare client: publishes so many records from memory, and waits to be ended."""

from __future__ import annotations

import gc
import json
import sys
from typing import Any

from confluent_kafka import Producer

from bench.peers.peer import body
from bench.shop import HEADERS
from bothends.brokers.kafka.client import PRODUCER, PRODUCER_DEFAULTS


def main(servers: str, topic: str, events: int) -> None:
    records = [(body(n), b"customer-%d" % (n % 1000)) for n in range(events)]
    headers = [
        *HEADERS, ("ce_specversion", b"1.0"), ("ce_id", b"0193a5c0-7b1e-7c3e-9d4f-000000000000"), ("ce_source", b"orders"),
        ("ce_type", b"order.created"), ("ce_time", b"2026-01-01T00:00:00.000000Z"), ("content-type", b"application/json"),
    ]
    producer: Any = Producer({
        "bootstrap.servers": servers, **PRODUCER_DEFAULTS, **PRODUCER, "queue.buffering.max.messages": 1_000_000,
        "queue.buffering.max.kbytes": 1_048_576,
    })
    gc.freeze()

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            sys.exit(f"the bare client failed: {error}")

    for n, (value, key) in enumerate(records):
        producer.produce(topic, value, key, on_delivery=delivered, headers=headers)
        if n % 5000 == 0:
            producer.poll(0)
    producer.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
