"""Pydantic models as bodies. Their own field types say how they are written and read; that a value survives is proven
by reading back what was written."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from typing import Any

import msgspec
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError

from bothends.errors import InvalidEvent, Undecodable

__all__ = ["ModelCodec"]


class ModelCodec:
    def __init__(self, cls: type[BaseModel]) -> None:
        self._cls = cls
        self._name = cls.__qualname__
        if not cls.__pydantic_complete__:
            cls.model_rebuild()
        self._dump = cls.__pydantic_serializer__.to_json
        self._read = cls.__pydantic_validator__.validate_json
        self._read_python = cls.__pydantic_validator__.validate_python
        self._decimals = _mentions_decimal(cls.__pydantic_core_schema__)

    def encode(self, value: BaseModel) -> bytes:
        try:
            for path, problem in _refused(value, ""):
                raise InvalidEvent(f"{self._name}{path}: {problem}")
            body = self._dump(value, by_alias=True, round_trip=True, warnings=False)
            back = self._read(body)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(step) for step in first["loc"])
            raise InvalidEvent(f"{self._name}.{where}: no reader would accept it: {first['msg']}") from None
        except (PydanticSerializationError, UnicodeEncodeError) as error:
            raise InvalidEvent(f"{self._name}{self._unwritable(value)}: cannot be written as JSON: {error}") from None
        except RecursionError:
            raise InvalidEvent(f"{self._name}: nested too deeply, or contains itself") from None
        if (place := _difference(value, back, "")) is not None:
            raise InvalidEvent(f"{self._name}{place}: would not arrive as it is")
        return body

    def decode(self, body: bytes) -> Any:
        try:
            if self._decimals and (exact := _exact_numbers(body)) is not None:
                return self._read_exactly(body, exact)
            return self._read(body)
        except ValidationError as error:
            errors = error.errors(include_url=False, include_input=False)
            reason = "undecodable" if errors[0]["type"] == "json_invalid" else "schema"
            text = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in errors[:5])
            raise Undecodable(f"{self._name}: {text}", reason=reason) from error
        except (UnicodeError, RecursionError) as error:
            raise Undecodable(f"{self._name}: no JSON: {error}") from error
        except Undecodable:
            raise
        except Exception as error:  # a validator of the user's may raise anything; a consumer must not die of it
            raise Undecodable(f"{self._name}: {type(error).__name__}: {error}", reason="schema") from error

    def _read_exactly(self, body: bytes, exact: Any) -> Any:
        """pydantic reads number tokens as floats first. So give it Decimals: as Python values, and where a strict model
        wants JSON, as strings."""
        try:
            return self._read_python(exact)
        except ValidationError:
            pass
        try:
            return self._read(msgspec.json.encode(exact))
        except ValidationError:
            self._read(body)  # its error is the one to show
        raise Undecodable(f"{self._name}: a number that a float would round; send Decimals as strings", reason="schema")

    def _unwritable(self, value: BaseModel) -> str:
        for name in value.__dict__:
            try:
                self._dump(value, include={name}, round_trip=True, warnings=False)
            except (PydanticSerializationError, UnicodeEncodeError):
                return f".{name}"
        return ""


def _exact_numbers(body: bytes) -> Any:
    """The body's values with Decimals for numbers, if a float would change one of them; else None."""
    rounded = False

    def number(token: str) -> Decimal:
        nonlocal rounded
        rounded = rounded or repr(float(token)) != token
        return Decimal(token)

    try:
        value = msgspec.json.Decoder(float_hook=number).decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError, ArithmeticError):
        return None  # reading it the ordinary way says what is wrong
    return value if rounded else None


def _mentions_decimal(schema: Any) -> bool:
    stack, seen = [schema], set[int]()
    while stack:
        part = stack.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, dict):
            if part.get("type") == "decimal":
                return True
            stack.extend(part.values())
        elif isinstance(part, (list, tuple)):
            stack.extend(part)
    return False


def _refused(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Values that pydantic would write, but not as they are."""
    if isinstance(value, BaseModel):
        for name, item in value.__dict__.items():
            yield from _refused(item, f"{path}.{name}")
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _refused(item, f"{path}.{name}")
    elif isinstance(value, (list, tuple, set, frozenset)):
        for position, item in enumerate(value):
            yield from _refused(item, f"{path}[{position}]")
    elif isinstance(value, datetime):
        if value.utcoffset() is None:
            yield path, "a datetime without a time zone; use datetime.now(timezone.utc)"
    elif isinstance(value, (float, Decimal)) and not math.isfinite(value):
        yield path, "NaN and infinity are no JSON"


def _difference(value: Any, back: Any, path: str) -> str | None:
    """Where what was read back differs, in type or value; None where it does not."""
    if type(value) is not type(back):
        return path
    if isinstance(value, BaseModel):
        place = _difference(value.__dict__, back.__dict__, path)
        return place if place is not None else _difference(value.__pydantic_extra__, back.__pydantic_extra__, path)
    if isinstance(value, dict):
        if value.keys() != back.keys():
            return path
        return next((p for k, v in value.items() if (p := _difference(v, back[k], f"{path}.{k}")) is not None), None)
    if isinstance(value, (list, tuple)):
        if len(value) != len(back):
            return path
        pairs = enumerate(zip(value, back, strict=True))
        return next((p for n, (v, b) in pairs if (p := _difference(v, b, f"{path}[{n}]")) is not None), None)
    return None if value == back else path
