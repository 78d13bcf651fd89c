"""Pictures: what a run has left behind, as tables of text, and how two of them differ.

Users' tables, events out, outside calls, dead letters and keys that wait are all tables here. Values on which two undisturbed
runs do not agree are masked, so that a random id counts as a row and not as a value.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

from bothends.codecs.cloudevents import from_record
from bothends.errors import Undecodable
from bothends.stores import Store
from bothends.stores.steps import Sql, Steps
from bothends.testing.clock import table

if TYPE_CHECKING:
    from bothends.testing.exploring.brokers import ExploredBroker
    from bothends.testing.exploring.outside import OutsideCall

__all__ = ["ROWS_MAX", "Difference", "Masks", "Picture", "Row", "events_out", "letters", "masks_of", "outside_calls", "texts"]

ROWS_MAX = 10_000
"""Rows of one table that are compared."""
MASKED = "‹varies›"
EVENTS, CALLS, DEAD, WAITING = "events out", "outside calls", "dead letters", "waiting keys"
KEY, NO_KEY = "idempotency key", "none"
_VALUE_MAX = 200

Row = tuple[str, ...]


@dataclass(slots=True)
class Picture:
    """Each table's rows; ``columns`` names them. A row may be there more than once."""

    rows: dict[str, list[Row]] = field(default_factory=dict)
    columns: dict[str, tuple[str, ...]] = field(default_factory=dict)
    given_out: set[tuple[str, int]] = field(default_factory=set)
    """(table, column) of numbers that the database gives out."""

    def put(self, name: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        self.columns[name] = tuple(columns)
        self.rows[name] = list(rows)


class Difference(NamedTuple):
    """What one table has too little of and too much of, compared with the undisturbed run."""

    table: str
    columns: tuple[str, ...]
    missing: tuple[Row, ...]
    surplus: tuple[Row, ...]


class Masks(NamedTuple):
    """(table, column) whose values say nothing."""

    columns: frozenset[tuple[str, int]]
    varying: frozenset[tuple[str, int]]
    """Those of them that are made anew on each run; the others the database counts."""

    def apply(self, picture: Picture, name: str) -> Counter[Row]:
        masked = sorted(column for table, column in self.columns if table == name)
        if not masked:
            return Counter(picture.rows.get(name, ()))
        return Counter(_mask(row, masked) for row in picture.rows.get(name, ()))

    def differences(self, undisturbed: Picture, disturbed: Picture) -> list[Difference]:
        found = []
        for name in sorted(undisturbed.rows.keys() | disturbed.rows.keys()):
            if undisturbed.rows.get(name) == disturbed.rows.get(name):
                continue
            before, after = self.apply(undisturbed, name), self.apply(disturbed, name)
            if before != after:
                columns = undisturbed.columns.get(name) or disturbed.columns[name]
                missing, surplus = sorted((before - after).elements()), sorted((after - before).elements())
                found.append(Difference(name, columns, tuple(missing), tuple(surplus)))
        return found


def _mask(row: Row, columns: Sequence[int]) -> Row:
    shown = list(row)
    for column in columns:
        if column < len(shown) and shown[column] not in ("None", NO_KEY):
            shown[column] = MASKED
    return tuple(shown)


def masks_of(first: Picture, second: Picture) -> Masks:
    """The columns on which two undisturbed runs do not agree, and those that the database counts."""
    given_out = first.given_out | second.given_out
    varying: set[tuple[str, int]] = set()
    for name in first.rows.keys() & second.rows.keys():
        for column in range(len(first.columns[name])):
            a, b = _values(first, name, column), _values(second, name, column)
            if a != b and (name, column) not in given_out:
                varying.add((name, column))
    return Masks(frozenset(varying | given_out), frozenset(varying))


def _values(picture: Picture, name: str, column: int) -> Counter[str]:
    return Counter(row[column] for row in picture.rows[name] if column < len(row))


def _text(value: Any) -> str:
    if isinstance(value, memoryview):
        value = bytes(value)
    return str(value) if isinstance(value, Decimal) else repr(value)


def texts(row: Iterable[Any]) -> Row:
    """A row as pictures hold it."""
    return tuple(map(_text, row))


# What is in a picture


def letters(picture: Picture, stores: Sequence[Store]) -> Steps[None]:
    """Dead letters that are open, and keys that wait for an operator or a new version."""
    dead: list[Row] = []
    waiting: list[Row] = []
    for store in stores:
        consumers = table(store, "consumers")
        found = yield Sql(
            f"select c.name, d.type, d.reason, d.key from {table(store, 'dead_letters')} d join {consumers} c "
            f"on c.id = d.consumer where d.state = 'open' order by d.id limit {ROWS_MAX}")
        dead += (texts(row) for row in found.rows)
        found = yield Sql(
            f"select c.name, h.key, h.state from {table(store, 'blocked_keys')} h join {consumers} c "
            f"on c.id = h.consumer limit {ROWS_MAX}")
        waiting += (texts(row) for row in found.rows)
    picture.put(DEAD, ("consumer", "type", "reason", "key"), dead)
    picture.put(WAITING, ("consumer", "key", "state"), waiting)


def events_out(picture: Picture, broker: ExploredBroker, topics: Iterable[str]) -> None:
    """One table per event type and topic: each id once, with key and fields."""
    rows: dict[str, list[dict[str, str]]] = {}
    seen: set[tuple[str, str]] = set()
    for topic in topics:
        for record in broker.records(topic):
            try:
                message = from_record(record)
            except Undecodable:
                continue
            if (message.source, message.id) not in seen:
                seen.add((message.source, message.id))
                fields = {"key": _text(message.key), **_fields(message.body)}
                rows.setdefault(f"event {message.type} on {topic}", []).append(fields)
    for name, found in rows.items():
        columns = list(dict.fromkeys(column for fields in found for column in fields))
        picture.put(name, columns, (tuple(fields.get(c, "") for c in columns) for fields in found))


def _fields(body: bytes | None) -> Mapping[str, str]:
    if body is None:
        return {"body": "None"}
    try:
        value = json.loads(body)
    except ValueError:
        return {"body": _text(body[:_VALUE_MAX])}
    if not isinstance(value, dict):
        return {"body": json.dumps(value)}
    return {str(name): json.dumps(part, sort_keys=True) for name, part in value.items()}


def outside_calls(picture: Picture, calls: Iterable[OutsideCall]) -> None:
    """One table per port and method. Calls with one key and the same arguments are one; reads do not count."""
    rows: dict[str, dict[tuple[Any, ...], dict[str, str]]] = {}
    for number, call in enumerate(calls):
        if call.reads:
            continue
        same: tuple[Any, ...] = (call.key, call.arguments) if call.key is not None else (number,)
        rows.setdefault(f"call {call.name}", {})[same] = {KEY: call.key or NO_KEY, **dict(call.arguments)}
    for name, found in rows.items():
        columns = list(dict.fromkeys(column for given in found.values() for column in given))
        picture.put(name, columns, (tuple(given.get(c, "") for c in columns) for given in found.values()))
