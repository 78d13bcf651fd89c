"""Ours: one relay process on its defaults, as `bothends relay` runs it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, LiteralString

import psycopg

from bench.peers.peer import BODY, KEY, Peer, Site
from bench.shop import HEADERS
from bothends.codecs.cloudevents import pack_headers

__all__ = ["SOURCES", "Ours"]

SOURCES = ("poll",)
"""Where its relay reads; each is measured as a peer of its own, ``ours-SOURCE``."""


class Ours(Peer):
    version = version("bothends")
    backlog, live, rate = 200_000, 200_000, 1_000
    order = "per key"

    def __init__(self, source: str) -> None:
        self.source = source
        self.name = f"ours-{source}"
        self.settings = f"source={source}, else defaults"
        self.insert: LiteralString = (
            "insert into bothends.outbox (id, source, type, topic, key, body, content_type, time, headers) "
            "select '0193a5c0-7b1e-7c3e-9d4f-' || lpad(to_hex(g), 12, '0'), 'orders', 'order.created', place.topic, "
            f"convert_to({KEY}, 'UTF8'), convert_to({BODY}, 'UTF8'), 'application/json', '2026-01-01T00:00:00.000000Z', "
            "place.headers from generate_series(%(first)s::bigint, %(last)s) g, place order by g"
        )

    def prepare(self, site: Site, connection: psycopg.Connection[Any]) -> None:
        connection.execute("create table place (topic text, headers bytea)")
        connection.execute("insert into place values (%s, %s)", [site.topic, pack_headers(HEADERS)])

    def command(self, site: Site) -> Sequence[str | Path]:
        task = {"role": "relay", "database": site.database, "broker": f"kafka://{site.servers}"}
        return [sys.executable, "-m", "bench.child", json.dumps(task if self.source == "poll" else task | {
            "source": self.source})]
