"""Letter: one message as it waits in the consumer's database, parked or dead: raw, as it was delivered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from bothends.message import Headers, Origin, Record

__all__ = ["Block", "KeyOf", "Letter", "pack_headers", "unpack_headers"]


class KeyOf(NamedTuple):
    """What waits together: the messages of one key of one topic. ``keyed`` is False for a message without a key, which
    waits alone; ``key`` is its own id then."""

    topic: str
    keyed: bool
    key: bytes


class Block(NamedTuple):
    """A key that has to wait: its state, and the seconds until its head is tried again."""

    key: KeyOf
    state: str
    delay_s: float


class Letter(NamedTuple):
    """The columns that ``parked`` and ``dead_letters`` share. ``position`` is None until the database gives one; it is
    kept through redrives, and a key drains by position. ``source`` and ``id`` are empty where nothing could be decoded."""

    queue: KeyOf
    source: str
    id: str
    type: str
    hash: bytes | None
    partition: int
    offset: int
    timestamp_ms: int
    record_key: bytes | None
    body: bytes | None
    headers: bytes
    attempts: int = 0
    crashes: int = 0
    redrives: int = 0
    dead_letter: int | None = None
    reason: str = ""
    error: str = ""
    fingerprint: str = ""
    history: str = "[]"
    position: int | None = None
    parked_s: float = 0.0
    """How long it has been parked, by the database's clock, in seconds."""

    def record(self) -> Record:
        """The copy as it was delivered first."""
        origin = Origin(self.queue.topic, self.partition, self.offset)
        return Record(origin, self.record_key, self.body, unpack_headers(self.headers), self.timestamp_ms)


def pack_headers(headers: Headers) -> bytes:
    """MessagePack ``[[name, bytes], ...]``. A name that was not UTF-8 on the wire is packed as its raw bytes."""
    rows: list[tuple[str | bytes, bytes]] = []
    for name, value in headers:
        try:
            name.encode()
            rows.append((name, value))
        except UnicodeEncodeError:
            rows.append((name.encode("utf-8", "surrogateescape"), value))
    return msgspec.msgpack.encode(rows)


def unpack_headers(packed: bytes) -> Sequence[tuple[str, bytes]]:
    """The inverse of ``pack_headers``; names that were not UTF-8 come back with ``surrogateescape``."""
    rows = msgspec.msgpack.decode(packed, type=list[tuple[Any, bytes]])  # Any: text or raw bytes, as packed
    return [(n.decode("utf-8", "surrogateescape") if isinstance(n, bytes) else n, v) for n, v in rows]
