"""Events: what a class must say to be one. ``@event`` marks a class, ``describe`` reads the mark.

The mark lies in the class's own ``__dict__``; there is no registry, so two services in one process never mix, and a
subclass is an event only when it is marked itself.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from bothends.errors import ConfigError

__all__ = [
    "NOT_DONE", "UNSET", "EventId", "EventType", "NotDone", "Tombstone", "Unset", "describe", "event",
    "find_event_type", "is_event_like", "is_pydantic", "is_topic",
]

E = TypeVar("E")
EventId: TypeAlias = str
KeyRule: TypeAlias = "str | Callable[[Any], str | None] | None"

_MARK = "__bothends_event__"
TYPE_MAX = 255
TOPIC_MAX = 249
VERSION_MAX = 2**31 - 1
_TOPIC = re.compile(r"[A-Za-z0-9._-]+")


class Unset(enum.Enum):
    UNSET = 0


UNSET: Final = Unset.UNSET
"""As ``key``: the event's declared key. ``None`` means no key, on purpose."""


class NotDone(enum.Enum):
    NOT_DONE = 0


NOT_DONE: Final = NotDone.NOT_DONE
"""Returned by the ``if_unknown`` function of ``ctx.once``: it has not happened, call again."""


@dataclass(frozen=True, slots=True)
class EventType:
    """What ``@event`` declared about ``cls``."""

    type: str
    version: int
    key: str | Callable[[Any], str | None] | None
    topic: str | None
    strict: bool
    """Transactions that add an event of one key wait for each other, so order holds also where they overlap."""
    cls: Any
    """The class itself."""


class Tombstone:
    """An event without a body: the entity ``key`` is gone (compacted topics). Differs from ``b""`` and JSON's ``null``.

    ``type`` is a type name, or a class with ``@event``, whose type, version and topic it takes.
    """

    __slots__ = ("key", "type")

    def __init__(self, type: str | type[Any], *, key: str) -> None:
        self.type = type
        self.key = key

    def __repr__(self) -> str:
        return f"Tombstone({self.type!r}, key={self.key!r})"


def event(
    type: str, *, version: int = 1, key: KeyRule = None, topic: str | None = None, strict: bool = False,
) -> Callable[[type[E]], type[E]]:
    """Marks a dataclass, a msgspec Struct or a pydantic model as an event. Stands above ``@dataclass``. A subclass of
    ``bytes`` is an event whose body is those bytes as they are, whatever their format.

    ``key`` names the attribute (or is a function of the event) that says which entity the event is about: order is
    kept per key. ``topic`` defaults to ``<service>.events``. ``version`` rises when a field is removed, renamed or
    retyped (1 to 2**31 - 1). ``strict=True`` makes transactions of one key wait for each other.

    Raises ConfigError for a class of another kind, ``@dataclass`` above ``@event``, an unknown key attribute, and
    names out of range.
    """
    if type.__class__ is not str or not 1 <= len(type) <= TYPE_MAX or not type.isprintable():
        raise ConfigError(f"@event needs a type of 1 to {TYPE_MAX} characters, such as 'order.created', not {type!r}")
    if version.__class__ is not int or not 1 <= version <= VERSION_MAX:
        raise ConfigError(f"@event({type!r}): version is a whole number from 1 on, not {version!r}")
    if topic is not None and not is_topic(topic):
        raise ConfigError(f"@event({type!r}): a topic is 1 to {TOPIC_MAX} of A-Z a-z 0-9 . _ -, not {topic!r:.80}")

    def mark(cls: Any) -> Any:
        fields = _field_names(cls, type)
        if isinstance(key, str) and key not in fields and not hasattr(cls, key):
            raise ConfigError(
                f"@event({type!r}): key={key!r} is no attribute of {cls.__qualname__}; it has {', '.join(fields)}"
            )
        setattr(cls, _MARK, EventType(type, version, key, topic, strict, cls))
        return cls

    return mark


def describe(cls: type[Any]) -> EventType:
    """What ``@event`` said about ``cls`` itself, never about a parent. Raises ConfigError where it said nothing."""
    found = find_event_type(cls)
    if found is None:
        name = getattr(cls, "__qualname__", repr(cls))
        raise ConfigError(f"{name} is no event: put @event('type.name') above it (a parent's mark does not count)")
    return found


def find_event_type(cls: type[Any]) -> EventType | None:
    """``describe`` for a class that need not be an event."""
    found: EventType | None = getattr(cls, "__dict__", {}).get(_MARK)
    if found is not None and found.cls is not cls:  # @dataclass(slots=True) above @event made the class anew
        raise ConfigError(f"{cls.__qualname__}: @event({found.type!r}) stands above @dataclass, not below it")
    return found


def is_pydantic(cls: type[Any]) -> bool:
    """Whether ``cls`` is a pydantic model, asked without importing pydantic."""
    return hasattr(cls, "__pydantic_validator__") and hasattr(cls, "model_fields")


def is_topic(name: str) -> bool:
    """Whether brokers take ``name`` for a topic. ``.`` and ``..`` they don't."""
    return len(name) <= TOPIC_MAX and _TOPIC.fullmatch(name) is not None and name not in (".", "..")


def is_event_like(cls: type[Any]) -> bool:
    """Whether ``cls`` is of a kind that can be a body: a dataclass, a Struct or a pydantic model."""
    return dataclasses.is_dataclass(cls) or issubclass(cls, msgspec.Struct) or is_pydantic(cls)


def _field_names(cls: Any, type_name: str) -> tuple[str, ...]:
    if isinstance(cls, type):
        if issubclass(cls, bytes):
            return ()
        if issubclass(cls, msgspec.Struct):
            return cls.__struct_fields__
        if is_pydantic(cls):
            return tuple(cls.model_fields)  # type: ignore[attr-defined]
        if "__dataclass_fields__" in cls.__dict__:
            return tuple(cls.__dict__["__dataclass_fields__"])
    raise ConfigError(
        f"@event({type_name!r}) stands above @dataclass, or on a msgspec.Struct or a pydantic model; "
        f"{getattr(cls, '__qualname__', cls)!r} is none of these (yet)"
    )


_Unset = Unset  # the name in the public signatures
