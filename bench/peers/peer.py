"""Peer: what one product needs to be measured: its tables, its statement, its relay's command."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, LiteralString

import psycopg

__all__ = [
    "BODY", "BODY_BYTES", "HEADERS_JSON", "KEY", "NUMBER", "PROGRAMS", "TRANSACTION", "Peer", "Site", "Unavailable", "body",
]

PROGRAMS = Path(__file__).parent / "programs"
BODY_BYTES = 200
TRANSACTION = 100
"""Events that are written together, where they are written flat out."""
NUMBER = rb'n\\*" ?: ?\\*"(\d{10})'
"""Finds an event's number in what the peer made of its body: some wrap it, some write it as jsonb does."""
_NOTE = random.Random(13).randbytes(86).hex()
BODY = "'{\"n\":\"' || lpad(g::text, 10, '0') || '\",\"note\":\"" + _NOTE + "\"}'"
"""The body of event ``g``, as an SQL expression: a JSON object, so that peers which take nothing else are served too."""
KEY = "'customer-' || mod(g, 1000)"
HEADERS_JSON = '\'{"tenant":"acme","trace":"0123456789abcdef","schema":"order-v1"}\''


def body(number: int) -> bytes:
    """What ``BODY`` is in SQL."""
    return b'{"n":"%010d","note":"%s"}' % (number, _NOTE.encode())


class Unavailable(Exception):
    """The peer cannot be measured here; the text is the reason that the page shows."""


@dataclass(frozen=True)
class Site:
    """Where one peer is measured once: all of it is the peer's own."""

    database: str
    """URL of an empty database (but for our own tables, which only our relay looks at)."""
    topic: str
    servers: str
    """Kafka's ``host:port``."""
    folder: Path
    """For its configuration and its log."""
    events: int
    """So many are drained."""


class Peer(ABC):
    name: str
    version: str
    settings: str
    """What was chosen, for the page."""
    backlog: int
    """Events that are drained: some seconds' worth."""
    live: int = 0
    """Events that are written flat out while the relay runs; 0: not measured."""
    rate: int = 0
    """Events per second at which latency is measured: 1,000, or what the peer keeps up with; 0: not measured."""
    order: str
    """What the product promises per key."""
    durability: str = "acks=all, idempotent; recorded after the broker's answer"
    insert: LiteralString = ""
    """Writes the events %(first)s to %(last)s: bodies, keys and headers from above. Without one nothing is written."""

    def fetch(self) -> None:  # noqa: B027  # most need nothing
        """Gets what is missing on this machine, once. Raises Unavailable."""

    @abstractmethod
    def prepare(self, site: Site, connection: psycopg.Connection[Any]) -> None:
        """Makes tables, and what must be there before the first event is written. ``connection`` is in autocommit."""

    @abstractmethod
    def command(self, site: Site) -> Sequence[str | Path]:
        """Starts the relay; it runs until it is ended."""

    def ready(self, connection: psycopg.Connection[Any], first: int, last: int) -> None:  # noqa: B027  # as above
        """Before the clock starts: what a writer would have in hand."""

    def write(self, connection: psycopg.Connection[Any], first: int, last: int) -> None:
        """Writes these events, in the transaction that is open."""
        connection.execute(self.insert, {"first": first, "last": last})

    def environment(self) -> Mapping[str, str]:
        """Added to this process's own."""
        return {}
