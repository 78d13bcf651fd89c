"""pgoutput: the stream of a logical replication slot, decoded to pages of outbox rows. Protocol version 1, binary values.

Source: PostgreSQL documentation, 55.5 (logical streaming replication) and 55.9 (message formats). This is the hot path:
columns that repeat from row to row are compared as bytes and not decoded again.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, NamedTuple

from bothends.core.relaying import DELAYED, PAGE_BYTES, UNREADABLE, Cursor
from bothends.stores.postgresql.messages import unpack

__all__ = ["COLUMNS", "LogEnded", "LogPage", "LogUnreadable", "PgOutput"]

COLUMNS = (
    "seq", "xid", "id", "source", "type", "topic", "key", "body", "content_type", "time", "version", "attributes", "headers",
    "deliver_at",
)
MESSAGE_SEQ = 1 << 62
"""What is added to a message's place in the log to make its seq: no row has one so high."""

Row = tuple[Any, ...]
Covers = Callable[[int, int, bytes | None], bool]
"""Whether the cursor covers the row (seq, xid, key)."""

_WAL, _KEEPALIVE = ord("w"), ord("k")
_BEGIN, _COMMIT, _INSERT, _MESSAGE, _RELATION = (ord(c) for c in "BCIMR")
_NULL, _BINARY = ord("n"), ord("b")
_HEADER = 25
"""Bytes of XLogData before its message."""
_TUPLE = _HEADER + 8
"""Bytes before the first column of an insert: its kind, the relation, 'N', the number of columns."""
_HEAD = Struct(">5xq5xQxi").unpack_from
_HEAD_BYTES = 31
_LENGTH = Struct(">i").unpack_from
_LONG = Struct(">q").unpack_from
_OID = Struct(">I").unpack_from
_TIME_HEAD = b"b\0\0\0\x1b"
_TIME_BYTES = 27


class LogEnded(Exception):
    """The server has ended the stream."""


class LogUnreadable(Exception):
    """The stream is not what this package reads; the text says what is wrong."""


class LogPage(NamedTuple):
    """Rows in commit order, as ``relay.records`` has them. When they, and all before them, are done, so is everything
    before ``position`` (0: nothing new), and ``cursor``."""

    rows: list[Row]
    position: int
    cursor: Cursor | None
    flagged: bool
    """Whether a row is due later, or unreadable."""
    full: bool
    """Whether there may be more at once."""


