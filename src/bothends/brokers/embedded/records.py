"""Records in the log's file: appended, read, trimmed."""

from __future__ import annotations

import random
import sqlite3
import time
import zlib
from collections.abc import Sequence

import msgspec

from bothends.errors import PositionLost
from bothends.message import Headers, Origin, Record
from bothends.ports import Outgoing, Partition

__all__ = ["append", "expire", "read", "topic_of", "trim"]

_READ_BYTES_MAX = 8 * 1024 * 1024
TRIM_ROWS = 5_000
_NAMES_AS_BYTES = b"\xc1"
"""Begins what is packed otherwise: MessagePack never uses this byte."""
_decode = msgspec.msgpack.Decoder(list[tuple[str, bytes]]).decode
_decode_bytes = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]]).decode
_encode = msgspec.msgpack.Encoder().encode


def _pack(headers: Headers) -> bytes:
    """Names as text; those that are not UTF-8 (lone surrogates) as the bytes that they came from."""
    try:
        return _encode(headers)
    except UnicodeEncodeError:
        return _NAMES_AS_BYTES + _encode([(name.encode("utf-8", "surrogateescape"), data) for name, data in headers])


def _unpack(packed: bytes) -> Headers:
    if packed[:1] == _NAMES_AS_BYTES:
        return [(name.decode("utf-8", "surrogateescape"), data) for name, data in _decode_bytes(packed[1:])]
    return _decode(packed)


def topic_of(connection: sqlite3.Connection, name: str) -> tuple[int, int]:
    """(id, partitions); (0, 0) where there is no such topic."""
    row = connection.execute("select id, partitions from topics where name = ?", [name]).fetchone()
    return (0, 0) if row is None else (row[0], row[1])


def append(connection: sqlite3.Connection, records: Sequence[Outgoing]) -> None:
    """Within a transaction; all topics exist."""
    now_ms = time.time_ns() // 1_000_000
    topics: dict[str, tuple[int, list[int]]] = {}
    rows = []
    for name, key, value, headers in records:
        found = topics.get(name)
        if found is None:
            number, _ = topic_of(connection, name)
            highs = connection.execute("select high from partitions where topic = ? order by number", [number])
            found = topics[name] = (number, [high for (high,) in highs])
        topic, ends = found
        number = random.randrange(len(ends)) if key is None else zlib.crc32(key) % len(ends)
        rows.append((topic, number, ends[number], key, value, _pack(headers), now_ms))
        ends[number] += 1
    connection.executemany("insert into records values (?, ?, ?, ?, ?, ?, ?)", rows)
    connection.executemany(
        "update partitions set high = ? where topic = ? and number = ? and high <> ?",
        [(high, topic, number, high) for topic, ends in topics.values() for number, high in enumerate(ends)],
    )


def read(connection: sqlite3.Connection, partition: Partition, offset: int, max_records: int) -> list[Record]:
    """At most 8 MiB (but one record at least). Raises PositionLost outside of the log."""
    name, number = partition
    topic, _ = topic_of(connection, name)
    ends = connection.execute("select low, high from partitions where topic = ? and number = ?", [topic, number]).fetchone()
    if ends is None:
        return []
    low, high = ends
    if not low <= offset <= high:
        raise PositionLost(name, number, position=offset, low=low, high=high)
    records: list[Record] = []
    if offset == high or max_records < 1:
        return records
    size = 0
    cursor = connection.execute(
        "select offset, key, value, headers, at_ms from records where topic = ? and number = ? and offset >= ? "
        "order by offset limit ?", [topic, number, offset, max_records],
    )
    for at, key, value, packed, at_ms in cursor:
        records.append(Record(Origin(name, number, at), key, value, _unpack(packed), at_ms))
        size += len(value or b"") + len(packed)
        if size >= _READ_BYTES_MAX:
            break
    cursor.close()
    return records


def trim(connection: sqlite3.Connection, topic: int, number: int, before: int) -> bool:
    """Within a transaction: removes some of the records below ``before``. False when none are left."""
    connection.execute(
        "update partitions set low = max(low, min(?, high)) where topic = ? and number = ?", [before, topic, number]
    )
    gone = connection.execute(
        "delete from records where topic = ?1 and number = ?2 and offset in (select offset from records "
        "where topic = ?1 and number = ?2 and offset < ?3 order by offset limit ?4)", [topic, number, before, TRIM_ROWS],
    )
    return gone.rowcount == TRIM_ROWS


def expire(connection: sqlite3.Connection, before_ms: int) -> bool:
    """Within a transaction: removes some of the records that were appended before ``before_ms``. True when there are more."""
    more = False
    for topic, number in connection.execute("select topic, number from partitions").fetchall():
        last = connection.execute(
            "select max(offset) from (select offset, at_ms from records where topic = ? and number = ? "
            "order by offset limit ?) where at_ms < ?", [topic, number, TRIM_ROWS, before_ms],
        ).fetchone()[0]
        if last is not None:
            more = trim(connection, topic, number, last + 1) or more
    return more
