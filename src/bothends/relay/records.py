"""From rows of the outbox to records for a publisher: the hot path. Bodies are never decoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bothends.codecs.cloudevents import to_headers
from bothends.ports import Outgoing

__all__ = ["ATTEMPTS", "BODY", "FLAG", "KEY", "LANE", "SEQ", "STATE", "TOPIC", "Row", "outgoing", "readable"]

Row = tuple[Any, ...]

# Where the columns are in a row that a store hands over.
SEQ, LANE, FLAG, TOPIC, KEY, BODY = 1, 2, 3, 7, 8, 9
ATTEMPTS, STATE = 15, 16
"""In held rows only."""


def outgoing(rows: Sequence[Row]) -> list[Outgoing]:
    """One record per row. Raises ValueError where the attributes or headers of one cannot be read."""
    new = tuple.__new__
    return [
        new(Outgoing, (topic, key, body, to_headers(id, source, type, time, version, key, content, attributes, headers)))
        for _, _, _, _, id, source, type, topic, key, body, content, time, version, attributes, headers, *_ in rows
    ]


def readable(rows: Sequence[Row]) -> tuple[list[Row], list[tuple[Row, str]]]:
    """Rows whose record can be made, and the others with what is wrong: somebody else wrote to the table."""
    good: list[Row] = []
    bad: list[tuple[Row, str]] = []
    for row in rows:
        try:
            outgoing([row])
        except ValueError as error:
            bad.append((row, f"{type(error).__name__}: {error}"))
        else:
            good.append(row)
    return good, bad
