"""Messages: events that go into the write-ahead log and nowhere else (``relay_source`` is ``message``) [R8].

What is in one is a MessagePack array of events, each an array in the order and with the types of a row that a store hands to
a relay. What ``add_many`` is given shares messages: one is read as fast as one event, and has hundreds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from bothends.codecs.cloudevents import pack_attributes, pack_headers
from bothends.drafts import LIMITS, Draft
from bothends.errors import InvalidEvent
from bothends.events import VERSION_MAX
from bothends.stores.postgresql.outbox import lock_keys, statements
from bothends.stores.schema import quoted_schema
from bothends.stores.steps import Sql, Steps

__all__ = ["EVENTS_MAX", "Content", "PostgresqlMessages", "check", "pack", "prefix", "unpack"]

_Id = Annotated[bytes, msgspec.Meta(max_length=4 * LIMITS.id_chars)]
_Text = Annotated[str, msgspec.Meta(max_length=LIMITS.id_chars)]
_Topic = Annotated[str, msgspec.Meta(max_length=LIMITS.topic_chars)]
_Key = Annotated[bytes, msgspec.Meta(max_length=LIMITS.key_bytes)]
Content = tuple[
    _Id, _Text, _Text, _Topic, _Key | None, bytes | None, _Text | None, bytes,
    Annotated[int, msgspec.Meta(ge=1, le=VERSION_MAX)], str | None, bytes | None,
]
"""id, source, type, topic, key, body, content type, time, version, attributes, headers. What is longer than ``add`` lets it
be fits into no index: a message that somebody else wrote could never be held."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Content]).decode
EVENTS_MAX = 10_000
"""Events of one message that are taken: twenty times what ``add_many`` packs. A message is handed over whole."""
_HEAD = 3
"""Bytes of an array's length, at most: there may be zeros in it."""
_TEXTS: tuple[Literal[1, 2, 3, 6, 9], ...] = (1, 2, 3, 6, 9)


def prefix(schema: str) -> str:
    """Which messages in the log are those of the outbox in ``schema``."""
    return f"bothends.{schema}"


def pack(drafts: Sequence[Draft]) -> bytes:
    """What the message of some events holds, in their order."""
    return _encode([
        (
            draft.id.encode(), draft.source, draft.type, draft.topic, draft.key, draft.body, draft.content_type,
            draft.time.encode(), draft.version, pack_attributes(draft.attributes), pack_headers(draft.headers),
        )
        for draft in drafts
    ])


def unpack(content: bytes) -> list[Content]:
    """The rows that ``pack`` wrote. Raises ValueError for whatever rows of the outbox could not hold: somebody else wrote
    it."""
    rows = _decode(content)
    if not rows or len(rows) > EVENTS_MAX:
        raise ValueError(f"a message of {len(rows)} events")
    zeros = content.find(0, _HEAD) >= 0
    for row in rows:
        if zeros and (0 in row[0] or 0 in row[7] or any("\0" in (row[at] or "") for at in _TEXTS)):
            raise ValueError("NUL in a text")
        if not (row[0].isascii() and row[7].isascii()):
            row[0].decode()
            row[7].decode()
    return rows


def check(draft: Draft) -> None:
    """Raises InvalidEvent for what needs a table."""
    if draft.given_id:
        raise InvalidEvent(
            f"id={draft.id!r}: with relay_source message no event is stored, so nobody can tell whether this id was there "
            "before; leave id= out, or set relay_source to auto"
        )
    if draft.deliver_at is not None or draft.delay_s is not None:
        name = "delay" if draft.deliver_at is None else "deliver_at"
        raise InvalidEvent(
            f"{name}: with relay_source message no event is stored, so none can wait for its time; leave {name}= out, or set "
            f"relay_source to auto"
        )


class PostgresqlMessages:
    """Step functions for one schema, in the place of ``PostgresqlOutbox``; they run in a transaction that the caller has
    begun."""

    def __init__(self, schema: str) -> None:
        s = quoted_schema(schema)  # has no quote in it, so the prefix has none
        self._emit = f"select pg_logical_emit_message(true, '{prefix(schema)}', :content::bytea)"
        self._lock_keys = lock_keys(s)

    def plain(self, draft: Draft) -> Sql | None:
        """The one statement, whose result nobody waits for, that adds most events; None where more is needed. Raises
        InvalidEvent for what ``check`` refuses."""
        check(draft)
        return None if draft.strict else Sql(self._emit, {"content": pack([draft])}, rows=False)

    def add(self, drafts: Sequence[Draft]) -> Steps[None]:
        """Writes the messages in their order, and waits for no result. They are in the log if the transaction commits, at
        the place of its commit. Raises InvalidEvent, before any SQL, for what ``check`` refuses."""
        if len(drafts) == 1 and (statement := self.plain(drafts[0])) is not None:
            yield statement
            return
        for draft in drafts:
            check(draft)
        strict = [draft for draft in drafts if draft.strict and draft.key is not None]
        if strict:
            keys: dict[str, Any] = {"topics": [draft.topic for draft in strict], "keys": [draft.key for draft in strict]}
            yield Sql(self._lock_keys, keys, rows=False)
        for some in statements(drafts):
            yield Sql(self._emit, {"content": pack(some)}, rows=False)
