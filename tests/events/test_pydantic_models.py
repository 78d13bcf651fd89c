"""Pydantic models as events: their own field types decide, and exactness is proven by reading back [O3]."""

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from bothends import InvalidEvent, event
from bothends.codecs.json import decode, encode
from bothends.errors import Undecodable
from bothends.events import describe


class Line(BaseModel):
    sku: str
    price: Decimal


@event("placed", key="order_id")
class Placed(BaseModel):
    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    order_id: UUID
    number: int
    ratio: float
    money: Decimal
    moment: datetime
    day: date
    hour: time
    blob: bytes
    lines: list[Line] = []
    loose: Any = None


def placed(**changes: Any) -> Placed:
    values: dict[str, Any] = {
        "order_id": UUID(int=7), "number": 616581622363398142, "ratio": 0.1, "money": Decimal("1.10"),
        "moment": datetime(2026, 3, 29, 2, 30, 0, 123456, tzinfo=UTC), "day": date(2026, 1, 1),
        "hour": time(23, 59, 59, 999999), "blob": b"\0\xff", "lines": [Line(sku="a", price=Decimal("0.001"))],
    }
    return Placed.model_construct(**{**values, **changes})


def test_values_do_not_change_type() -> None:
    value = placed()
    body = encode(value)
    once, twice = (decode(body, describe(Placed)) for _ in range(2))
    assert once == twice == value
    assert isinstance(once, Placed)
    assert encode(once) == body
    assert (str(once.money), once.number, once.moment) == ("1.10", 616581622363398142, value.moment)


@pytest.mark.parametrize(
    ("name", "value", "where"),
    [
        ("number", "5", ".number: would not arrive"), ("number", "five", ".number: no reader would accept it"),
        ("money", 1.5, ".money: would not arrive"), ("money", Decimal("NaN"), ".money: NaN"),
        ("ratio", float("nan"), ".ratio: NaN"), ("order_id", str(UUID(int=7)), ".order_id: would not arrive"),
        ("moment", datetime(2026, 1, 1), ".moment: a datetime without a time zone"),
        ("lines", [Line.model_construct(sku="a", price=float("inf"))], ".lines[0].price: NaN"),
        ("lines", [Line.model_construct(sku="a", price="x")], ".lines.0.price: no reader"),
        ("loose", Decimal("1.1"), ".loose: would not arrive"), ("loose", {"a": [datetime(2026, 1, 1)]}, ".loose.a[0]: a dat"),
        ("loose", {"a": object()}, ".loose: cannot be written"), ("loose", "\ud800", ".loose: cannot be written"),
    ],
)
def test_a_value_that_would_not_arrive_is_refused_by_name(name: str, value: Any, where: str) -> None:
    with pytest.raises(InvalidEvent) as refused:
        encode(placed(**{name: value}))
    assert str(refused.value).startswith("Placed" + where)


def test_bytes_that_are_no_text_need_the_models_own_base64() -> None:
    class Plain(BaseModel):
        blob: bytes

    with pytest.raises(InvalidEvent, match=r"Plain\.blob: cannot be written"):
        encode(Plain(blob=b"\xff"))


def test_aliases_computed_fields_and_private_attributes() -> None:
    @event("aliased")
    class Aliased(BaseModel):
        sku: str = Field(alias="stockCode")
        _seen: int = pydantic.PrivateAttr(default=0)

        @pydantic.computed_field  # type: ignore[prop-decorator]
        @property
        def shout(self) -> str:
            return self.sku.upper()

    value = Aliased(stockCode="a")
    value._seen = 5
    assert encode(value) == b'{"stockCode":"a"}'
    assert decode(b'{"stockCode":"a","shout":"A","later":1}', describe(Aliased)) == Aliased(stockCode="a")


@pytest.mark.parametrize("token", ["1.10", "0.1000000000000000055511151231257827", "1234567890123456789012.10", "7"])
@pytest.mark.parametrize("strict", [False, True])
def test_a_decimal_is_never_read_by_way_of_a_float(token: str, strict: bool) -> None:
    class Priced(BaseModel):
        model_config = ConfigDict(strict=strict)
        id: UUID
        price: Decimal

    event("priced")(Priced)
    for body in (f'{{"id":"{UUID(int=1)}","price":{token}}}', f'{{"id":"{UUID(int=1)}","price":"{token}"}}'):
        back = decode(body.encode(), describe(Priced))
        assert isinstance(back, Priced)
        assert str(back.price) == token


def test_where_exactness_is_impossible_it_is_said() -> None:
    @event("both")
    class Both(BaseModel):
        model_config = ConfigDict(strict=True)
        id: UUID
        price: Decimal
        ratio: float

    good = Both(id=UUID(int=1), price=Decimal("1.10"), ratio=0.1)
    assert decode(encode(good), describe(Both)) == good
    with pytest.raises(Undecodable, match="send Decimals as strings"):
        decode(f'{{"id":"{UUID(int=1)}","price":1.10,"ratio":0.5}}'.encode(), describe(Both))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "undecodable"), (b"{", "undecodable"), (b'{"sku":"\xff"}', "undecodable"), (b"null", "schema"),
        (b'{"sku":"a"}', "schema"), (b'{"sku":"a","price":"x"}', "schema"), (b'{"sku":"a","price":1.50,"q":[}', "undecodable"),
        (b'{"sku":' + b"[" * 50_000, "undecodable"),
    ],
)
def test_what_cannot_be_read_says_why(body: bytes, reason: str) -> None:
    event("line")(Line)
    with pytest.raises(Undecodable, match="Line: ") as problem:
        decode(body, describe(Line))
    assert problem.value.reason == reason


def test_a_validator_that_raises_anything_ends_as_undecodable() -> None:
    @event("picky")
    class Picky(BaseModel):
        a: int

        @pydantic.field_validator("a")
        @classmethod
        def refuse(cls, value: int) -> int:
            raise LookupError("no such thing")

    with pytest.raises(Undecodable, match="no such thing"):
        decode(b'{"a":1}', describe(Picky))


@given(
    st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(allow_nan=False, allow_infinity=False), st.datetimes(timezones=st.just(UTC)), st.binary(),
)
def test_whatever_is_accepted_arrives_as_it_is(n: int, ratio: float, money: Decimal, moment: datetime, blob: bytes) -> None:
    value = placed(number=n, ratio=ratio, money=money, moment=moment, blob=blob)
    back = decode(encode(value), describe(Placed))
    assert back == value
    assert isinstance(back, Placed)
    assert str(back.money) == str(money)
