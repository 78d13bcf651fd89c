"""Whether a value is what its annotation says, decided before it is written.

``checker_for`` compiles a type's annotations once; the check of a small dataclass then costs about a microsecond.
The rules are the annotations', with these of ours:

- ``bool`` is no ``int``; integers have at most 64 bits, signed or unsigned;
- an ``int`` of at most 2**53 may stand for a ``float`` (and arrives as one), nothing else may; a ``float`` or an ``int``
  is no ``Decimal``;
- NaN and infinity, and ``datetime`` without a zone or with an offset of odd seconds, are refused;
- a subclass is no substitute for its parent: its own fields would be lost;
- a tuple may stand for a list (and arrives as one);
- under ``Any`` only what JSON itself tells apart: text, numbers, booleans, None, and lists and dicts of these.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from msgspec import inspect as mi

from bothends.errors import ConfigError
from bothends.events import is_pydantic

__all__ = ["Checks", "Mismatch", "check_plain", "checker_for", "find_unencodable"]

Check = Callable[[Any], None]
_DEPTH_MAX = 100
_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1
_FLOAT_EXACT = 2**53
_DATETIME = "a datetime without a time zone; use datetime.now(timezone.utc)"
_OFFSET = "a UTC offset with seconds, which RFC 3339 cannot write; convert it with astimezone(timezone.utc)"


class Mismatch(Exception):
    """What is wrong, and where, from the outside in (``.lines[2].price``)."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.path = ""

    def inside(self, step: str) -> Mismatch:
        self.path = step + self.path
        return self


class Checks(NamedTuple):
    check: Check
    constrained: bool
    """Some annotation has bounds (``Meta(ge=0)``), which only reading checks."""
    unordered: bool
    """It holds sets, whose order must be made the same in every process."""


def checker_for(kind: Any) -> Checks:
    """The check of any type that msgspec knows. Raises ConfigError, naming the field, for one that it does not."""
    compiler = _Compiler()
    check = compiler.compile(mi.type_info(kind), "")
    return Checks(check, compiler.constrained, compiler.unordered)


def _wrong(value: Any, wanted: str) -> Mismatch:
    return Mismatch(f"{wanted} is declared, this is a {type(value).__name__}")


def _exactly(kind: type, wanted: str) -> Check:
    def check(value: Any) -> None:
        if type(value) is not kind:
            raise _wrong(value, wanted)

    return check


def _int(value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, (bool, Enum)):
        raise _wrong(value, "int")
    if not _INT_MIN <= value <= _INT_MAX:
        raise Mismatch("an integer of more than 64 bits; declare Decimal or str")


def _float(value: Any) -> None:
    if type(value) is int:
        if abs(value) > _FLOAT_EXACT:
            raise Mismatch("an int that a float cannot hold exactly")
    elif not isinstance(value, float):
        raise _wrong(value, "float")
    elif not math.isfinite(value):
        raise Mismatch("NaN and infinity are no JSON")


def _str(value: Any) -> None:
    if not isinstance(value, str) or isinstance(value, Enum):
        raise _wrong(value, "str")


def _decimal(value: Any) -> None:
    if not isinstance(value, Decimal):
        raise _wrong(value, "Decimal")
    if not value.is_finite():
        raise Mismatch("NaN and infinity are no JSON")


def _datetime(value: Any) -> None:
    if not isinstance(value, datetime):
        raise _wrong(value, "datetime")
    offset = value.utcoffset()
    if offset is None:
        raise Mismatch(_DATETIME)
    if offset.seconds % 60 or offset.microseconds:
        raise Mismatch(_OFFSET)


def _date(value: Any) -> None:
    if not isinstance(value, date) or isinstance(value, datetime):
        raise _wrong(value, "date")


def _time(value: Any) -> None:
    if not isinstance(value, time):
        raise _wrong(value, "time")
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
    elif kind is dict or kind is list or kind is tuple:
        _each(value, check_plain, depth)
    else:
        _object_in_plain(value)


