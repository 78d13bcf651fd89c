"""Ours: one relay process on its defaults, as `bothends relay` runs it."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, LiteralString

import psycopg

from bench.children import ROOT
from bench.peers.peer import BODY, KEY, TRANSACTION, Peer, Site, Unavailable, body
from bench.peers.processes import group
from bench.shop import HEADERS
from bothends.codecs.cloudevents import pack_headers
from bothends.drafts import Draft
from bothends.stores.postgresql.messages import pack, prefix

__all__ = ["SOURCES", "Ours"]

SOURCES = ("poll", "wal", "message")
"""Where its relay reads. Each is measured as a peer of its own, ``ours-SOURCE``."""
_SLOT_S, _LOOK_S = 60.0, 0.05
_TIME = "2026-01-01T00:00:00.000000Z"


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
            f"convert_to({KEY}, 'UTF8'), convert_to({BODY}, 'UTF8'), 'application/json', '{_TIME}', "
            "place.headers from generate_series(%(first)s::bigint, %(last)s) g, place order by g"
        )

    def prepare(self, site: Site, connection: psycopg.Connection[Any]) -> None:
        connection.execute("create table place (topic text, headers bytea)")
        connection.execute("insert into place values (%s, %s)", [site.topic, pack_headers(HEADERS)])
        connection.execute("create table contents (number bigint primary key, content bytea)")
        self._topic = site.topic
        if self.source != "poll":
            self._make_slot(site, connection)

    def _make_slot(self, site: Site, connection: psycopg.Connection[Any]) -> None:
        """The log is read from where a slot begins: the relay makes it when it first runs."""
        deadline, pause = time.monotonic() + _SLOT_S, threading.Event()
        with group(self.command(site), site.folder, self.environment(), ROOT) as running:
            while not connection.execute(
                "select 1 from bothends.relay_log where position is not null"  # else the next one polls first
            ).fetchall():
                running.check()
                if time.monotonic() > deadline:
                    raise Unavailable(f"its relay made no replication slot within {_SLOT_S:.0f} s")
                pause.wait(_LOOK_S)

    def ready(self, connection: psycopg.Connection[Any], first: int, last: int) -> None:
        """Messages are packed before, as ``add_many`` packs those of one transaction: rows are made by the server too, as
        those of every other peer."""
        if self.source == "message":
            with connection.cursor().copy("copy contents from stdin (format binary)") as copying:
                copying.set_types(["int8", "bytea"])
                for n in range(first, last + 1, TRANSACTION):
                    copying.write_row((n, self._message(n, min(n + TRANSACTION - 1, last))))
            connection.execute("analyze contents")

    def write(self, connection: psycopg.Connection[Any], first: int, last: int) -> None:
        emit = f"select pg_logical_emit_message(true, '{prefix('bothends')}', "
        if self.source != "message":
            super().write(connection, first, last)
        elif first == last:
            connection.execute(f"{emit}%s::bytea)".encode(), [self._message(first, last)])
        else:
            connection.execute(f"{emit}content) from contents where number = %s".encode(), [first])

    def _message(self, first: int, last: int) -> bytes:
        """The events that ``insert`` would write."""
        return pack([
            Draft(
                f"0193a5c0-7b1e-7c3e-9d4f-{number:012x}", "orders", "order.created", self._topic,
                f"customer-{number % 1000}".encode(), body(number), "application/json", _TIME, 1, {}, HEADERS, None,
                None, False, False)
            for number in range(first, last + 1)
        ])

    def command(self, site: Site) -> Sequence[str | Path]:
        return [sys.executable, "-m", "bench.child", json.dumps({
            "role": "relay", "database": site.database, "broker": f"kafka://{site.servers}", "source": self.source,
        })]
