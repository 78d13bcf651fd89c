"""Inserts of the log, decoded to rows of the outbox. The hot path of a relay that reads the log.

Source: PostgreSQL documentation, 55.9 (message formats: Insert, TupleData). Rows come in runs of one kind: what repeats
from row to row is compared as bytes and not decoded again, and what lies between at fixed places is taken in one go.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from struct import error as StructError
from typing import Any

__all__ = ["COLUMNS", "HEADER", "LogUnreadable", "Row", "inserts"]

COLUMNS = (
    "seq", "xid", "id", "source", "type", "topic", "key", "body", "content_type", "time", "version", "attributes", "headers",
    "deliver_at",
)
HEADER = 25
"""Bytes of XLogData before its message."""

Row = tuple[Any, ...]

_NULL, _BINARY = ord("n"), ord("b")
_RELATION = HEADER + 1
_ID = _RELATION + 38
"""Where the id begins: behind the relation, 'N', the number of columns, seq and xid with their lengths, and its own."""
_LENGTH = Struct(">i").unpack_from
_TIME_HEAD = b"b\0\0\0\x1b"
_TIME_BYTES = 27


class LogUnreadable(Exception):
    """The stream is not what this package reads; the text says what is wrong."""


@lru_cache(256)
def _head(id: int, names: int) -> Callable[[bytes, int], tuple[Any, ...]]:
    """Unpacks what is before the key: the relation, seq, xid, the id's length and the id, the names, and whether there is a
    key and how long it is. ``id`` and ``names`` are numbers of bytes."""
    return Struct(f">I3x5xq5xQxi{id}s{names}sBi").unpack_from


def inserts(relation: int) -> Callable[[bytes], Row | None]:
    """What decodes an insert: to its row as ``relay.records`` has it, or to None where it is another relation's. The row's
    first value is its xid. Raises LogUnreadable."""
    names = kind = rest = b""
    source = type = topic = ""
    content_type: str | None = None
    version, attributes, headers, deliver_at = 1, None, None, None
    head, id_length, key_at = _head(0, 0), -1, 0

    def learn(data: bytes) -> None:
        nonlocal names, source, type, topic, head, id_length, key_at
        id_length = _LENGTH(data, _ID - 4)[0]
        begin = _ID + id_length
        first, at = _value(data, begin)
        second, at = _value(data, at)
        third, at = _value(data, at)
        names, source, type, topic = data[begin:at], _text(first), _text(second), _text(third)
        head, key_at = _head(id_length, len(names)), at + 5

    def insert(data: bytes) -> Row | None:
        nonlocal kind, content_type, rest, version, attributes, headers, deliver_at
        try:
            known, seq, xid, length, id, here, given, size = head(data, _RELATION)
        except StructError:  # shorter than the last one's beginning
            known, length, here = int.from_bytes(data[_RELATION:_RELATION + 4], "big"), -2, b""
        if known != relation:
            return None
        if here != names or length != id_length:
            learn(data)
            _, seq, xid, _, id, _, given, size = head(data, _RELATION)
        if given == _BINARY:
            at = key_at + size
            key: bytes | None = data[key_at:at]
        else:
            key, at = _value(data, key_at - 5)
        if data[at] == _BINARY:
            end = at + 5 + _LENGTH(data, at + 1)[0]
            body: bytes | None = data[at + 5:end]
        else:
            body, end = _value(data, at)
        at = end + len(kind)
        if kind and data[end:at] == kind:
            end = at + _TIME_BYTES
            time: bytes | None = data[at:end]
        else:
            value, at = _value(data, end)
            content_type = None if value is None else _text(value)
            kind = data[end:at + 5] if data[at:at + 5] == _TIME_HEAD else b""
            time, end = _value(data, at)
        if data[end:] != rest:
            rest = data[end:]
            first, at = _value(data, end)
            second, at = _value(data, at)
            headers, at = _value(data, at)
            third, at = _value(data, at)
            version = int.from_bytes(first or b"", "big", signed=True)
            attributes = None if second is None else _text(second)
            deliver_at = None if third is None else int.from_bytes(third, "big", signed=True)
        return (
            xid, seq, 0, id, source, type, topic, key, body, content_type, time, version, attributes, headers, deliver_at,
        )

    return insert


def _value(data: bytes, at: int) -> tuple[bytes | None, int]:
    """One column of a tuple, and where the next one begins."""
    if data[at] == _NULL:
        return None, at + 1
    if data[at] != _BINARY:
        raise LogUnreadable("a column is not binary")
    end = at + 5 + _LENGTH(data, at + 1)[0]
    return data[at + 5:end], end


def _text(value: bytes | None) -> str:
    if value is None:
        raise LogUnreadable("a column that is never null is null")
    return value.decode()
