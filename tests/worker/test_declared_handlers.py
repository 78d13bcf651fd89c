"""Handlers that could never do what they look like are refused where they are declared."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from bothends import Context, Service, event
from bothends.errors import ConfigError


@event("thing.declared", key="id", topic="things")
@dataclass(frozen=True)
class Thing:
    id: str


def with_yield(thing: Thing, ctx: Context[Any]) -> Iterator[int]:
    yield 1


def swapped(ctx: Context[Any], thing: Thing) -> None: ...


def swapped_in_text(ctx: "Context[Any]", thing: "Thing") -> None: ...


def nothing() -> None: ...


@pytest.mark.parametrize(("handler", "says"), [
    (with_yield, "has a yield in it"), (swapped, "the event comes first"), (swapped_in_text, "the event comes first"),
    (nothing, "takes (event) or (event, ctx)"),
])
def test_it_is_refused(handler: Callable[..., Any], says: str) -> None:
    consumer = Service("things").consumer("stock")
    with pytest.raises(ConfigError) as caught:
        consumer.handle(Thing)(handler)
    assert says in str(caught.value)
    assert consumer.handlers == {}


def test_a_decorator_without_its_event_is_refused() -> None:
    consumer = Service("things").consumer("stock")
    with pytest.raises(ConfigError, match=r"@stock.handle\(TheEvent\)"):
        consumer.handle(nothing)  # type: ignore[arg-type]