def _json_only(value: Any, depth: int = 0) -> None:
    """Under ``Any``: what comes back as it went."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return
    if kind is int or kind is float:
        _PLAIN[kind](value)
    elif kind is dict or kind is list:
        _each(value, _json_only, depth)
    else:
        raise Mismatch(f"a {kind.__name__} under Any would arrive as something else; declare its type")


def _each(value: Any, check: Callable[[Any, int], None], depth: int) -> None:
    if depth >= _DEPTH_MAX:
        raise Mismatch(f"nested more than {_DEPTH_MAX} deep, or contains itself")
    named = isinstance(value, dict)
    for name, item in value.items() if named else enumerate(value):
        if named and type(name) is not str:
            raise Mismatch(f"the name {name!r:.40} is a {type(name).__name__}, JSON's names are text")
        try:
            check(item, depth + 1)
        except Mismatch as problem:
            raise problem.inside(f".{name}" if named else f"[{name}]") from None


def _object_in_plain(value: Any) -> None:
    kind = type(value)
    if dataclasses.is_dataclass(kind) or isinstance(value, msgspec.Struct):
        checker_for(kind).check(value)
    elif isinstance(value, Enum):
        check_plain(value.value)
    else:
        raise Mismatch(f"a {kind.__name__} has no JSON form")


def _timedelta(value: Any) -> None:
    if not isinstance(value, timedelta):
        raise _wrong(value, "timedelta")


_PLAIN: dict[type, Check] = {
    int: _int, float: _float, Decimal: _decimal, datetime: _datetime, date: _date, time: _time, UUID: _exactly(UUID, "UUID"),
    bytes: _exactly(bytes, "bytes"), timedelta: _timedelta,
}

_SCALARS: dict[type, tuple[type, bool, Check]] = {
    # annotation: the exact type, whether being of it is all there is to check, and the whole check
    mi.StrType: (str, True, _str),
    mi.BoolType: (bool, True, _exactly(bool, "bool")),
    mi.NoneType: (type(None), True, _exactly(type(None), "None")),
    mi.IntType: (int, False, _int),
    mi.FloatType: (float, False, _float),
    mi.DecimalType: (Decimal, False, _decimal),
    mi.UUIDType: (UUID, True, _exactly(UUID, "UUID")),
    mi.DateTimeType: (datetime, False, _datetime),
    mi.DateType: (date, True, _date),
    mi.TimeType: (time, False, _time),
    mi.TimeDeltaType: (timedelta, True, _timedelta),
    mi.BytesType: (bytes, True, _exactly(bytes, "bytes")),
    mi.ByteArrayType: (bytearray, True, _exactly(bytearray, "bytearray")),
    mi.RawType: (msgspec.Raw, True, _exactly(msgspec.Raw, "msgspec.Raw")),
}


class _Compiler:
    """Turns one type's description into checks. Types that contain themselves are compiled once."""

    def __init__(self) -> None:
        self.constrained = self.unordered = False
        self._objects: dict[int, list[Check]] = {}

    def compile(self, info: mi.Type, path: str) -> Check:
        self._note_constraints(info)
        if isinstance(info, mi.Metadata):
            return self.compile(info.type, path)
        if (scalar := _SCALARS.get(type(info))) is not None:
            return scalar[2]
        match info:
            case mi.AnyType():
                return _json_only
            case mi.EnumType(cls=cls) | mi.EnumType(cls=cls):
                return _instance(cls)
            case mi.LiteralType(values=values):
                return _literal(values)
            case mi.UnionType(types=types):
                return self._union(types, path)
            case mi.ListType(item_type=item):
                return _items((list, tuple), "list", self.compile(item, path + "[]"))
            case mi.VarTupleType(item_type=item):
                return _items((tuple,), "tuple", self.compile(item, path + "[]"))
            case mi.SetType(item_type=item):
                self.unordered = True
                return _items((set,), "set", self.compile(item, path + "[]"))
            case mi.FrozenSetType(item_type=item):
                self.unordered = True
                return _items((frozenset,), "frozenset", self.compile(item, path + "[]"))
            case mi.TupleType(item_types=types):
                return _positions(tuple, [self.compile(t, f"{path}[{i}]") for i, t in enumerate(types)])
            case mi.DictType(key_type=key, value_type=value):
                return _mapping(self.compile(key, path + "{}"), self.compile(value, path + "{}"))
            case mi.NamedTupleType(cls=cls, fields=fields):
                return _positions(cls, [self.compile(f.type, f"{path}.{f.name}") for f in fields])
            case mi.TypedDictType(fields=fields):
                return self._typed_dict(fields, path)
            case mi.DataclassType() | mi.StructType():
                return self._object(info, path)
        raise ConfigError(_unsupported(info, path))

    def _note_constraints(self, info: mi.Type) -> None:
        bounds = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern", "tz")
        if any(getattr(info, bound, None) is not None for bound in bounds):
            self.constrained = True

    def _union(self, types: tuple[mi.Type, ...], path: str) -> Check:
        checks = [self.compile(t, path) for t in types if not isinstance(t, mi.NoneType)]
        nullable = len(checks) < len(types)

        def check(value: Any) -> None:
            if value is None and nullable:
                return
            nearest: Mismatch | None = None
            for member in checks:
                try:
                    return member(value)
                except Mismatch as problem:
                    if nearest is None or len(problem.path) > len(nearest.path):
                        nearest = problem
            if nearest is not None:
                raise nearest

        return check

    def _object(self, info: mi.DataclassType | mi.StructType, path: str) -> Check:
        known = self._objects.get(id(info))
        if known is not None:  # inside itself: its check is not finished yet
            return lambda value: known[0](value)
        slot = self._objects[id(info)] = []
        plan: list[tuple[str, type | None, Check]] = []
        for f in info.fields:
            scalar = _SCALARS.get(type(f.type))
            plan.append((f.name, scalar[0] if scalar and scalar[1] else None, self.compile(f.type, f"{path}.{f.name}")))
        slot.append(_fields(info.cls, plan))
        return slot[0]

    def _typed_dict(self, fields: tuple[mi.Field, ...], path: str) -> Check:
        plan = {f.name: (f.required, self.compile(f.type, f"{path}.{f.name}")) for f in fields}

        def check(value: Any) -> None:
            if type(value) is not dict:
                raise _wrong(value, "dict")
            for name in value.keys() - plan.keys():
                raise Mismatch("this name is not declared and would be lost").inside(f".{name}")
            for name, (required, test) in plan.items():
                if name in value:
                    _at(f".{name}", test, value[name])
                elif required:
                    raise Mismatch("is missing").inside(f".{name}")

        return check


