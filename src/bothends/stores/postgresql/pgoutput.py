"""pgoutput: the stream of a logical replication slot, decoded to pages of outbox rows. Protocol version 1, binary values.

Source: PostgreSQL documentation, 55.5 (logical streaming replication) and 55.9 (message formats).
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import NamedTuple

from bothends.core.relaying import DELAYED, PAGE_BYTES, UNREADABLE, Cursor
from bothends.stores.postgresql.inserts import COLUMNS, HEADER, LogUnreadable, Row, inserts
from bothends.stores.postgresql.messages import unpack

__all__ = ["LogEnded", "LogPage", "PgOutput"]

MESSAGE_SEQ = 1 << 62
"""What is added to a message's place in the log to make the seq of its first event: no row has one so high. A message is longer
than it has events, so the next one's are beyond."""

Covers = Callable[[int, int, bytes | None], bool]
"""Whether the cursor covers the row (seq, xid, key)."""

_WAL, _KEEPALIVE = ord("w"), ord("k")
_BEGIN, _COMMIT, _INSERT, _MESSAGE, _RELATION = (ord(c) for c in "BCIMR")
_LONG = Struct(">q").unpack_from


class LogEnded(Exception):
    """The server has ended the stream."""


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
        self._row: Callable[[bytes], Row | None] | None = None
        """Decodes the outbox's inserts, once the stream has named it."""
        self._began = b""
        self.position = 0
        """The end of the last transaction, or what a keepalive said since."""
        self.reply = False
        """Whether the server asked for an answer."""

    def page(self, receive: Callable[[int], tuple[int, memoryview]], consume: Callable[[], None], limit: int) -> LogPage:
        """Takes what has arrived until there are ``limit`` rows or PAGE_BYTES; what a message has is not parted. Raises
        LogEnded, LogUnreadable, and what the driver raises."""
        rows: list[Row] = []
        before = self.position
        cursor: Cursor | None = None
        flagged, consumed, size = False, False, 0
        decode, covers, append = self._row, self.covers, rows.append  # each look at self is one per event
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
            data = view.tobytes()
            if data[0] == _WAL:
                kind = data[HEADER]
                if kind == _INSERT:
                    size += count
                    row = decode(data) if decode is not None else None
                    if row is None or (covers is not None and covers(row[1], row[0], row[7])):
                        continue
                    due = row[14]
                    if due is not None and due > _LONG(self._began, HEADER + 9)[0]:
                        row, flagged = (*row[:2], DELAYED, *row[3:]), True
                    append(row)
                elif kind == _BEGIN:
                    self._began = data
                elif kind == _COMMIT:
                    self.position = _LONG(data, HEADER + 10)[0]
                elif kind == _MESSAGE:
                    size += count
                    cursor = self._message(data, rows) or cursor
                    covers = self.covers
                    flagged = flagged or (bool(rows) and rows[-1][2] == UNREADABLE)
                elif kind == _RELATION:
                    self._describe(data)
                    decode = self._row
            elif data[0] == _KEEPALIVE:
                self.reply = self.reply or data[17] == 1
                self.position = max(self.position, _LONG(data, 1)[0])
        moved = self.position if self.position > before else 0
        return LogPage(rows, moved, cursor, flagged, len(rows) >= limit or size >= PAGE_BYTES)

    def _message(self, data: bytes, rows: list[Row]) -> Cursor | None:
        """A marker's cursor; events of ours become rows. Others' messages are theirs."""
        place = _LONG(data, HEADER + 2)[0]
        begin = HEADER + 10
        if self._events is not None and data.startswith(self._events, begin):
            content = data[begin + len(self._events) + 4:]
            try:
                rows += [(0, MESSAGE_SEQ + place + at, 0, *event, None) for at, event in enumerate(unpack(content))]
            except ValueError:  # anybody who may connect may write one
                name = f"{place:X}".encode()
                unknown = (name, "", "unreadable", "", None, content, None, b"", 1, None, None, None)
                rows.append((0, MESSAGE_SEQ + place, UNREADABLE, *unknown))
        elif data.startswith(self._marks, begin):
            cursor = self.markers.pop(data[begin + len(self._marks) + 4:], None)
            if cursor is not None:
                self.covers = None
            if not data[HEADER + 1]:  # not of a transaction: all before it has been sent
                self.position = max(self.position, place)
            return cursor
        return None

    def _describe(self, data: bytes) -> None:
        """Learns which relation is the outbox: by its columns, which must be those that are read here."""
        at = data.index(b"\0", data.index(b"\0", HEADER + 5) + 1) + 2
        names: list[str] = []
        columns = int.from_bytes(data[at:at + 2], "big")
        at += 2
        for _ in range(columns):
            end = data.index(b"\0", at + 1)
            names.append(data[at + 1:end].decode())
            at = end + 9
        schema, name = data[HEADER + 5:].split(b"\0", 2)[:2]
        if name != b"outbox" or schema != self._schema:
            return
        if tuple(names) != COLUMNS:
            raise LogUnreadable(f"the outbox has the columns {', '.join(names)}: apply the schema of this version")
        self._row = inserts(int.from_bytes(data[HEADER + 1:HEADER + 5], "big"))
