"""CloudEvents 1.0 over records with headers: the names of the Kafka protocol binding, binary and structured mode.

``to_headers`` is the relay's hot path. ``from_record`` accepts whatever can be understood and never lets a header stop
a consumer: a value that is no valid text stays in ``Message.headers`` as raw bytes, and only a missing id, source or
type makes a record ``Undecodable``.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from bothends.errors import Undecodable
from bothends.message import Headers, Message, Record

__all__ = [
    "ATTRIBUTES", "from_record", "is_text", "pack_attributes", "pack_headers", "to_headers", "unpack_attributes",
    "unpack_headers",
]

STRUCTURED = "application/cloudevents"
ATTRIBUTE_MAX = 1_024
"""Bytes of an attribute; what is longer stays among the headers. Ids become part of index entries, hence a limit."""

ATTRIBUTES = {
    "subject": "subject", "correlationid": "correlation_id", "causationid": "causation_id",
    "traceparent": "traceparent",
}
"""Attributes that the outbox keeps together in one column, and their names in ``Message``."""

_CE_NAMES = {name: f"ce_{name}" for name in ATTRIBUTES}
_KNOWN = {
    "content-type": "datacontenttype",
    **{f"ce_{name}": name for name in (
        "specversion", "id", "source", "type", "time", "partitionkey", "dataversion", *ATTRIBUTES,
    )},
}
_SPEC = ("ce_specversion", b"1.0")
_VERSIONS = {n: ("ce_dataversion", str(n).encode()) for n in range(1, 100)}
_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_INTEGER = re.compile(r"[1-9][0-9]{0,8}")

_pack_json = msgspec.json.Encoder().encode
_pack_msgpack = msgspec.msgpack.Encoder().encode
_attributes = msgspec.json.Decoder(dict[str, str])
_headers = msgspec.msgpack.Decoder(list[tuple[str, bytes]])


def is_text(value: str) -> bool:
    """Whether CloudEvents allows ``value`` as an attribute: no control characters, no surrogates."""
    return value.isprintable() or _FORBIDDEN.search(value) is None


def pack_attributes(attributes: Mapping[str, str]) -> str | None:
    """The text column ``attributes``; ``None`` for none."""
    return _pack_json(attributes).decode() if attributes else None


def unpack_attributes(column: str | None) -> dict[str, str]:
    return _attributes.decode(column) if column else {}


def pack_headers(headers: Headers) -> bytes | None:
    """The bytes column ``headers``: MessagePack of [[name, value], ...]; ``None`` for none."""
    return _pack_msgpack(headers) if headers else None


def unpack_headers(column: bytes | None) -> list[tuple[str, bytes]]:
    return _headers.decode(column) if column else []


def to_headers(
    id: str, source: str, type: str, time: str, version: int, key: bytes | None, content_type: str | None,
    attributes: str | None, headers: bytes | None,
) -> list[tuple[str, bytes]]:
    """The headers of one record in binary mode, from the columns of an outbox row as they are stored. The event's own
    headers come last, in their order."""
    found = [
        _SPEC, ("ce_id", id.encode()), ("ce_source", source.encode()), ("ce_type", type.encode()),
        ("ce_time", time.encode()), _VERSIONS.get(version) or ("ce_dataversion", str(version).encode()),
    ]
    if content_type is not None:
        found.append(("content-type", content_type.encode()))
    if key and _is_attribute(key):
        found.append(("ce_partitionkey", key))
    if attributes is not None:
        found += [(_CE_NAMES.get(n) or f"ce_{n}", v.encode()) for n, v in _attributes.decode(attributes).items()]
    if headers is not None:
        found += _headers.decode(headers)
    return found


def _is_attribute(key: bytes) -> bool:
    if key.isalnum():  # ASCII letters and digits: most keys, decided without decoding
        return True
    try:
        return _FORBIDDEN.search(key.decode()) is None
    except UnicodeDecodeError:
        return False


def from_record(record: Record) -> Message:
    """The event in a record, binary or structured mode. ``Message.key`` is the record's key, whatever the headers say.

    Raises ``Undecodable`` with reason ``no_id`` where there is no id, and ``undecodable`` for a missing source or type,
    batch mode, an unknown format or a broken structured event.
    """
    attributes: dict[str, str] = {}
    rest: list[tuple[str, bytes]] = []
    for header in record.headers:
        name, value = header
        attribute = _KNOWN.get(name) or _attribute_name(name)
        if attribute is None or (text := _text(value)) is None:
            rest.append(header)
        else:
            attributes[attribute] = text
    content_type = attributes.get("datacontenttype")
    if content_type is not None and content_type[: len(STRUCTURED)].lower() == STRUCTURED:
        return _structured(record, content_type)
    return _message(record, attributes, rest, record.value)


def _attribute_name(header: str) -> str | None:
    """The attribute that a header carries, or None for a header of the event's own."""
    name = header.lower()
    if name.startswith("ce_"):
        return name[3:] or None
    return "datacontenttype" if name == "content-type" else None


