"""The content hash that sits beside an inbox key: two bodies are the same content when their hashes are equal [P8].

SHA-256 of canonical JSON: names sorted by code point, no white space, strings in their shortest form, number tokens as
written (1.0 and 1.00 differ). What is no JSON, or has a name twice in one object, is hashed as it stands.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import msgspec

__all__ = ["HASH_OF_NONE", "canonical", "content_hash"]

HASH_OF_NONE = bytes(32)
"""The hash of a tombstone: no body is known to have it."""

_DEPTH_MAX = 200
"""Deeper JSON is hashed as it stands, so that the verdict depends on the body and not on the stack it is hashed on."""


def content_hash(body: bytes | None) -> bytes:
    """32 bytes; equal for equal content. Headers are not part of it."""
    if body is None:
        return HASH_OF_NONE
    return sha256(canonical(body)).digest()


def canonical(body: bytes) -> bytes:
    """The canonical form of ``body``, or ``body`` itself where it has none."""
    if body.count(b"[") + body.count(b"{") > _DEPTH_MAX and _depth(body) > _DEPTH_MAX:
        return body
    try:
        fast = _encode(_decode(body), order="sorted")
    except (msgspec.DecodeError, UnicodeError):
        return _slowly(body)
    # Re-encoding never lengthens valid JSON. So equal length proves that nothing was lost: no name stood twice, and
    # there was no white space, longer escape or "-0" either. Anything else goes the exact way.
    return fast if len(fast) == len(body) else _slowly(body)


def _raw_number(token: str) -> msgspec.Raw:
    return msgspec.Raw(token.encode())


_decode = msgspec.json.Decoder(float_hook=_raw_number).decode
_encode = msgspec.json.encode


class _NotCanonical(Exception):
    pass


class _Number(str):
    __slots__ = ()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _NotCanonical
    return found


def _no_constant(token: str) -> Any:
    raise _NotCanonical


_exact = json.JSONDecoder(
    parse_float=_Number, parse_int=_Number, parse_constant=_no_constant, object_pairs_hook=_unique,
)


def _slowly(body: bytes) -> bytes:
    try:
        value = _exact.decode(body.decode())
    except (ValueError, _NotCanonical):
        return body
    parts: list[bytes] = []
    _write(value, parts)
    return b"".join(parts)


def _write(value: Any, parts: list[bytes]) -> None:
    if isinstance(value, _Number):
        parts.append(value.encode())
    elif isinstance(value, str):
        parts.append(_string(value))
    elif isinstance(value, dict):
        separator = b"{"
        for name in sorted(value):
            parts += (separator, _string(name), b":")
            _write(value[name], parts)
            separator = b","
        parts.append(b"}" if value else b"{}")
    elif isinstance(value, list):
        separator = b"["
        for item in value:
            parts.append(separator)
            _write(item, parts)
            separator = b","
        parts.append(b"]" if value else b"[]")
    else:
        parts.append(b"null" if value is None else b"true" if value else b"false")


def _string(text: str) -> bytes:
    try:
        return _encode(text)
    except UnicodeEncodeError:  # an escaped lone surrogate, which UTF-8 has no bytes for
        return json.dumps(text).encode()


def _depth(body: bytes) -> int:
    deepest = depth = 0
    in_string = escaped = False
    for byte in body:
        if in_string:
            if escaped:
                escaped = False
            elif byte == 0x5C:
                escaped = True
            elif byte == 0x22:
                in_string = False
        elif byte == 0x22:
            in_string = True
        elif byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif byte in b"]}":
            depth -= 1
    return deepest
