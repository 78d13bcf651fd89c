"""Shop: the events that are measured. One sale takes one row of stock."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.sql import SQL

from bothends import Service, event
from bothends.codecs.cloudevents import pack_headers
from bothends.message import Origin, Record
from bothends.ports import Broker, Outgoing, Publisher

__all__ = [
    "BODY", "HEADERS", "Sold", "backlog", "envelope", "publish", "records", "sales", "service", "stock",
    "warmed",
]

BODY = random.Random(13).randbytes(100).hex().encode()
"""200 bytes that compress like hexadecimal digits do."""
HEADERS = [("tenant", b"acme"), ("trace", b"0123456789abcdef"), ("schema", b"order-v1")]
TYPE = "bench.sold"
SEND_MAX = 10_000


@event(TYPE, key="order", topic="bench.sales")
@dataclass(frozen=True)
class Sold:
    order: int
    sku: int
    at: float = 0.0
    """When it was sent (``time.monotonic``), where that is measured."""


def service(session_factory: Any = None) -> Service:
    return Service("bench", session_factory=session_factory)


def stock(connection: psycopg.Connection[Any], rows: int) -> None:
    connection.execute("create table stock (sku int primary key, amount bigint not null)")
    connection.execute("insert into stock select g, 0 from generate_series(0, %s) g", [rows - 1])
    connection.commit()


def envelope(id: str) -> list[tuple[str, bytes]]:
    return [
        ("ce_specversion", b"1.0"), ("ce_id", id.encode()), ("ce_source", b"bench"), ("ce_type", TYPE.encode()),
        ("ce_dataversion", b"1"), ("content-type", b"application/json"),
    ]


def sales(count: int, rows: int, seed: int) -> list[tuple[int, int]]:
    """(order, sku): each order a key of its own, each sku hit by many."""
    order = random.Random(seed)
    first = seed * 10_000_000
    return [(first + n, order.randrange(rows)) for n in range(count)]


def body(order: int, sku: int, at: float = 0.0) -> bytes:
    return b'{"order":%d,"sku":%d,"at":%r}' % (order, sku, at) if at else b'{"order":%d,"sku":%d}' % (order, sku)


def records(sold: Iterable[tuple[int, int]], topic: str = "bench.sales") -> list[Record]:
    """As a subscription delivers them."""
    return [
        Record(Origin(topic, 0, n), b"%d" % order, body(order, sku), envelope(str(uuid.uuid4())), 0)
        for n, (order, sku) in enumerate(sold)
    ]


def publish(broker: Broker, topic: str, sold: Sequence[tuple[int, int]]) -> None:
    """Returns when the broker has confirmed all."""
    publisher = broker.publisher("bench")
    for number, at in enumerate(range(0, len(sold), SEND_MAX), 1):
        publisher.send(number, [
            Outgoing(topic, b"%d" % order, body(order, sku), envelope(str(uuid.uuid4())))
            for order, sku in sold[at:at + SEND_MAX]
        ])
    while publisher.pending():
        for report in publisher.poll(1):
            if report.failures:
                raise SystemExit(f"the broker refused records: {next(iter(report.failures.values()))}")
    publisher.close(1)


def warmed(broker: Broker, name: str, first: Outgoing) -> Publisher:
    """A publisher that has connected: ``first`` is confirmed."""
    publisher = broker.publisher(name)
    publisher.send(0, [first])
    while publisher.pending():
        publisher.poll(1)
    return publisher


def backlog(connection: psycopg.Connection[Any], topic: str, events: int, *, keys: int = 1000, first: int = 0) -> None:
    """So many committed events wait, by one statement: ``first`` numbers ids and keys."""
    connection.execute(
        SQL("insert into bothends.outbox (id, source, type, topic, key, body, content_type, time, headers) "
            "select '0193a5c0-7b1e-7c3e-9d4f-' || lpad(to_hex(g), 12, '0'), 'orders', 'order.created', {topic}, "
            "convert_to('customer-' || g %% {keys}, 'UTF8'), %(body)s, 'application/json', '2026-01-01T00:00:00.000000Z', "
            "%(headers)s from generate_series(%(first)s::bigint, %(last)s) g").format(topic=topic, keys=keys),
        {"body": BODY, "headers": pack_headers(HEADERS), "first": first, "last": first + events - 1},
    )

