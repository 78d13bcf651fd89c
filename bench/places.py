"""Places: a database and topics that nobody else uses, gone when the measurement is over."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import psycopg
from psycopg.sql import SQL, Identifier

from bothends.brokers import open_broker
from bothends.ports import Broker
from bothends.stores import open_store
from bothends.stores.schema import apply

__all__ = ["broker", "database", "service_url", "topic"]

DURABLE = ("fsync", "synchronous_commit", "full_page_writes")


def service_url(name: str) -> str:
    """``postgresql`` or ``kafka``: where the tests find it."""
    variable = f"BOTHENDS_TEST_{name.upper()}_URL"
    try:
        return os.environ[variable]
    except KeyError:
        raise SystemExit(f'{variable} is not set; first: eval "$(scripts/services up)"') from None


@contextmanager
def database() -> Iterator[str]:
    """The URL of a fresh database with our tables. Refuses a server that promises less than durability."""
    server_url = service_url("postgresql")
    name = f"bothends_bench_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server_url, autocommit=True) as server:
        for setting in DURABLE:
            value = server.execute("select current_setting(%s)", [setting]).fetchone()
            if value != ("on",):
                raise SystemExit(f"{setting} is not on: the figures would mean nothing")
        server.execute(SQL("create database {}").format(Identifier(name)))
    url = urlsplit(server_url)._replace(path=f"/{name}").geturl()
    try:
        apply(open_store(url))
        yield url
    finally:
        with psycopg.connect(server_url, autocommit=True) as server:
            # A logical slot keeps its database.
            server.execute("select pg_terminate_backend(active_pid, 5000) from pg_replication_slots "
                           "where database = %s and active_pid is not null", [name])
            server.execute("select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = %s", [name])
            server.execute(SQL("drop database {} with (force)").format(Identifier(name)))


@contextmanager
def broker() -> Iterator[Broker]:
    opened = open_broker(service_url("kafka"))
    try:
        yield opened
    finally:
        opened.close()


@contextmanager
def topic(where: Broker, partitions: int) -> Iterator[str]:
    name = f"bench-{uuid.uuid4().hex[:10]}"
    where.create_topic(name, partitions)
    try:
        yield name
    finally:
        where.delete_topic(name)
