"""ForeignJson: how a consumer reads JSON of producers that know nothing of CloudEvents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import msgspec

from bothends.codecs.cloudevents import ATTRIBUTE_MAX, is_text
from bothends.core.hashing import content_hash
from bothends.errors import ConfigError, Undecodable
from bothends.message import Message, Record

__all__ = ["ForeignJson"]


def _position(message: Message) -> str:
    return f"{message.topic}:{message.partition}:{message.offset}"


def _body_hash(message: Message) -> str:
    return content_hash(message.body).hex()


class ForeignJson:
    """``id``, ``key`` and ``time`` name top-level fields of the body; ``id`` may be a function of the message instead.

    Deduplication is as good as the id. ``ForeignJson.POSITION`` (topic, partition, offset) tells copies of a record
    apart only by where they lie: what a producer sends twice is handled twice. ``ForeignJson.BODY_HASH`` takes equal
    bodies for one event: two real events that look alike become one. ``source`` defaults to ``topic:<name>``.
    Without ``key``, or where the field is absent, the record's own key orders.
    """

    POSITION: Final[Callable[[Message], str]] = staticmethod(_position)
    BODY_HASH: Final[Callable[[Message], str]] = staticmethod(_body_hash)

    def __init__(
        self, *, id: str | Callable[[Message], str], type: str, key: str | None = None, time: str | None = None,
        source: str | None = None,
    ) -> None:
        if not id or not type or source == "":
            raise ConfigError("ForeignJson: id (a field's name or a function), type and source must not be empty")
        self.id, self.type, self.key, self.time, self.source = id, type, key, time, source

    def message(self, record: Record) -> Message:
        """The event in ``record``. Raises ``Undecodable``: reason ``no_id`` where the id is absent, empty or neither
        text nor a whole number, else ``undecodable``."""
        fields = self._fields(record)
        topic, partition, offset = record.origin
        key = record.key
        if self.key is not None and (text := _text(fields, self.key)) is not None:
            key = text.encode()
        message = Message(
            id="", source=self.source or f"topic:{topic}", type=self.type, key=key, headers=record.headers,
            body=record.value, time=_text(fields, self.time) if self.time is not None else None,
            content_type="application/json", topic=topic, partition=partition, offset=offset,
        )
        return replace(message, id=self._id(message, fields))

    def _fields(self, record: Record) -> dict[str, Any]:
        """The top-level fields that were asked for, each still undecoded; none where none was asked for."""
        if record.value is None or not (isinstance(self.id, str) or self.key or self.time):
            return {}
        try:
            return _object.decode(record.value)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise Undecodable(f"record {':'.join(map(str, record.origin))} is no JSON object: {error}") from error

    def _id(self, message: Message, fields: dict[str, Any]) -> str:
        if isinstance(self.id, str):
            found, rule = _text(fields, self.id), f"field {self.id!r}"
        else:
            rule = getattr(self.id, "__name__", "function")
            try:
                found = self.id(message)
            except Exception as error:
                raise Undecodable(
                    f"record {_position(message)}: the id rule {rule} raised {error!r}", reason="no_id"
                ) from error
        if not isinstance(found, str) or not found or not is_text(found) or len(found.encode()) > ATTRIBUTE_MAX:
            raise Undecodable(
                f"record {_position(message)}: its id rule ({rule}) gives no id of 1 to {ATTRIBUTE_MAX} bytes of text",
                reason="no_id",
            )
        return found


_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _text(fields: dict[str, Any], name: str) -> str | None:
    """A field that is text, or a whole number as it is written; None for anything else."""
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return bytes(raw).decode()
    return None
