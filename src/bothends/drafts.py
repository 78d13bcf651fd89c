"""Drafts: an event made ready for the outbox. All of ``add``'s validation happens here, before any SQL, so that a
refused event leaves the caller's transaction as it was."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import lru_cache
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec

from bothends.codecs.cloudevents import ATTRIBUTE_MAX, is_text
from bothends.codecs.json import encode
from bothends.errors import InvalidEvent, MissingKey
from bothends.events import (
    TOPIC_MAX,
    TYPE_MAX,
    UNSET,
    VERSION_MAX,
    EventType,
    Tombstone,
    Unset,
    describe,
    find_event_type,
    is_event_like,
    is_topic,
)
from bothends.ids import uuid7
from bothends.message import Headers

__all__ = ["LIMITS", "Draft", "Limits", "draft"]


class Limits(NamedTuple):
    """Limits of one event, independent of the broker. Sizes in bytes of UTF-8, lengths in characters."""

    event_bytes: int = 900_000
    """Body, key and headers together."""
    key_bytes: int = 1_000
    topic_chars: int = TOPIC_MAX
    type_chars: int = TYPE_MAX
    header_name_chars: int = 255
    headers: int = 64
    id_chars: int = 255
    """Also of source and content type."""
    attribute_bytes: int = ATTRIBUTE_MAX
    """Of subject, correlation id and causation id."""
    delay: timedelta = timedelta(days=36_525)
    """How far ahead an event may be due: a hundred years. Later dates are beyond what databases and clocks agree on."""


LIMITS: Final = Limits()

_SURROGATE = re.compile("[\ud800-\udfff]")
_BARE = (bytes, bytearray, memoryview, dict, list)


class Draft(msgspec.Struct, frozen=True):
    """The columns of one outbox row, checked. ``key`` is ``None`` for no key (``b""`` is a key), ``body`` is ``None``
    for a tombstone."""

    id: str
    source: str
    type: str
    topic: str
    key: bytes | None
    body: bytes | None
    content_type: str | None
    time: str
    """RFC 3339 in UTC, from this machine's clock: for people, never for order or leases."""
    version: int
    attributes: dict[str, str]
    """CloudEvents names: subject, correlationid, causationid, traceparent; only those that are set."""
    headers: list[tuple[str, bytes]]
    deliver_at: datetime | None
    """UTC."""
    delay_s: float | None
    """Seconds from the insert on, by the database's clock; above 0."""
    strict: bool
    given_id: bool
    """The caller chose the id, so it may be there already."""


def draft(
    event: object,
    *,
    source: str,
    default_topic: str,
    key: str | Unset | None = UNSET,
    type: str | None = None,
    version: int | None = None,
    topic: str | None = None,
    id: str | None = None,
    derived_id: str | None = None,
    subject: str | None = None,
    correlation_id: str | None = None,
    causation_id: str | None = None,
    traceparent: str | None = None,
    content_type: str | None = None,
    headers: Headers = (),
    delay: timedelta | None = None,
    deliver_at: datetime | None = None,
    repeated_headers: bool = True,
    limits: Limits = LIMITS,
) -> Draft:
    """Checks and encodes one event. What is given as a parameter wins over what ``@event`` declares.

    ``id`` is the caller's own and is looked up for duplicates; ``derived_id`` is one that a handler's run derives.

    Raises TypeError for what is no event (None, a class, text), MissingKey where the declared key is None, and
    InvalidEvent, naming the field, for any value, size or name that cannot be carried exactly.
    """
    declared, type_name = _type(event, type, limits)
    key_bytes = _key(event, declared, key, limits)
    body, content_type = _body(event, content_type)
    # What is seldom given costs no call here: a caller's processor has other code in its cache when it comes to an ``add``.
    own = _headers(headers, repeated_headers, limits) if headers else []
    _check_size(body, key_bytes, own, limits)
    due, delay_s = (None, None) if delay is None and deliver_at is None else _due(delay, deliver_at, limits)
    attributes: dict[str, str] = {}
    if not (subject is None and correlation_id is None and causation_id is None and traceparent is None):
        attributes = _attributes(subject, correlation_id, causation_id, traceparent, limits)
    given = id is not None
    if id is not None:
        _check_text("id", id, limits.id_chars)
    else:
        id = derived_id if derived_id is not None else uuid7()
    _check_text("source", source, limits.id_chars)
    if content_type is not None:
        _check_text("content_type", content_type, limits.id_chars)
    return Draft(
        id=id, source=source, type=type_name, topic=_topic(topic, declared, default_topic, limits), key=key_bytes,
        body=body, content_type=content_type, time=_now(),
        version=_version(version, declared),
        attributes=attributes, headers=own, deliver_at=due,
        delay_s=delay_s, strict=declared is not None and declared.strict and key_bytes is not None, given_id=given,
    )


