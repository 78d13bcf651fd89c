"""Whether a value is what its annotation says, decided before it is written.

``checker_for`` compiles a type's annotations once; the check of a small dataclass then costs about a microsecond.
The rules are the annotations', with these of ours:

- ``bool`` is no ``int``; integers have at most 64 bits, signed or unsigned;
- an ``int`` of at most 2**53 may stand for a ``float`` (and arrives as one); neither is a ``Decimal``;
- NaN and infinity, and ``datetime`` without a zone or with an offset of odd seconds, are refused;
- a subclass of an object's class is no substitute for it: its own fields would be lost; subclasses of plain types are
  fine and arrive as their base type;
- a tuple may stand for a list (and arrives as one);
- under ``Any`` only what JSON itself tells apart: text, numbers, booleans, None, and lists and dicts of these.
"""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from msgspec import inspect as mi

from bothends.codecs.values import (
    Check,
    Mismatch,
    check_bytes,
    check_date,
    check_datetime,
    check_decimal,
    check_float,
    check_int,
    check_json_only,
    check_str,
    check_time,
    check_timedelta,
    check_uuid,
    exactly,
    wrong,
)
from bothends.errors import ConfigError
from bothends.events import is_pydantic

__all__ = ["Checks", "checker_for"]


class Checks(NamedTuple):
    check: Check
    constrained: bool
    """Some annotation has bounds (``Meta(ge=0)``), which only reading checks."""
    sort: bool
    """It holds sets, whose order differs between processes: sort, so that the content hash is the same. (Where names
    of a dict are no text, msgspec cannot sort; such a body has the order it has.)"""


def checker_for(kind: Any) -> Checks:
    """The check of any type that msgspec knows. Raises ConfigError, naming the field, for one that it does not."""
    compiler = _Compiler()
    check = compiler.compile(mi.type_info(kind), "")
    return Checks(check, compiler.constrained, compiler.sets and not compiler.odd_names)


_SCALARS: dict[type, tuple[type, bool, Check]] = {
    # annotation: the exact type, whether being of it is all there is to check, and the whole check
    mi.StrType: (str, True, check_str),
    mi.BoolType: (bool, True, exactly(bool, "bool")),
    mi.NoneType: (type(None), True, exactly(type(None), "None")),
    mi.IntType: (int, False, check_int),
    mi.FloatType: (float, False, check_float),
    mi.DecimalType: (Decimal, False, check_decimal),
    mi.UUIDType: (UUID, True, check_uuid),
    mi.DateTimeType: (datetime, False, check_datetime),
    mi.DateType: (date, True, check_date),
    mi.TimeType: (time, False, check_time),
    mi.TimeDeltaType: (timedelta, True, check_timedelta),
    mi.BytesType: (bytes, True, check_bytes),
    mi.ByteArrayType: (bytearray, True, exactly(bytearray, "bytearray")),
    mi.RawType: (msgspec.Raw, True, exactly(msgspec.Raw, "msgspec.Raw")),
}


class _Compiler:
    """Turns one type's description into checks. Types that contain themselves are compiled once."""

    def __init__(self) -> None:
        self.constrained = self.sets = self.odd_names = False
        self._objects: dict[int, list[Check]] = {}

    def compile(self, info: mi.Type, path: str) -> Check:
        self._note_constraints(info)
        if isinstance(info, mi.Metadata):
            return self.compile(info.type, path)
        if (scalar := _SCALARS.get(type(info))) is not None:
            return scalar[2]
        match info:
            case mi.AnyType():
                return check_json_only
            case mi.EnumType(cls=cls):
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
                self.sets = True
                return _items((set,), "set", self.compile(item, path + "[]"))
            case mi.FrozenSetType(item_type=item):
                self.sets = True
                return _items((frozenset,), "frozenset", self.compile(item, path + "[]"))
            case mi.TupleType(item_types=types):
                return _positions(tuple, [self.compile(t, f"{path}[{i}]") for i, t in enumerate(types)])
            case mi.DictType(key_type=key, value_type=value):
                self.odd_names = self.odd_names or not isinstance(key, mi.StrType)
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
        slot.append(_fields(getattr(info.cls, "__origin__", info.cls), plan))  # Box[int]: its values are Boxes
        return slot[0]

    def _typed_dict(self, fields: tuple[mi.Field, ...], path: str) -> Check:
        plan = {f.name: (f.required, self.compile(f.type, f"{path}.{f.name}")) for f in fields}

        def check(value: Any) -> None:
            if type(value) is not dict:
                raise wrong(value, "dict")
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
            raise wrong(value, cls.__qualname__)
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
            raise wrong(value, cls.__qualname__)

    return check


def _literal(values: tuple[Any, ...]) -> Check:
    allowed = {(type(v), v) for v in values}

    def check(value: Any) -> None:
        if not isinstance(value, (str, int)) or (type(value), value) not in allowed:
            raise Mismatch(f"is none of {', '.join(map(repr, values))}")

    return check


def _items(kinds: tuple[Any, ...], wanted: str, item_check: Check) -> Check:
    def check(value: Any) -> None:
        if not isinstance(value, kinds):
            raise wrong(value, wanted)
        position = 0
        try:
            for position, item in enumerate(value):  # noqa: B007 - names the place of a mismatch
                item_check(item)
        except Mismatch as problem:
            raise problem.inside(f"[{position}]") from None

    return check


def _positions(kind: Any, checks: list[Check]) -> Check:
    def check(value: Any) -> None:
        if type(value) is not kind:
            raise wrong(value, kind.__qualname__)
        if len(value) != len(checks):
            raise Mismatch(f"has {len(value)} items, {len(checks)} are declared")
        for position, (item, test) in enumerate(zip(value, checks, strict=True)):
            _at(f"[{position}]", test, item)

    return check


def _mapping(key_check: Check, value_check: Check) -> Check:
    def check(value: Any) -> None:
        if not isinstance(value, dict):
            raise wrong(value, "dict")
        for name, item in value.items():
            _at(f"[name {name!r:.40}]", key_check, name)
            _at(f".{name}", value_check, item)

    return check