def _text(value: bytes) -> str | None:
    """A header's value as an attribute; None for what is no valid attribute and stays a header."""
    if len(value) > ATTRIBUTE_MAX:
        return None
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() or _FORBIDDEN.search(text) is None else None


def _message(record: Record, found: dict[str, str], headers: Headers, body: bytes | None) -> Message:
    take = found.pop
    version = take("specversion", "1.0")
    if not version.startswith("1."):
        raise Undecodable(f"{_place(record)}: CloudEvents {version[:20]!r} is not understood, only 1.x")
    key, partitionkey = record.key, found.get("partitionkey")
    if partitionkey is not None and partitionkey.encode() == key:
        del found["partitionkey"]
    dataversion = found.get("dataversion")
    if dataversion is not None and _INTEGER.fullmatch(dataversion):
        del found["dataversion"]
    else:
        dataversion = None
    return Message(
        id=take("id", "") or _missing(record, "id", "no_id"),
        source=take("source", "") or _missing(record, "source"),
        type=take("type", "") or _missing(record, "type"),
        key=key, headers=headers, body=body, time=take("time", None), subject=take("subject", None),
        content_type=take("datacontenttype", None), version=int(dataversion) if dataversion is not None else None,
        correlation_id=take("correlationid", None), causation_id=take("causationid", None),
        traceparent=take("traceparent", None), extensions=found,
        topic=record.origin.topic, partition=record.origin.partition, offset=record.origin.offset,
    )


def _missing(record: Record, name: str, reason: str = "undecodable") -> str:
    raise Undecodable(
        f"{_place(record)} has no CloudEvents {name} (header ce_{name}, 1 to {ATTRIBUTE_MAX} bytes of UTF-8 without "
        f"control characters); for records of another format declare consumer(format=ForeignJson(...))", reason=reason,
    )


def _place(record: Record) -> str:
    return f"record {record.origin.topic}:{record.origin.partition}:{record.origin.offset}"


_structured_event = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _structured(record: Record, content_type: str) -> Message:
    media_type = content_type.split(";", 1)[0].strip().lower()
    if media_type.startswith("application/cloudevents-batch"):
        raise Undecodable(f"{_place(record)}: CloudEvents batch mode is not accepted; send one event per record")
    if media_type != "application/cloudevents+json":
        raise Undecodable(f"{_place(record)}: the event format {media_type[:60]!r} is not understood, only JSON")
    if record.value is None:
        raise Undecodable(f"{_place(record)}: structured mode without a value", reason="no_id")
    try:
        members = _structured_event.decode(record.value)
        data, data_base64 = members.pop("data", None), members.pop("data_base64", None)
        found = {name: text for name, raw in members.items() if (text := _member(name, raw)) is not None}
        body = _data(data, data_base64, found)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise Undecodable(f"{_place(record)}: broken structured event: {error}") from error
    headers = [(name, value) for name, value in record.headers if name.lower() != "content-type"]
    return _message(record, found, headers, body)


def _member(name: str, raw: msgspec.Raw) -> str | None:
    """An attribute as text: strings, integers and booleans are CloudEvents types, null means absent."""
    value: Any = msgspec.json.decode(raw)
    if value is None:
        return None
    if isinstance(value, str):
        if not is_text(value) or len(value.encode()) > ATTRIBUTE_MAX:
            raise ValueError(f"{name} holds control characters or has more than {ATTRIBUTE_MAX} bytes")
        return value
    if isinstance(value, (bool, int)):
        return bytes(raw).decode()
    raise ValueError(f"{name} is neither text, integer nor boolean")


def _data(data: msgspec.Raw | None, data_base64: msgspec.Raw | None, found: dict[str, str]) -> bytes | None:
    if data_base64 is not None:
        if data is not None:
            raise ValueError("data and data_base64 exclude each other")
        return base64.b64decode(msgspec.json.decode(data_base64, type=str), validate=True)
    if data is None:
        return None
    raw = bytes(data)
    media_type = found.setdefault("datacontenttype", "application/json").split(";", 1)[0].strip().lower()
    if raw.startswith(b'"') and not (media_type.endswith(("/json", "+json"))):
        return msgspec.json.decode(raw, type=str).encode()
    return raw