def _now() -> str:
    seconds, ns = divmod(time.time_ns(), 1_000_000_000)
    return f"{_second(seconds)}.{ns // 1_000:06d}Z"


@lru_cache(maxsize=1)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def _type(event: object, given: str | None, limits: Limits) -> tuple[EventType | None, str]:
    """The event's declaration, if its class has one, and its type's name."""
    cls = event.__class__
    declared: EventType | None = None
    name = given
    if isinstance(event, Tombstone):
        if isinstance(event.type, type):
            declared = describe(event.type)
        elif name is None:
            name = event.type
    elif event is None:
        raise TypeError("None is no event; to say that an entity is gone add Tombstone(type, key=...)")
    elif isinstance(event, type):
        raise TypeError(f"{event.__qualname__} is a class; add an instance of it")
    elif cls not in _BARE:
        declared = find_event_type(cls)
        if declared is None and not isinstance(event, _BARE) and not is_event_like(cls):
            raise TypeError(
                f"a {cls.__qualname__} is no event: add a dataclass, a Struct, a pydantic model, a dict or bytes"
            )
    if name is None and declared is not None:
        return declared, declared.type
    if name is None:
        raise InvalidEvent(f"type= is needed: {cls.__qualname__} itself has no @event that names one")
    _check_text("type", name, limits.type_chars)
    return declared, name


def _key(event: object, declared: EventType | None, given: str | Unset | None, limits: Limits) -> bytes | None:
    if isinstance(given, Unset):
        key = _declared_key(event, declared)
        if key is None:
            return None
    elif given is None:
        return None
    elif isinstance(given, str):
        key = given
    else:
        raise InvalidEvent(f"key is a str or None, got {given.__class__.__qualname__}; write key=str(...)")
    if key.__class__ is not str:
        if isinstance(key, (bool, Enum)) or not isinstance(key, (str, int, UUID)):
            raise InvalidEvent(f"key is a {key.__class__.__qualname__}; it must be a str, an int or a UUID")
        key = str(key)
    if "\0" in key or _SURROGATE.search(key):
        raise InvalidEvent("key holds a NUL or a lone surrogate, which is no text")
    encoded: bytes = key.encode()
    if len(encoded) > limits.key_bytes:
        raise InvalidEvent(f"key has {len(encoded)} bytes, the limit is {limits.key_bytes}")
    return encoded


def _declared_key(event: object, declared: EventType | None) -> Any:
    if isinstance(event, Tombstone):
        if event.key is None:
            raise MissingKey("a tombstone says which key is gone: Tombstone(type, key=...)")
        return event.key
    rule = declared.key if declared is not None else None
    if declared is None or rule is None:
        return None
    key: Any = getattr(event, rule, None) if isinstance(rule, str) else rule(event)
    if key is None:
        name = rule if isinstance(rule, str) else getattr(rule, "__name__", "its function")
        raise MissingKey(
            f"{declared.cls.__qualname__}: the declared key ({name}) is None; flush before you build the event, or say "
            f"key=None for an event without order"
        )
    return key


def _body(event: object, content_type: str | None) -> tuple[bytes | None, str | None]:
    if isinstance(event, Tombstone):
        return None, content_type
    if isinstance(event, (bytes, bytearray, memoryview)):
        return bytes(event), content_type
    return encode(event), content_type if content_type is not None else "application/json"


