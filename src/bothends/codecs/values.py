"""Single values: whether JSON carries them exactly. What is wrong is a ``Mismatch`` that knows the place."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec

__all__ = [
    "Check", "Mismatch", "as_base", "check_bytes", "check_date", "check_datetime", "check_decimal", "check_float", "check_int",
    "check_json_only", "check_plain", "check_str", "check_time", "check_timedelta", "check_uuid", "exactly",
    "find_unencodable", "wrong",
]

Check = Callable[[Any], None]
_DEPTH_MAX = 100
_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1
_FLOAT_EXACT = 2**53
_OFFSET = "a UTC offset with seconds, which RFC 3339 cannot write; convert it with astimezone(timezone.utc)"


class Mismatch(Exception):
    """What is wrong, and where, from the outside in (``.lines[2].price``)."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.path = ""

    def inside(self, step: str) -> Mismatch:
        self.path = step + self.path
        return self


def wrong(value: Any, wanted: str) -> Mismatch:
    return Mismatch(f"{wanted} is declared, got {type(value).__name__}")


def exactly(kind: type, wanted: str) -> Check:
    def check(value: Any) -> None:
        if type(value) is not kind:
            raise wrong(value, wanted)

    return check


def check_int(value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, (bool, Enum)):
        raise wrong(value, "int")
    if not _INT_MIN <= value <= _INT_MAX:
        raise Mismatch("an integer of more than 64 bits; declare Decimal or str")


def check_float(value: Any) -> None:
    if type(value) is int:
        if abs(value) > _FLOAT_EXACT:
            raise Mismatch("an int that a float cannot hold exactly")
    elif not isinstance(value, float):
        raise wrong(value, "float")
    elif not math.isfinite(value):
        raise Mismatch("NaN and infinity are no JSON")


def check_str(value: Any) -> None:
    if not isinstance(value, str) or isinstance(value, Enum):
        raise wrong(value, "str")


def check_decimal(value: Any) -> None:
    if not isinstance(value, Decimal):
        raise wrong(value, "Decimal")
    if not value.is_finite():
        raise Mismatch("NaN and infinity are no JSON")


def check_datetime(value: Any) -> None:
    if not isinstance(value, datetime):
        raise wrong(value, "datetime")
    offset = value.utcoffset()
    if offset is None:
        raise Mismatch("a datetime without a time zone; use datetime.now(timezone.utc)")
    if offset.seconds % 60 or offset.microseconds:
        raise Mismatch(_OFFSET)


def check_date(value: Any) -> None:
    if not isinstance(value, date) or isinstance(value, datetime):
        raise wrong(value, "date")


def check_time(value: Any) -> None:
    if not isinstance(value, time):
        raise wrong(value, "time")
    offset = value.utcoffset()
    if value.tzinfo is not None and offset is None:
        raise Mismatch("a time whose zone has no offset without a date; use a fixed offset or none")
    if offset is not None and (offset.seconds % 60 or offset.microseconds):
        raise Mismatch(_OFFSET)


def check_plain(value: Any, depth: int = 0) -> None:
    """A value without a declared type: JSON's own types, and exact types, which are written in their JSON form."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return
    test = _PLAIN.get(kind)
    if test is not None:
        test(value)
    elif isinstance(value, (dict, list, tuple)):
        _each(value, check_plain, depth)
    elif isinstance(value, Enum):
        check_plain(value.value, depth)
    elif (base := _base_kind(value)) is not None:
        _PLAIN.get(base, check_str)(value)
    else:
        raise Mismatch(f"{kind.__name__} has no JSON form; use dicts, lists, text, numbers and the exact types")


def check_json_only(value: Any, depth: int = 0) -> None:
    """Under ``Any``: what comes back as it went."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return
    if kind is int or kind is float:
        _PLAIN[kind](value)
    elif kind is dict or kind is list:
        _each(value, check_json_only, depth)
    else:
        raise Mismatch(f"{kind.__name__} under Any would arrive as something else; declare its type")


def _each(value: Any, check: Callable[[Any, int], None], depth: int) -> None:
    if depth >= _DEPTH_MAX:
        raise Mismatch(f"nested more than {_DEPTH_MAX} deep, or contains itself")
    named = isinstance(value, dict)
    for name, item in value.items() if named else enumerate(value):
        if named and type(name) is not str:
            raise Mismatch(f"the name {name!r:.40} is of type {type(name).__name__}, JSON's names are text")
        try:
            check(item, depth + 1)
        except Mismatch as problem:
            raise problem.inside(f".{name}" if named else f"[{name}]") from None


def check_bytes(value: Any) -> None:
    if not isinstance(value, bytes):
        raise wrong(value, "bytes")


def check_uuid(value: Any) -> None:
    if not isinstance(value, UUID):  # asyncpg has a subclass of its own
        raise wrong(value, "UUID")


def check_timedelta(value: Any) -> None:
    if not isinstance(value, timedelta):
        raise wrong(value, "timedelta")


_PLAIN: dict[type, Check] = {
    int: check_int, float: check_float, Decimal: check_decimal, datetime: check_datetime, date: check_date,
    time: check_time, timedelta: check_timedelta, UUID: check_uuid, bytes: check_bytes,
}

def _base_kind(value: Any) -> type | None:
    """The type of ours that ``value``'s type is made from; datetime before date, whose child it is."""
    for base in (str, int, float, Decimal, datetime, date, time, timedelta, UUID, bytes):
        if isinstance(value, base):
            return base
    return None


def as_base(value: Any) -> Any:
    """A value of a type made from one of ours (a frozen clock's datetime, a numpy float) as its base type, which is what
    arrives. Encoders call it for what they do not know."""
    base = _base_kind(value)
    if base is str:
        return str.__str__(value)
    if base is int:
        return int.__index__(value)
    if base is float:
        return float.__float__(value)
    if base is Decimal:
        return Decimal(value)
    if base is datetime:
        return datetime.combine(as_base(value.date()), as_base(value.timetz()))
    if base is date:
        return date(value.year, value.month, value.day)
    if base is time:
        return time(value.hour, value.minute, value.second, value.microsecond, value.tzinfo, fold=value.fold)
    if base is timedelta:
        return timedelta(value.days, value.seconds, value.microseconds)
    if base is bytes:
        return b"".join([value])
    raise TypeError(f"{type(value).__name__} has no JSON form")


def find_unencodable(value: Any) -> str:
    """The path of the first text with a lone surrogate."""
    for path, text in _texts(value, ""):
        try:
            text.encode()
        except UnicodeEncodeError:
            return path
    return ""


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for name, item in value.items():
            step = f"{path}.{name!r}" if not str(name).isidentifier() else f"{path}.{name}"
            yield from _texts(name, step)
            yield from _texts(item, step)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for position, item in enumerate(value):
            yield from _texts(item, f"{path}[{position}]")
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from _texts(getattr(value, name, None), f"{path}.{name}")
    elif dataclasses.is_dataclass(value):
        for f in dataclasses.fields(value):
            yield from _texts(getattr(value, f.name, None), f"{path}.{f.name}")
