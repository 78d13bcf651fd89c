"""Namastack Outbox: the JDBC starter in a Spring Boot application; its handler sends to Kafka and waits for the answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg

from bench.peers import fetching
from bench.peers.peer import BODY, HEADERS_JSON, KEY, Peer, Site

__all__ = ["Namastack", "murmur3", "partition"]

SOURCE = "relay/Relay.java"
HANDLER = "relay.Relay#handle(java.lang.Object,io.namastack.outbox.handler.OutboxRecordMetadata)"
THREADS = 16
_PARTITIONS = 256
_KEYS = 1000


def murmur3(data: bytes) -> int:
    """MurmurHash3, 32 bits for x86, seed 0."""
    mask, value, whole = 0xFFFFFFFF, 0, len(data) // 4 * 4

    def mixed(block: int) -> int:
        block = block * 0xCC9E2D51 & mask
        return ((block << 15 | block >> 17) & mask) * 0x1B873593 & mask

    for at in range(0, whole, 4):
        value ^= mixed(int.from_bytes(data[at:at + 4], "little"))
        value = ((value << 13 | value >> 19) & mask) * 5 + 0xE6546B64 & mask
    if len(data) > whole:
        value ^= mixed(int.from_bytes(data[whole:], "little"))
    value ^= len(data)
    value = (value ^ value >> 16) * 0x85EBCA6B & mask
    value = (value ^ value >> 13) * 0xC2B2AE35 & mask
    return value ^ value >> 16


def partition(key: str) -> int:
    """As the product's PartitionHasher puts it, which our statement stands in for."""
    return (murmur3(key.encode()) & 0x7FFFFFFF) % _PARTITIONS


class Namastack(Peer):
    name, version = "namastack", "1.6.0"
    settings = f"Spring Boot 4.0.6, batch-size 1000, adaptive polling 5 to 25 ms, {THREADS} threads, completed records deleted"
    backlog, rate = 20_000, 1_000
    order = "per key"
    insert = (
        "insert into outbox_record (id, status, record_key, record_type, payload, context, created_at, failure_count, "
        "next_retry_at, partition_no, handler_id) "
        f"select gen_random_uuid()::text, 'NEW', {KEY}, 'java.lang.String', to_json({BODY})::text, {HEADERS_JSON}, "
        "timestamptz '2026-01-01 00:00:00Z' + g * interval '1 microsecond', 0, timestamptz '2026-01-01 00:00:00Z', "
        f"parts.partition_no, parts.handler_id from generate_series(%(first)s::bigint, %(last)s) g "
        f"join parts on parts.record_key = {KEY} order by g"
    )

    def fetch(self) -> None:
        fetching.jars("namastack", SOURCE)

    def prepare(self, site: Site, connection: psycopg.Connection[Any]) -> None:
        libs = fetching.jars("namastack", SOURCE) / "libs"
        jar = next(libs.glob("namastack-outbox-jdbc-*.jar"))
        connection.execute(fetching.from_jar(jar, "schema/postgres/outbox-tables.sql"))
        connection.execute("create table parts (record_key text primary key, partition_no int, handler_id text)")
        with connection.cursor() as cursor:
            keys = [f"customer-{n}" for n in range(_KEYS)]
            cursor.executemany(
                "insert into parts values (%s, %s, %s)", [(key, partition(key), HANDLER) for key in keys])

    def command(self, site: Site) -> Sequence[str | Path]:
        url, folder = urlsplit(site.database), fetching.jars("namastack", SOURCE)
        settings = {
            "spring.datasource.url": f"jdbc:postgresql://{url.hostname}:{url.port or 5432}{url.path}",
            "spring.datasource.username": unquote(url.username or "postgres"),
            "spring.datasource.password": unquote(url.password or ""),
            "spring.datasource.hikari.maximum-pool-size": THREADS + 4,
            "spring.main.web-application-type": "none", "logging.level.root": "warn",
            "namastack.outbox.polling.batch-size": 1000, "namastack.outbox.polling.trigger": "adaptive",
            "namastack.outbox.polling.adaptive.min-interval": "5ms", "namastack.outbox.polling.adaptive.max-interval": "25ms",
            "namastack.outbox.processing.executor-core-pool-size": THREADS,
            "namastack.outbox.processing.executor-max-pool-size": THREADS,
            "namastack.outbox.processing.delete-completed-records": True,
            "relay.servers": site.servers, "relay.topic": site.topic,
        }
        return ["java", "-Xmx1g", "-cp", f"{folder}/classes:{folder}/libs/*", "relay.Relay",
                *(f"--{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in settings.items())]