class PgOutput:
    """``markers`` has the cursors of markers on their way, by what they say; one that is met leaves it. ``covers`` is asked
    until the first of them comes."""

    def __init__(self, prefix: str, *, messages: bool, covers: Covers | None) -> None:
        self._events = prefix.encode() + b"\0" if messages else None
        self._marks = prefix.encode() + b".marker\0"
        self._schema = prefix.partition(".")[2].encode()
        self.markers: dict[bytes, Cursor] = {}
        self.covers = covers
        self._relation: int | None = None
        self._began = b""
        self.position = 0
        """The end of the last transaction, or what a keepalive said since."""
        self.reply = False
        """Whether the server asked for an answer."""
        # What the last row had, as bytes and as values.
        self._names = self._kind = self._rest = b""
        self._names_are = ("", "", "")
        self._kind_is: str | None = None
        self._rest_is: tuple[int, str | None, bytes | None, int | None] = (1, None, None, None)

    def page(self, receive: Callable[[int], tuple[int, memoryview]], consume: Callable[[], None], limit: int) -> LogPage:
        """Takes what has arrived, at most ``limit`` rows and PAGE_BYTES. Raises LogEnded, LogUnreadable, and what the driver
        raises."""
        rows: list[Row] = []
        before = self.position
        cursor: Cursor | None = None
        flagged, consumed, size = False, False, 0
        while len(rows) < limit and size < PAGE_BYTES:
            count, view = receive(1)
            if count <= 0:
                if count < 0:
                    raise LogEnded
                if consumed:
                    break
                consume()
                consumed = True
                continue
            consumed = False
            data = bytes(view)
            if data[0] == _WAL:
                kind = data[_HEADER]
                if kind == _INSERT:
                    size += count
                    if _OID(data, _HEADER + 1)[0] == self._relation:
                        flagged = self._insert(data, rows) or flagged
                elif kind == _BEGIN:
                    self._began = data
                elif kind == _COMMIT:
                    self.position = _LONG(data, _HEADER + 10)[0]
                elif kind == _MESSAGE:
                    size += count
                    cursor = self._message(data, rows) or cursor
                    flagged = flagged or (bool(rows) and rows[-1][2] == UNREADABLE)
                elif kind == _RELATION:
                    self._describe(data)
            elif data[0] == _KEEPALIVE:
                self.reply = self.reply or data[17] == 1
                self.position = max(self.position, _LONG(data, 1)[0])
        moved = self.position if self.position > before else 0
        return LogPage(rows, moved, cursor, flagged, len(rows) >= limit or size >= PAGE_BYTES)

    def _insert(self, data: bytes, rows: list[Row]) -> bool:
        """Whether the row is due later."""
        seq, xid, length = _HEAD(data, _TUPLE)
        at = _TUPLE + _HEAD_BYTES + length
        id = data[at - length:at]
        end = at + len(self._names)
        if data[at:end] != self._names or not self._names:
            end = self._read_names(data, at)
        source, type, topic = self._names_are
        if data[end] == _NULL:
            key, at = None, end + 1
        else:
            at = end + 5 + _LENGTH(data, end + 1)[0]
            key = data[end + 5:at]
        if data[at] == _NULL:
            body, end = None, at + 1
        else:
            end = at + 5 + _LENGTH(data, at + 1)[0]
            body = data[at + 5:end]
        at = end + len(self._kind)
        if data[end:at] == self._kind and self._kind:
            content_type, end = self._kind_is, at + _TIME_BYTES
            time = data[at:end]
        else:
            content_type, time, end = self._read_kind(data, end)
        if data[end:] != self._rest:
            self._read_rest(data, end)
        version, attributes, headers, deliver_at = self._rest_is
        if self.covers is not None and self.covers(seq, xid, key):
            return False
        flag = 0
        if deliver_at is not None and deliver_at > _LONG(self._began, _HEADER + 9)[0]:
            flag = DELAYED
        rows.append((0, seq, flag, id, source, type, topic, key, body, content_type, time, version, attributes, headers,
                     deliver_at))
        return flag != 0

    def _read_names(self, data: bytes, begin: int) -> int:
        source, at = _value(data, begin)
        type, at = _value(data, at)
        topic, at = _value(data, at)
        self._names = data[begin:at]
        self._names_are = (_text(source), _text(type), _text(topic))
        return at

    def _read_kind(self, data: bytes, begin: int) -> tuple[str | None, bytes, int]:
        kind, at = _value(data, begin)
        content_type = None if kind is None else _text(kind)
        if data[at:at + 5] == _TIME_HEAD:
            self._kind, self._kind_is = data[begin:at + 5], content_type
        time, at = _value(data, at)
        return content_type, time or b"", at

    def _read_rest(self, data: bytes, begin: int) -> None:
        version, at = _value(data, begin)
        attributes, at = _value(data, at)
        headers, at = _value(data, at)
        deliver_at, at = _value(data, at)
        self._rest = data[begin:]
        self._rest_is = (
            int.from_bytes(version or b"", "big", signed=True), None if attributes is None else _text(attributes), headers,
            None if deliver_at is None else int.from_bytes(deliver_at, "big", signed=True),
        )

    def _message(self, data: bytes, rows: list[Row]) -> Cursor | None:
        """A marker's cursor; an event of ours becomes a row. Others' messages are theirs."""
        place = _LONG(data, _HEADER + 2)[0]
        begin = _HEADER + 10
        if data.startswith(self._marks, begin):
            cursor = self.markers.pop(data[begin + len(self._marks) + 4:], None)
            if cursor is not None:
                self.covers = None
            if not data[_HEADER + 1]:  # not of a transaction: all before it has been sent
                self.position = max(self.position, place)
            return cursor
        if self._events is not None and data.startswith(self._events, begin):
            content = data[begin + len(self._events) + 4:]
            try:
                rows.append((0, MESSAGE_SEQ + place, 0, *unpack(content), None))
            except ValueError:  # anybody who may connect may write one
                name = f"{place:X}".encode()
                unknown = (name, "", "unreadable", "", None, content, None, b"", 1, None, None, None)
                rows.append((0, MESSAGE_SEQ + place, UNREADABLE, *unknown))
        return None

    def _describe(self, data: bytes) -> None:
        """Learns which relation is the outbox: by its columns, which must be those that are read here."""
        at = data.index(b"\0", data.index(b"\0", _HEADER + 5) + 1) + 2
        names: list[str] = []
        columns = int.from_bytes(data[at:at + 2], "big")
        at += 2
        for _ in range(columns):
            end = data.index(b"\0", at + 1)
            names.append(data[at + 1:end].decode())
            at = end + 9
        schema, name = data[_HEADER + 5:].split(b"\0", 2)[:2]
        if name != b"outbox" or schema != self._schema:
            return
        if tuple(names) != COLUMNS:
            raise LogUnreadable(f"the outbox has the columns {', '.join(names)}: apply the schema of this version")
        self._relation = _OID(data, _HEADER + 1)[0]


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
