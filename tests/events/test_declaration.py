from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest

from bothends import ConfigError, Tombstone, event
from bothends.events import EventType, describe, find_event_type


@event("order.created", version=2, key="order_id", topic="orders.events", strict=True)
@dataclass(frozen=True)
class Created:
    order_id: str


def test_describe_gives_back_what_was_declared() -> None:
    assert describe(Created) == EventType("order.created", 2, "order_id", "orders.events", True, Created)


def test_struct_and_pydantic_model_can_be_events() -> None:
    @event("a", key="x")
    class AStruct(msgspec.Struct):
        x: str

    @event("b", key="x")
    class AModel(pydantic.BaseModel):
        x: str

    assert describe(AStruct).cls is AStruct
    assert describe(AModel).cls is AModel
    assert AModel(x="1").model_dump() == {"x": "1"}


def test_a_parents_mark_does_not_count() -> None:
    @dataclass(frozen=True)
    class Child(Created):
        more: int = 0

    assert find_event_type(Child) is None
    with pytest.raises(ConfigError, match=r"Child is no event: put @event\('type.name'\) above it"):
        describe(Child)
    marked = event("order.created.extended", key="order_id")(Child)
    assert (describe(marked).type, describe(Created).type) == ("order.created.extended", "order.created")


def test_event_below_dataclass_is_refused_where_it_stands() -> None:
    with pytest.raises(ConfigError, match="stands above @dataclass"):

        @dataclass
        @event("wrong")
        class Wrong:
            x: int


def test_a_class_made_anew_above_the_mark_is_found_when_it_is_used() -> None:
    @event("twice")
    @dataclass
    class Twice:
        x: int

    again = dataclass(slots=True)(Twice)
    with pytest.raises(ConfigError, match="stands above @dataclass, not below it"):
        describe(again)


@pytest.mark.parametrize("cls", [int, object, type("Plain", (), {}), pydantic.BaseModel.__class__])
def test_other_classes_are_no_events(cls: Any) -> None:
    with pytest.raises(ConfigError):
        event("x")(cls)
    with pytest.raises(ConfigError, match="is no event"):
        describe(cls)


def test_describe_of_something_that_is_no_class() -> None:
    with pytest.raises(ConfigError, match="is no event"):
        describe("order.created")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "arguments",
    [
        {"type": ""}, {"type": "x" * 256}, {"type": "a\0b"}, {"type": "\ud800"}, {"type": 3}, {"type": "x", "version": 0},
        {"type": "x", "version": True}, {"type": "x", "version": "1"}, {"type": "x", "version": 2**31},
        {"type": "x", "key": "nothing_like_it"}, {"type": "x", "topic": "a b"}, {"type": "x", "topic": ""},
        {"type": "x", "topic": "t" * 250},
    ],
)
def test_names_out_of_range_are_refused_at_the_declaration(arguments: dict[str, Any]) -> None:
    @dataclass
    class Some:
        x: int

    with pytest.raises(ConfigError):
        event(**arguments)(Some)


def test_the_key_may_be_a_property_a_method_of_the_class_or_a_function() -> None:
    @event("p", key="pair")
    @dataclass
    class Pair:
        a: str
        b: str

        @property
        def pair(self) -> str:
            return f"{self.a}-{self.b}"

    @event("f", key=lambda e: e.a)
    @dataclass
    class ByFunction:
        a: str

    rule = describe(ByFunction).key
    assert describe(Pair).key == "pair"
    assert callable(rule)
    assert rule(ByFunction("x")) == "x"


def test_the_unknown_key_is_named_with_what_there_is() -> None:
    with pytest.raises(ConfigError, match=r"key='orderid' is no attribute of .*; it has order_id, amount"):

        @event("x", key="orderid")
        @dataclass
        class Some:
            order_id: str
            amount: int


def test_tombstones_say_what_they_are() -> None:
    assert repr(Tombstone("order.gone", key="7")) == "Tombstone('order.gone', key='7')"
