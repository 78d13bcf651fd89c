"""Kafka's addresses: a proxy must send clients to itself, not to where the broker says that it is.

One ``Rewriter`` per connection sees both directions. It changes three kinds of answers and hands everything else on
untouched: in ApiVersions it lowers the versions of Metadata and FindCoordinator to the last ones with plain fields (and
hides what it cannot read), in those two it replaces each broker's host and port. Sans-I/O; formats as in Kafka's
protocol guide.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["FRAME_MAX", "Rewriter"]

FRAME_MAX = 200 * 1024 * 1024
_METADATA, _FIND_COORDINATOR, _API_VERSIONS, _DESCRIBE_CLUSTER = 3, 10, 18, 60
_READ = {_METADATA, _FIND_COORDINATOR, _API_VERSIONS}
_HIGHEST = {_METADATA: 8, _FIND_COORDINATOR: 2}
_IN_FLIGHT_MAX = 100_000

Moved = Callable[[str, int], tuple[str, int]]


class Rewriter:
    """``moved`` says where a broker at (host, port) is to be reached instead."""

    def __init__(self, moved: Moved) -> None:
        self._moved = moved
        self._asked: dict[int, tuple[int, int]] = {}
        self._requests = _Frames(12)
        self._answers = _Frames(8)

    def request(self, data: bytes) -> bytes:
        """Bytes from the client; returns what goes to the broker (the same)."""
        for part in self._requests.feed(data, wanted=lambda head: False):
            api, version, correlation = struct.unpack_from("!hhi", part.head, 4) if part.head else (-1, 0, 0)
            if api in _READ:
                if len(self._asked) >= _IN_FLIGHT_MAX:
                    raise ValueError("too many Kafka requests without an answer")
                self._asked[correlation] = api, version
        return data

    def answer(self, data: bytes) -> bytes:
        """Bytes from the broker; returns what goes to the client."""
        parts = []
        for part in self._answers.feed(data, wanted=self._is_read):
            if not part.whole:
                parts.append(part.head + part.body)
                continue
            (correlation,) = struct.unpack_from("!i", part.head, 4)
            api, version = self._asked.pop(correlation)
            change = {
                _METADATA: self._metadata, _FIND_COORDINATOR: self._coordinator, _API_VERSIONS: self._versions,
            }[api]
            changed = change(part.body, version)
            parts.append(struct.pack("!ii", 4 + len(changed), correlation) + changed)
        return b"".join(parts)

    def _is_read(self, head: bytes) -> bool:
        return struct.unpack_from("!i", head, 4)[0] in self._asked

    def _metadata(self, body: bytes, version: int) -> bytes:
        at = 4 if version >= 3 else 0  # throttle_time_ms
        (count,) = struct.unpack_from("!i", body, at)
        out, at = [body[: at + 4]], at + 4
        for _ in range(count):
            out.append(body[at : at + 4])  # node_id
            moved, at = self._address(body, at + 4)
            out.append(moved)
            if version >= 1:
                (length,) = struct.unpack_from("!h", body, at)
                end = at + 2 + max(length, 0)
                out.append(body[at:end])  # rack
                at = end
        return b"".join([*out, body[at:]])

    def _coordinator(self, body: bytes, version: int) -> bytes:
        at = 6 if version >= 1 else 2  # throttle_time_ms, error_code
        if version >= 1:
            (length,) = struct.unpack_from("!h", body, at)
            at += 2 + max(length, 0)  # error_message
        at += 4  # node_id
        moved, end = self._address(body, at)
        return body[:at] + moved + body[end:]

    def _address(self, body: bytes, at: int) -> tuple[bytes, int]:
        (length,) = struct.unpack_from("!h", body, at)
        end = at + 2 + length
        host = body[at + 2 : end].decode()
        (port,) = struct.unpack_from("!i", body, end)
        if host and port > 0:
            host, port = self._moved(host, port)
        encoded = host.encode()
        return struct.pack("!h", len(encoded)) + encoded + struct.pack("!i", port), end + 4

    def _versions(self, body: bytes, version: int) -> bytes:
        """An error answer to a version that the broker does not know comes in the format of version 0."""
        (error,) = struct.unpack_from("!h", body)
        if version < 3 or error:
            (count,) = struct.unpack_from("!i", body, 2)
            rows = [struct.unpack_from("!hhh", body, 6 + 6 * n) for n in range(count)]
            kept = _lowered(rows)
            packed = b"".join(struct.pack("!hhh", *row) for row in kept)
            return body[:2] + struct.pack("!i", len(kept)) + packed + body[6 + 6 * count :]
        count, at = _uvarint(body, 2)
        rows = []
        for _ in range(count - 1):
            rows.append(struct.unpack_from("!hhh", body, at))
            tags, at = _uvarint(body, at + 6)
            if tags:
                raise ValueError("an ApiVersions answer with tags in its rows is not known here")
        kept = _lowered(rows)
        packed = b"".join(struct.pack("!hhhB", *row, 0) for row in kept)
        return body[:2] + _to_uvarint(len(kept) + 1) + packed + body[at:]


def _lowered(rows: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    return [
        (api, low, min(high, _HIGHEST.get(api, high)))
        for api, low, high in rows if api != _DESCRIBE_CLUSTER
    ]


class _Part(NamedTuple):
    """A piece of the stream. ``head`` is empty where it goes on with a frame that began before."""

    head: bytes
    body: bytes
    whole: bool = False


class _Frames:
    """Splits a stream into frames: a length of four bytes, then that many. Only what is wanted whole is kept back."""

    def __init__(self, head: int) -> None:
        self._head = head
        self._kept = b""
        self._left = 0  # bytes still to come of a frame that has been handed on in part

    def feed(self, data: bytes, wanted: Callable[[bytes], bool]) -> list[_Part]:
        parts: list[_Part] = []
        data = self._kept + data
        at = 0
        while at < len(data):
            if self._left:
                passed = data[at : at + self._left]
                parts.append(_Part(b"", passed))
                self._left -= len(passed)
                at += len(passed)
                continue
            if len(data) - at < self._head:
                break
            head = data[at : at + self._head]
            (length,) = struct.unpack_from("!i", head)
            if not self._head - 4 <= length <= FRAME_MAX:
                raise ValueError(f"not a Kafka frame: it says that it has {length} bytes")
            if not wanted(head):
                parts.append(_Part(head, b""))
                self._left = length - (self._head - 4)
                at += self._head
                continue
            if len(data) - at < 4 + length:
                break
            parts.append(_Part(head, data[at + self._head : at + 4 + length], whole=True))
            at += 4 + length
        self._kept = data[at:]
        return parts


def _uvarint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at
        if shift > 28:
            raise ValueError("not an unsigned varint of 32 bits")


def _to_uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
