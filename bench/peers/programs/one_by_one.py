"""The relay that anybody would write first: one row, one record, one transaction."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import psycopg
from confluent_kafka import Producer

POLL_S = 0.005


def main(database: str, servers: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": servers, "acks": "all", "enable.idempotence": True, "linger.ms": 0})
    with psycopg.connect(database) as connection:
        while True:
            row = connection.execute(
                "select id, key, body, headers from outbox order by id limit 1 for update skip locked").fetchone()
            if row is None:
                connection.commit()
                time.sleep(POLL_S)
                continue
            publish(producer, topic, *row[1:])
            connection.execute("delete from outbox where id = %s", [row[0]])
            connection.commit()


def publish(producer: Producer, topic: str, key: str, body: str, headers: dict[str, str]) -> None:
    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            sys.exit(f"not delivered: {error}")

    producer.produce(
        topic, body.encode(), key, headers=[(name, value.encode()) for name, value in headers.items()], on_delivery=delivered)
    while len(producer):
        producer.poll(1)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
