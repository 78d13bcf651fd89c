"""From rows of the outbox to records for a publisher: the hot path. Bodies are never decoded.

The same headers as ``codecs.cloudevents.to_headers`` makes (a test compares); what repeats from row to row is made once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bothends.codecs.cloudevents import ATTRIBUTES, is_text, unpack_attributes, unpack_headers
from bothends.ports import Checked, Outgoing

__all__ = ["ATTEMPTS", "BODY", "FLAG", "KEY", "LANE", "SEQ", "STATE", "TOPIC", "Row", "judged", "outgoing"]

Row = tuple[Any, ...]

# Where the columns are in a row that a store hands over. The id and the time, which never repeat, come as bytes.
SEQ, FLAG, TOPIC, KEY, BODY = 1, 2, 6, 7, 8
ATTEMPTS, STATE, LANE = 14, 15, 16
"""In held rows only."""

_ID, _END = 3, 14
"""What of a row becomes its record."""
_CACHED_MAX = 1000
_SPEC = ("ce_specversion", b"1.0")
_CE = {name: f"ce_{name}" for name in ATTRIBUTES}


class _Pairs(dict[Any, tuple[str, bytes]]):
    """Headers by their value, of one name; bounded."""

    def __init__(self, name: str, encode: Callable[[Any], bytes]) -> None:
        super().__init__()
        self._name, self._encode = name, encode

    def __missing__(self, value: Any) -> tuple[str, bytes]:
        if len(self) >= _CACHED_MAX:
            self.clear()
        pair = self[value] = (self._name, self._encode(value))
        return pair


_sources = _Pairs("ce_source", str.encode)
_types = _Pairs("ce_type", str.encode)
_contents = _Pairs("content-type", str.encode)
_versions = _Pairs("ce_dataversion", lambda version: str(version).encode())


def outgoing(rows: Sequence[Row]) -> Checked:
    """One record per row. Raises ValueError where the attributes or headers of one cannot be read, or have names that
    cannot be written: the decoders refuse all that is not UTF-8, which leaves NUL."""
    new, cls = tuple.__new__, Outgoing
    records = Checked()
    append = records.append
    envelope: tuple[Any, ...] = ()
    by = of = in_version = as_content = _SPEC
    own_before: bytes | None = None
    own_pairs: list[tuple[str, bytes]] = []
    for row in rows:
        id, source, type, topic, key, body, content, time, version, attributes, own = row[_ID:_END]
        if envelope != (source, type, version, content):
            envelope = (source, type, version, content)
            by, of, in_version = _sources[source], _types[type], _versions[version]
            if content is not None:
                as_content = _contents[content]
        headers = [_SPEC, ("ce_id", id), by, of, ("ce_time", time), in_version]
        if content is not None:
            headers.append(as_content)
        if key:
            try:
                text = key.decode()
                if text.isprintable() or is_text(text):
                    headers.append(("ce_partitionkey", key))
            except UnicodeDecodeError:
                pass
        if attributes is not None:
            pairs = [(_CE.get(n) or f"ce_{n}", v.encode()) for n, v in unpack_attributes(attributes).items()]
            _refuse_nul(pairs)
            headers += pairs
        if own is not None:
            if own != own_before:
                own_pairs = unpack_headers(own)
                if b"\0" in own:
                    _refuse_nul(own_pairs)
                own_before = own
            headers += own_pairs
        append(new(cls, (topic, key, body, headers)))
    return records


def _refuse_nul(pairs: Sequence[tuple[str, bytes]]) -> None:
    for name, _ in pairs:
        if "\0" in name:
            raise ValueError(f"NUL in the header name {name!r}")


def judged(rows: Sequence[Row]) -> list[tuple[Row, str]]:
    """Each row with why its record cannot be made, where somebody else wrote what cannot be read; empty: it can."""
    found: list[tuple[Row, str]] = []
    for row in rows:
        try:
            outgoing([row])
        except ValueError as error:
            found.append((row, f"{type(error).__name__}: {error}"))
        else:
            found.append((row, ""))
    return found