def _headers(headers: Headers, repeated: bool, limits: Limits) -> list[tuple[str, bytes]]:
    if not headers:
        return []
    if len(headers) > limits.headers:
        raise InvalidEvent(f"{len(headers)} headers, the limit is {limits.headers}")
    found: list[tuple[str, bytes]] = []
    seen: set[str] = set()
    for pair in headers:
        if pair.__class__ is not tuple or len(pair) != 2:
            raise InvalidEvent(f"headers are pairs (name, bytes), got {pair.__class__.__qualname__}")
        name, value = pair
        _check_text("header name", name, limits.header_name_chars)
        lower = name.lower()
        if lower.startswith("ce_") or lower == "content-type":
            raise InvalidEvent(f"header {name!r} is the envelope's own; use the parameters of add")
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise InvalidEvent(f"header {name!r}: its value is a {value.__class__.__qualname__}, it must be bytes")
        if not repeated and name in seen:
            raise InvalidEvent(f"header {name!r} stands twice, which this service's broker cannot carry")
        seen.add(name)
        found.append((name, bytes(value)))
    return found


def _check_size(body: bytes | None, key: bytes | None, headers: list[tuple[str, bytes]], limits: Limits) -> None:
    size = len(body or b"") + len(key or b"")
    if headers:
        size += sum(len(name.encode()) + len(value) for name, value in headers)
    if size > limits.event_bytes:
        raise InvalidEvent(
            f"body, key and headers have {size} bytes, the limit is {limits.event_bytes}; keep the content elsewhere "
            f"and add a reference to it"
        )


def _topic(given: str | None, declared: EventType | None, default: str, limits: Limits) -> str:
    topic = given if given is not None else declared.topic if declared is not None else None
    if topic is None:
        topic = default
    if len(topic) > limits.topic_chars or not is_topic(topic):
        raise InvalidEvent(f"topic {topic!r:.80} is not 1 to {limits.topic_chars} characters of A-Z a-z 0-9 . _ -")
    return topic


def _version(given: int | None, declared: EventType | None) -> int:
    if given is None:
        return declared.version if declared is not None else 1
    if type(given) is not int or not 1 <= given <= VERSION_MAX:
        raise InvalidEvent(f"version is a whole number from 1 to {VERSION_MAX}, not {given!r:.40}")
    return given


def _attributes(
    subject: str | None, correlation_id: str | None, causation_id: str | None, traceparent: str | None, limits: Limits,
) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, attribute, value in (
        ("subject", "subject", subject), ("correlation_id", "correlationid", correlation_id),
        ("causation_id", "causationid", causation_id), ("traceparent", "traceparent", traceparent),
    ):
        if value is not None:
            _check_text(name, value, limits.attribute_bytes)
            if len(value.encode()) > limits.attribute_bytes:
                raise InvalidEvent(f"{name} has {len(value.encode())} bytes, the limit is {limits.attribute_bytes}")
            found[attribute] = value
    return found


def _due(delay: timedelta | None, deliver_at: datetime | None, limits: Limits) -> tuple[datetime | None, float | None]:
    if delay is None and deliver_at is None:
        return None, None
    if delay is not None:
        if deliver_at is not None:
            raise InvalidEvent("delay and deliver_at exclude each other")
        if not isinstance(delay, timedelta):
            raise InvalidEvent(f"delay is a timedelta, got {delay.__class__.__qualname__}")
        if delay > limits.delay:
            raise InvalidEvent(f"delay is {delay.days} days, the limit is {limits.delay.days}")
        return None, delay.total_seconds() if delay > timedelta(0) else None
    assert deliver_at is not None
    if not isinstance(deliver_at, datetime):
        raise InvalidEvent(f"deliver_at is a datetime, got {deliver_at.__class__.__qualname__}")
    if deliver_at.utcoffset() is None:
        raise InvalidEvent("deliver_at has no time zone; use datetime.now(timezone.utc) + ...")
    try:
        due = deliver_at.astimezone(UTC)
        too_far = due - datetime.now(UTC) > limits.delay
    except OverflowError:
        due, too_far = deliver_at, True
    if too_far:
        raise InvalidEvent(f"deliver_at {deliver_at.isoformat()} is beyond the limit of {limits.delay.days} days ahead")
    return due, None


def _check_text(field: str, value: object, limit: int) -> None:
    if value.__class__ is str and 0 < len(value) <= limit and value.isprintable():
        return
    if not isinstance(value, str):
        raise InvalidEvent(f"{field} is a str, got {value.__class__.__qualname__}")
    if not value or len(value) > limit:
        raise InvalidEvent(f"{field} has {len(value)} characters; 1 to {limit} are allowed")
    if not is_text(value):
        raise InvalidEvent(f"{field} holds a control character (NUL for one) or a lone surrogate, which is no text")
