"""walbox: logical replication; its handler publishes a transaction's events and then saves the checkpoint."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import psycopg

from bench.peers.peer import BODY, HEADERS_JSON, KEY, Site
from bench.peers.pypi import FromPyPI

__all__ = ["Walbox"]


class Walbox(FromPyPI):
    name = package = "walbox"
    settings = "psycopg with a pool, aiokafka, a transaction's records sent together and awaited, then its checkpoint"
    backlog, live, rate = 50_000, 50_000, 300
    order = "per key"
    insert = (
        "insert into outbox (entity_type, entity_id, event_type, payload, headers) "
        f"select 'order', {KEY}, 'created', ({BODY})::jsonb, {HEADERS_JSON}::jsonb "
        "from generate_series(%(first)s::bigint, %(last)s) g order by g"
    )

    def prepare(self, site: Site, connection: psycopg.Connection[Any]) -> None:
        connection.execute(
            "create table outbox (id bigserial primary key, entity_type text, entity_id text, event_type text, "
            "payload jsonb, headers jsonb, created_at timestamptz default now())")
        connection.execute("create publication peers for table outbox")
        connection.execute(
            "select pg_create_logical_replication_slot(%s, 'pgoutput')", [urlsplit(site.database).path[1:]])
