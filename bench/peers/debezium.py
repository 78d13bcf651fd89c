"""Debezium: its PostgreSQL connector with the outbox event router, in Kafka Connect."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg

from bench.peers import fetching
from bench.peers.peer import BODY, HEADERS_JSON, KEY, Peer, Site

__all__ = ["Debezium"]

CONNECT = """\
bootstrap.servers={servers}
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.storage.StringConverter
offset.storage.file.filename={folder}/offsets
offset.flush.interval.ms=5000
listeners=http://127.0.0.1:{port}
plugin.discovery=only_scan
"""
CONNECTOR = """\
name=outbox
connector.class=io.debezium.connector.postgresql.PostgresConnector
tasks.max=1
database.hostname={host}
database.port={database_port}
database.user={user}
database.password={password}
database.dbname={database}
topic.prefix=peers
plugin.name=pgoutput
slot.name={slot}
publication.name=peers
publication.autocreate.mode=disabled
snapshot.mode=no_data
table.include.list=public.debezium_outbox
tombstones.on.delete=false
poll.interval.ms=5
max.batch.size=8192
max.queue.size=32768
transforms=outbox
transforms.outbox.type=io.debezium.transforms.outbox.EventRouter
transforms.outbox.route.topic.replacement={topic}
transforms.outbox.table.fields.additional.placement=type:header:eventType,tenant:header,trace:header,schema:header
producer.override.acks=all
producer.override.enable.idempotence=true
producer.override.linger.ms=5
producer.override.batch.size=262144
"""


def slot(site: Site) -> str:
    """Slots belong to the cluster: the database's name makes it the site's own."""
    return urlsplit(site.database).path[1:]


class Debezium(Peer):
    name, version = "debezium", "3.6.1.Final"
    settings = (
        "Kafka Connect 4.1.1 standalone, outbox event router, poll.interval.ms=5, max.batch.size=8192, "
        "max.queue.size=32768, producer linger 5 ms and batches of 256 KiB, -Xmx1g")
    backlog, live, rate = 200_000, 200_000, 1_000
    order = "per key"
    durability = "acks=all, idempotent; position flushed every 5 s"
    insert = (
        "insert into debezium_outbox (id, aggregatetype, aggregateid, type, payload, tenant, trace, schema) "
        f"select gen_random_uuid(), 'orders', {KEY}, 'order.created', {BODY}, h->>'tenant', h->>'trace', h->>'schema' "
        f"from generate_series(%(first)s::bigint, %(last)s) g, (select {HEADERS_JSON}::jsonb h) own order by g"
    )

    def fetch(self) -> None:
        fetching.jars("debezium")

    def prepare(self, site: Site, connection: psycopg.Connection[Any]) -> None:
        connection.execute(
            "create table debezium_outbox (seq bigint generated always as identity primary key, id uuid not null, "
            "aggregatetype text not null, aggregateid text not null, type text not null, payload text, tenant text, "
            "trace text, schema text)")
        connection.execute("create publication peers for table debezium_outbox")
        connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [slot(site)])

    def command(self, site: Site) -> Sequence[str | Path]:
        url = urlsplit(site.database)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        connect, connector = site.folder / "connect.properties", site.folder / "connector.properties"
        connect.write_text(CONNECT.format(servers=site.servers, folder=site.folder, port=port))
        connector.write_text(CONNECTOR.format(
            host=url.hostname, database_port=url.port or 5432, user=unquote(url.username or "postgres"),
            password=unquote(url.password or ""), database=url.path[1:], slot=slot(site), topic=site.topic))
        return [
            "java", "-Xmx1g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{fetching.jars('debezium')}/libs/*",
            "org.apache.kafka.connect.cli.ConnectStandalone", connect, connector,
        ]
