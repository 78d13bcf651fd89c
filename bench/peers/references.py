"""References: the bare client, which is the limit, and the relay that anybody would write first."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psycopg

from bench.peers.peer import BODY, HEADERS_JSON, KEY, PROGRAMS, Peer, Site

__all__ = ["OneByOne", "Raw"]


class Raw(Peer):
    """No database: records made before the clock starts. No product can be faster with this client."""

    name, version, settings = "raw", version("confluent-kafka"), "confluent-kafka alone, records from memory"
    backlog = 400_000
    order, durability = "per key", "acks=all, idempotent; nothing recorded"

    def prepare(self, site: Site, connection: psycopg.Connection[Any]) -> None:
        pass

    def command(self, site: Site) -> Sequence[str | Path]:
        task = {"servers": site.servers, "topic": site.topic, "events": site.events}
        return [sys.executable, "-m", "bench.peers.programs.raw", json.dumps(task)]


class OneByOne(Peer):
    """`select ... limit 1 for update skip locked`, produce, wait, delete, commit."""

    name, version = "one-by-one", version("psycopg")
    settings = "psycopg and confluent-kafka, one transaction per message, linger 0, poll 5 ms"
    backlog, rate = 8_000, 300
    order = "per key (one process)"
    insert = (
        "insert into outbox (key, body, headers) "
        f"select {KEY}, {BODY}, {HEADERS_JSON}::jsonb from generate_series(%(first)s::bigint, %(last)s) g order by g"
    )

    def prepare(self, site: Site, connection: psycopg.Connection[Any]) -> None:
        connection.execute(
            "create table outbox (id bigint generated always as identity primary key, key text not null, "
            "body text not null, headers jsonb not null)")

    def command(self, site: Site) -> Sequence[str | Path]:
        task = {"servers": site.servers, "topic": site.topic, "database": site.database}
        return [sys.executable, PROGRAMS / "one_by_one.py", json.dumps(task)]
