"""Message: the envelope of one event, and Delivery: where a copy of it came from.

Attribute names are those of CloudEvents 1.0; ``dataversion`` and the ids of correlation and causation are extensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Headers", "Message", "Origin", "Record"]

Headers = Sequence[tuple[str, bytes]]


class Origin(NamedTuple):
    """The place of one copy in a broker's log."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Message:
    """One event as a consumer gets it, or as the relay sends it.

    ``headers`` holds what is not an attribute of the envelope, in wire order, repeated names included; values are
    the raw bytes. ``body`` is ``None`` for a tombstone, which differs from ``b""`` and from JSON's ``null``.
    """

    id: str
    source: str
    type: str
    key: bytes | None = None
    headers: Headers = ()
    body: bytes | None = None
    time: str | None = None
    """RFC 3339, as written by the producer."""
    subject: str | None = None
    content_type: str | None = None
    version: int | None = None
    """``dataversion``; ``None`` when the producer does not say."""
    correlation_id: str | None = None
    causation_id: str | None = None
    traceparent: str | None = None
    extensions: dict[str, str] = field(default_factory=dict)
    """Other CloudEvents attributes, without the ``ce_`` prefix."""
    topic: str = ""
    partition: int = -1
    offset: int = -1


@dataclass(frozen=True, slots=True)
class Record:
    """Raw bytes of one copy, as a broker delivers it, before anything is decoded. Header names are decoded as
    UTF-8 with ``surrogateescape``, so that no header can stop a consumer; values stay bytes."""

    origin: Origin
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int
    """When the broker (or its producer) stamped it, Unix milliseconds; -1 unknown."""