def _unsupported(info: mi.Type, path: str) -> str:
    cls = getattr(info, "cls", type(info))
    advice = "make the event itself a pydantic model" if is_pydantic(cls) else "declare a type that JSON can carry"
    return f"field {path.lstrip('.') or '(whole)'}: {getattr(cls, '__qualname__', cls)} cannot be carried; {advice}"


def _at(step: str, check: Check, value: Any) -> None:
    try:
        check(value)
    except Mismatch as problem:
        raise problem.inside(step) from None


def _fields(cls: type, plan: list[tuple[str, type | None, Check]]) -> Check:
    def check(value: Any) -> None:
        if type(value) is not cls:
            raise _wrong(value, cls.__qualname__)
        name = ""
        try:
            for name, simple, test in plan:
                item = getattr(value, name)
                if type(item) is not simple and item is not msgspec.UNSET:
                    test(item)
        except Mismatch as problem:
            raise problem.inside(f".{name}") from None
        except AttributeError:
            raise Mismatch("is not set").inside(f".{name}") from None

    return check


def _instance(cls: type) -> Check:
    def check(value: Any) -> None:
        if not isinstance(value, cls):
            raise _wrong(value, cls.__qualname__)

    return check


def _literal(values: tuple[Any, ...]) -> Check:
    allowed = {(type(v), v) for v in values}

    def check(value: Any) -> None:
        if not isinstance(value, (str, int)) or (type(value), value) not in allowed:
            raise Mismatch(f"is none of {', '.join(map(repr, values))}")

    return check


def _items(kinds: tuple[type, ...], wanted: str, item_check: Check) -> Check:
    def check(value: Any) -> None:
        if type(value) not in kinds:
            raise _wrong(value, wanted)
        position = 0
        try:
            for position, item in enumerate(value):  # noqa: B007 - names the place of a mismatch
                item_check(item)
        except Mismatch as problem:
            raise problem.inside(f"[{position}]") from None

    return check


def _positions(kind: type, checks: list[Check]) -> Check:
    def check(value: Any) -> None:
        if type(value) is not kind:
            raise _wrong(value, kind.__qualname__)
        if len(value) != len(checks):
            raise Mismatch(f"has {len(value)} items, {len(checks)} are declared")
        for position, (item, test) in enumerate(zip(value, checks, strict=True)):
            _at(f"[{position}]", test, item)

    return check


def _mapping(key_check: Check, value_check: Check) -> Check:
    def check(value: Any) -> None:
        if type(value) is not dict:
            raise _wrong(value, "dict")
        for name, item in value.items():
            _at(f"[name {name!r:.40}]", key_check, name)
            _at(f".{name}", value_check, item)

    return check


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
