"""JSON bodies with exact values: what a handler gets is what was added, on every attempt.

``Decimal``, ``UUID``, aware ``datetime``, ``date``, ``time`` and ``bytes`` are JSON strings (RFC 3339; base64),
integers are JSON numbers of at most 64 bits. Values are checked against the annotations of their fields before anything
is written (``codecs/checks.py``). Reading ignores unknown fields, honours defaults, and reads a ``Decimal`` from a
string or from a number token, never by way of a float.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Protocol

import msgspec

from bothends.codecs.checks import checker_for
from bothends.codecs.values import Mismatch, as_base, check_plain, find_unencodable
from bothends.errors import BothendsError, ConfigError, InvalidEvent, Undecodable
from bothends.events import EventType, is_pydantic

__all__ = ["Codec", "codec_for", "decode", "encode", "encode_plain"]


_SURROGATE = "a lone surrogate is no text; clean it first"


class Codec(Protocol):
    """Bytes of one Python type, both ways."""

    def encode(self, value: Any) -> bytes:
        """Raises InvalidEvent, naming the field, for a value that would not arrive as it is."""
        ...

    def decode(self, body: bytes) -> Any:
        """Raises Undecodable: reason ``schema`` for valid JSON of another shape, ``undecodable`` for no JSON."""
        ...


def encode(value: object) -> bytes:
    """The body of an event: a dataclass, a Struct, a pydantic model, a dict or a list.

    A dict declares no types: exact values in it are written in their JSON form, a ``Decimal`` as a string and so on.

    Raises InvalidEvent, naming the field; ConfigError for a class with a field that JSON cannot carry.
    """
    if isinstance(value, (dict, list)):
        return encode_plain(value)
    cls: Any = type(value)
    return codec_for(cls).encode(value)


def decode(body: bytes | None, event: EventType) -> object:
    """The event in ``body``; ``None`` for a tombstone. Raises Undecodable."""
    if body is None:
        return None
    return codec_for(event.cls).decode(body)


@lru_cache(maxsize=4096)
def codec_for(kind: Any) -> Codec:
    """The codec of a type: an event class, or anything that annotations can say (``Receipt``, ``list[int]``, ``str``).
    Made once per type. Raises ConfigError for a type that JSON cannot carry exactly."""
    if isinstance(kind, type) and issubclass(kind, bytes) and kind is not bytes:
        return _RawCodec(kind)
    if isinstance(kind, type) and is_pydantic(kind):
        from bothends.codecs.models import ModelCodec

        return ModelCodec(kind)
    return _TypeCodec(kind)


class _RawCodec:
    """A subclass of ``bytes``: the body as it is."""

    def __init__(self, kind: type[bytes]) -> None:
        self._kind = kind

    def encode(self, value: bytes) -> bytes:
        return bytes(value)

    def decode(self, body: bytes) -> bytes:
        return self._kind(body)


class _TypeCodec:
    def __init__(self, kind: Any) -> None:
        self._name = getattr(kind, "__qualname__", str(kind))
        try:
            self._decode = msgspec.json.Decoder(kind).decode
            checks = checker_for(kind)
        except BothendsError:
            raise
        except Exception as error:
            raise ConfigError(
                f"{self._name} cannot be carried as JSON: {error}. Its annotations must be importable where it is "
                f"defined, and of types that JSON tells apart"
            ) from error
        self._check = checks.check
        self._proof = checks.constrained
        self._encode = msgspec.json.Encoder(enc_hook=as_base, order="deterministic" if checks.sort else None).encode

    def encode(self, value: Any) -> bytes:
        try:
            self._check(value)
            body = self._encode(value)
            if self._proof:
                self._decode(body)
        except Mismatch as problem:
            raise InvalidEvent(f"{self._name}{problem.path}: {problem}") from None
        except UnicodeEncodeError:
            raise InvalidEvent(f"{self._name}{find_unencodable(value)}: {_SURROGATE}") from None
        except RecursionError:
            raise InvalidEvent(f"{self._name}: nested too deeply, or contains itself") from None
        except msgspec.ValidationError as error:
            raise InvalidEvent(f"{self._name}: no reader would accept it: {error}") from error
        return body

    def decode(self, body: bytes) -> Any:
        try:
            return self._decode(body)
        except msgspec.ValidationError as error:
            raise Undecodable(f"{self._name}: {error}", reason="schema") from error
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise Undecodable(f"{self._name}: no JSON: {error}") from error
        except Exception as error:  # a __post_init__ of the user's may raise anything; a consumer must not die of it
            raise Undecodable(f"{self._name}: {type(error).__name__}: {error}", reason="schema") from error


_plain = msgspec.json.Encoder(enc_hook=as_base).encode


def encode_plain(value: Any) -> bytes:
    """JSON of a value without a declared type (dicts, lists, scalars). Raises InvalidEvent, naming the place."""
    try:
        check_plain(value)
        return _plain(value)
    except Mismatch as problem:
        raise InvalidEvent(f"body{problem.path}: {problem}") from None
    except UnicodeEncodeError:
        raise InvalidEvent(f"body{find_unencodable(value)}: {_SURROGATE}") from None
    except RecursionError:
        raise InvalidEvent("body: nested too deeply, or contains itself") from None
