"""Handlers that could never do what they look like are refused where they are declared."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from bothends import AsyncBatchContext, BatchContext, Context, Service, event
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


def of_many(things: list[Thing], ctx: BatchContext[Any]) -> None: ...


def of_many_in_text(things: "list[Thing]", ctx: "AsyncBatchContext[Any]") -> None: ...


def of_one(thing: Thing, ctx: Context[Any]) -> None: ...


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


@pytest.mark.parametrize(("handler", "batch", "says"), [
    (of_one, True, "with batch=True its ctx is a BatchContext, not a Context"),
    (of_many, False, "with batch=False its ctx is a Context, not a BatchContext"),
    (of_many_in_text, False, "its ctx is a AsyncContext, not a AsyncBatchContext"),
    (nothing, True, "takes (events) or (events, ctx)"),
])
def test_a_context_of_the_other_kind_is_refused(handler: Callable[..., Any], batch: bool, says: str) -> None:
    consumer = Service("things").consumer("stock")
    with pytest.raises(ConfigError) as caught:
        consumer.handle(Thing, batch=batch)(handler)  # type: ignore[call-overload]
    assert says in str(caught.value)
    assert consumer.handlers == {}


def test_effects_and_batches_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="an outside call is kept per message"):
        Service("things").consumer("stock").handle(Thing, effects=True, batch=True)  # type: ignore[call-overload]


def test_a_batch_handler_is_registered_as_one() -> None:
    consumer = Service("things").consumer("stock")
    assert consumer.handle(Thing, batch=True)(of_many) is of_many
    assert consumer.has_batch_handlers
    assert consumer.handlers["thing.declared"].batch
