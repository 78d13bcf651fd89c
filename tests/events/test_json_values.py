"""What JSON must carry exactly, or refuse by the field's name [O3]."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypedDict, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothends import ConfigError, InvalidEvent, event
from bothends.codecs.json import codec_for, decode, encode
from bothends.errors import Undecodable
from bothends.events import describe

T = TypeVar("T")


class Colour(enum.Enum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: int


class Extra(TypedDict, total=False):
    note: str


@dataclass(frozen=True)
class Line:
    sku: str
    price: Decimal


@event("everything")
@dataclass
class Everything:
    text: str
    number: int
    ratio: float
    flag: bool
    money: Decimal
    ident: UUID
    moment: datetime
    day: date
    hour: time
    blob: bytes
    span: timedelta
    colour: Colour
    kind: Literal["a", "b", 3]
    maybe: str | None
    lines: list[Line]
    fixed: tuple[int, str]
    many: tuple[Decimal, ...]
    tags: frozenset[str]
    named: dict[str, Decimal]
    point: Point
    extra: Extra
    loose: Any = None
    inner: Everything | None = None


def everything(**changes: Any) -> Everything:
    values: dict[str, Any] = {
        "text": "x\0y \U0001f445 é", "number": 616581622363398142, "ratio": 0.1, "flag": True, "money": Decimal("1.10"),
        "ident": UUID(int=7), "moment": datetime(2026, 3, 29, 2, 30, 0, 123456, tzinfo=UTC), "day": date(1, 1, 1),
        "hour": time(23, 59, 59, 999999), "blob": b"\0\xff", "span": timedelta(days=1, microseconds=1),
        "colour": Colour.RED, "kind": 3, "maybe": None, "lines": [Line("a", Decimal("0.001"))], "fixed": (1, "b"),
        "many": (Decimal("1E+3"),), "tags": frozenset({"x", "y", "z"}), "named": {"k\0": Decimal("2.50")},
        "point": Point(1, 2), "extra": {"note": "n"}, "loose": {"a": [1, "x", None, 1.5]},
    }
    return Everything(**{**values, **changes})


def again(value: Everything) -> Everything:
    back = decode(encode(value), describe(Everything))
    assert isinstance(back, Everything)
    return back


def test_values_do_not_change_type() -> None:
    """field-problems: json-values-change-type."""
    value = everything(inner=everything())
    body = encode(value)
    once, twice = (decode(body, describe(Everything)) for _ in range(2))
    assert once == twice == value
    assert encode(once) == body
    assert isinstance(once, Everything)
    for name in ("number", "money", "ident", "moment", "day", "hour", "blob"):
        assert type(getattr(once, name)) is type(getattr(value, name))
    assert str(once.money) == "1.10"
    assert str(once.many[0]) == "1E+3"


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63), 2**64 - 1, 616581622363398142, 2**53 + 1])
def test_64_bit_integers_are_exact(number: int) -> None:
    assert again(everything(number=number)).number == number


@pytest.mark.parametrize(
    "moment",
    [
        datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Madrid")),
        datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))),
        datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=timezone(timedelta(hours=-12))),
        datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=-3, minutes=-30))),
    ],
)
def test_moments_are_exact(moment: datetime) -> None:
    back = again(everything(moment=moment)).moment
    assert back == moment.replace(tzinfo=timezone(moment.utcoffset() or timedelta()))
    assert back.utcoffset() == moment.utcoffset()


REFUSED: list[tuple[str, Any, str]] = [
    ("text", 5, "str is declared, got int"),
    ("text", "\ud800", "lone surrogate"),
    ("text", Colour.RED, "str is declared"),
    ("number", "5", "int is declared, got str"),
    ("number", True, "int is declared, got bool"),
    ("number", 5.0, "int is declared, got float"),
    ("number", 2**64, "more than 64 bits"),
    ("number", -(2**63) - 1, "more than 64 bits"),
    ("ratio", float("nan"), "NaN"),
    ("ratio", float("-inf"), "infinity"),
    ("ratio", 2**53 + 1, "cannot hold exactly"),
    ("ratio", "1", "float is declared"),
    ("flag", 1, "bool is declared"),
    ("money", 1.10, "Decimal is declared, got float"),
    ("money", 1, "Decimal is declared, got int"),
    ("money", "1.10", "Decimal is declared, got str"),
    ("money", Decimal("NaN"), "NaN"),
    ("money", Decimal("Infinity"), "infinity"),
    ("ident", str(UUID(int=1)), "UUID is declared"),
    ("moment", datetime(2026, 1, 1), "without a time zone"),
    ("moment", datetime(1880, 1, 1, tzinfo=timezone(timedelta(seconds=1172))), "offset with seconds"),
    ("moment", "2026-01-01T00:00:00Z", "datetime is declared"),
    ("day", datetime(2026, 1, 1, tzinfo=UTC), "date is declared"),
    ("hour", time(1, tzinfo=ZoneInfo("Europe/Madrid")), "no offset without a date"),
    ("blob", "x", "bytes is declared"),
    ("blob", bytearray(b"x"), "bytes is declared"),
    ("span", 5, "timedelta is declared"),
    ("colour", "red", "Colour is declared"),
    ("kind", "c", "is none of"),
    ("kind", 3.0, "is none of"),
    ("maybe", 5, "str is declared"),
    ("lines", None, "list is declared"),
    ("lines", "abc", "list is declared"),
    ("lines", {"a": 1}, "list is declared"),
    ("fixed", (1,), "has 1 items, 2 are declared"),
    ("tags", {"x"}, "frozenset is declared"),
    ("named", [("a", Decimal(1))], "dict is declared"),
    ("point", (1, 2), "Point is declared"),
    ("loose", Decimal("1.1"), "under Any would arrive as something else"),
    ("loose", (1, 2), "under Any"),
    ("loose", {1: 2}, "names are text"),
    ("inner", Line("a", Decimal(1)), "Everything is declared"),
]


@pytest.mark.parametrize(("name", "value", "problem"), REFUSED)
def test_a_value_that_is_not_what_its_field_says_is_refused_by_name(name: str, value: Any, problem: str) -> None:
    with pytest.raises(InvalidEvent, match=problem) as refused:
        encode(everything(**{name: value}))
    assert f"Everything.{name}" in str(refused.value)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"lines": [Line("a", Decimal(1)), Line("b", 2.5)]}, "Everything.lines[1].price"),  # type: ignore[arg-type]
        ({"lines": [Line("\udfff", Decimal(1))]}, "Everything.lines[0].sku"),
        ({"fixed": (1, 2)}, "Everything.fixed[1]"),
        ({"many": (Decimal(1), 1)}, "Everything.many[1]"),
        ({"named": {"a": 1}}, "Everything.named.a"),
        ({"named": {1: Decimal(1)}}, "Everything.named[name 1]"),
        ({"point": Point("1", 2)}, "Everything.point[0]"),  # type: ignore[arg-type]
        ({"extra": {"note": 1}}, "Everything.extra.note"),
        ({"extra": {"other": 1}}, "Everything.extra.other"),
        ({"loose": {"a": [0, {"b": float("inf")}]}}, "Everything.loose.a[1].b"),
        ({"loose": {"a": ["\ud800"]}}, "Everything.loose.a[0]"),
    ],
)
def test_the_place_is_named_all_the_way_down(change: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidEvent) as refused:
        encode(everything(**change))
    assert str(refused.value).startswith(path + ":")


def test_refusals_do_not_show_the_value() -> None:
    with pytest.raises(InvalidEvent) as refused:
        encode(everything(number="4111-1111-1111-1111"))
    assert "4111" not in str(refused.value)


def test_a_subclass_is_no_substitute() -> None:
    @dataclass(frozen=True)
    class Special(Line):
        extra: int = 1

    with pytest.raises(InvalidEvent, match=r"lines\[0\]: Line is declared, got Special"):
        encode(everything(lines=[Special("a", Decimal(1))]))


def test_an_int_may_stand_for_a_float_and_a_tuple_for_a_list() -> None:
    back = again(everything(ratio=3, lines=(Line("a", Decimal(1)),)))
    assert (type(back.ratio), back.ratio, back.lines) == (float, 3.0, [Line("a", Decimal(1))])


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidEvent, match="contains itself"):
        encode(everything(loose=loop))
    with pytest.raises(InvalidEvent, match="contains itself"):
        encode({"a": loop})
    value = everything()
    value.inner = value
    with pytest.raises(InvalidEvent, match="contains itself"):
        encode(value)


class FrozenDatetime(datetime):
    """As clocks of test kits have them."""


class FrozenDate(date):
    pass


class Named(str):
    def __str__(self) -> str:
        return "something else"


class Count(int):
    pass


class Ratio(float):
    pass


class Money(Decimal):
    pass


class Ident(UUID):
    """As asyncpg has it."""


def test_subclasses_of_plain_types_arrive_as_their_base() -> None:
    class Hour(time):
        pass

    class Span(timedelta):
        pass

    zone = ZoneInfo("Europe/Madrid")
    changes: dict[str, Any] = {
        "text": Named("x"), "number": Count(7), "ratio": Ratio(0.5), "money": Money("1.10"), "ident": Ident(int=9),
        "moment": FrozenDatetime(2026, 10, 25, 2, 30, fold=1, tzinfo=zone), "day": FrozenDate(2026, 1, 1),
        "hour": Hour(1, 2, 3, 4, UTC), "span": Span(days=1, microseconds=3), "lines": type("Rows", (list,), {})(),
        "named": type("Map", (dict,), {})(a=Decimal(1)),
    }
    back = again(everything(**changes))
    for name, value in changes.items():
        assert getattr(back, name) == (value.astimezone(UTC) if name == "moment" else value)
        assert type(getattr(back, name)) is type(getattr(everything(), name))
    plain = {name: changes[name] for name in changes} | {"blob": type("Blob", (bytes,), {})(b"x"), "colour": Colour.RED}
    assert encode(plain) == encode({**plain, "text": "x", "blob": b"x", "colour": "red", "money": Decimal("1.10")})


def test_a_field_that_was_never_set_is_named() -> None:
    value = everything()
    del value.text
    with pytest.raises(InvalidEvent, match="text: is not set"):
        encode(value)


def test_dicts_write_exact_values_in_their_json_form() -> None:
    body = encode({
        "money": Decimal("1.10"), "id": UUID(int=1), "at": datetime(2026, 1, 1, tzinfo=UTC), "blob": b"\0", "n": 2**63,
        "\U0001f445": ["x\0y", None, True, 0.5, date(2026, 1, 1), ()],
    })
    assert body == (
        '{"money":"1.10","id":"00000000-0000-0000-0000-000000000001","at":"2026-01-01T00:00:00Z","blob":"AA==",'
        '"n":9223372036854775808,"\U0001f445":["x\\u0000y",null,true,0.5,"2026-01-01",[]]}'.encode()
    )


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"a": {"b": [float("nan")]}}, "body.a.b[0]: NaN"), ({"a": "\ud800"}, "body.a: a lone surrogate"),
        ({"k\ud800": 1}, "body.'k\\\\ud800': a lone surrogate"), ({1: 2}, "body: the name 1 is of type int"),
        ({"a": datetime(2026, 1, 1)}, "body.a: a datetime without"), ({"a": object()}, "body.a: object has no JSON form"),
        ({"a": {1, 2}}, "body.a: set has no JSON form"), ({"a": 2**64}, "body.a: an integer of more than 64 bits"),
        ({"a": Decimal("sNaN")}, "body.a: NaN"), ([[float("inf")]], r"body\[0\]\[0\]: NaN"),
    ],
)
def test_dicts_are_checked_too(body: Any, place: str) -> None:
    with pytest.raises(InvalidEvent, match=place.replace("[0]", r"\[0\]") if "\\[" not in place else place):
        encode(body)


@dataclass
class Tagged:
    tags: set[str]
    more: dict[str, frozenset[int]]


def test_sets_are_written_in_one_order() -> None:
    """Else the same event would have another content hash in another process (P8)."""
    names = [f"tag-{n}" for n in range(20)]
    expected = Tagged(set(names), {"a": frozenset({3, 1, 2})})
    body = encode(expected)
    assert body == msgspec.json.encode({"tags": sorted(names), "more": {"a": [1, 2, 3]}})
    assert codec_for(Tagged).decode(body) == expected


def test_bounds_that_only_a_reader_checks_are_checked_before_writing() -> None:
    class Bounded(msgspec.Struct):
        n: Annotated[int, msgspec.Meta(ge=1)]

    assert encode(Bounded(1)) == b'{"n":1}'
    with pytest.raises(InvalidEvent, match=r"Bounded: no reader would accept it: .*>= 1.*\$\.n"):
        encode(Bounded(0))


class Cat(msgspec.Struct, tag=True, rename="camel"):
    lives_left: int


class Dog(msgspec.Struct, tag=True):
    name: str | msgspec.UnsetType = msgspec.UNSET


class Owner(msgspec.Struct):
    pet: Cat | Dog


def test_structs_with_renamed_and_tagged_fields_survive() -> None:
    for owner in (Owner(Cat(9)), Owner(Dog("rex")), Owner(Dog())):
        codec = codec_for(Owner)
        assert codec.decode(codec.encode(owner)) == owner
    with pytest.raises(InvalidEvent, match=r"Owner\.pet\.lives_left: int is declared"):
        encode(Owner(Cat("9")))  # type: ignore[arg-type]


@dataclass
class Box(Generic[T]):
    content: T


def test_codecs_of_other_types() -> None:
    """What ``ctx.once`` stores: any annotation, not only events."""
    for kind, value in [
        (str, "x"), (int, 3), (type(None), None), (Decimal, Decimal("1.10")), (Line, Line("a", Decimal(1))),
        (list[Line], [Line("a", Decimal("2.0"))]), (dict[str, int], {"a": 1}), (Box[int], Box(3)), (Line | None, None),
        (dict[UUID, frozenset[int]], {UUID(int=1): frozenset({1, 2})}),
    ]:
        codec = codec_for(kind)
        assert codec.decode(codec.encode(value)) == value
    with pytest.raises(InvalidEvent, match="int is declared"):
        codec_for(Box[int]).encode(Box("3"))


def test_unknown_fields_are_ignored_and_absent_ones_take_their_default() -> None:
    @event("versioned")
    @dataclass
    class Versioned:
        a: int
        b: str = "new"
        c: list[int] = field(default_factory=list)

    assert decode(b'{"zzz":{"x":[1]},"a":1}', describe(Versioned)) == Versioned(1)


@pytest.mark.parametrize(
    ("token", "text"),
    [
        (b"1.10", "1.10"), (b'"1.10"', "1.10"),
        (b"0.1000000000000000055511151231257827", "0.1000000000000000055511151231257827"),
        (b"12345678901234567890123", "12345678901234567890123"), (b"1e3", "1E+3"), (b"7", "7"),
    ],
)
def test_a_decimal_is_read_from_text_or_number_never_by_way_of_a_float(token: bytes, text: str) -> None:
    line = codec_for(Line).decode(b'{"sku":"a","price":' + token + b"}")
    assert str(line.price) == text


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "undecodable"), (b"<xml>", "undecodable"), (b'{"sku":', "undecodable"), (b'{"sku":"\xff"}', "undecodable"),
        (b'{"sku":NaN}', "undecodable"), (b"[" * 5_000, "schema"),
        (b'{"x":' + b"[" * 50_000, "undecodable"), (b'{"sku":"\\ud800","price":"1"}', "undecodable"),
        (b"null", "schema"), (b"[]", "schema"), (b'{"sku":"a"}', "schema"), (b'{"sku":1,"price":"1"}', "schema"),
        (b'{"sku":"a","price":"x"}', "schema"), (b'{"sku":"a","price":null}', "schema"),
    ],
)
def test_what_cannot_be_read_says_why(body: bytes, reason: str) -> None:
    with pytest.raises(Undecodable, match="Line: ") as problem:
        codec_for(Line).decode(body)
    assert problem.value.reason == reason


def test_a_post_init_that_raises_anything_ends_as_undecodable() -> None:
    @dataclass
    class Picky:
        a: int

        def __post_init__(self) -> None:
            raise LookupError("no such thing")

    with pytest.raises(Undecodable, match="no such thing"):
        codec_for(Picky).decode(b'{"a":1}')


def test_null_value_tombstone() -> None:
    """field-problems: null-value-tombstone: four inputs that stay apart."""
    @event("loose")
    @dataclass
    class Loose:
        a: int = 0

    assert decode(None, describe(Loose)) is None
    assert decode(b"{}", describe(Loose)) == Loose()
    for body in (b"", b"null"):
        with pytest.raises(Undecodable):
            decode(body, describe(Loose))


def test_fields_that_json_cannot_carry_are_named_at_first_use() -> None:
    class Strange:
        pass

    class Model(pydantic.BaseModel):
        x: int

    @dataclass
    class WithStrange:
        a: list[Strange]

    @dataclass
    class WithModel:
        a: Model

    @dataclass
    class Ambiguous:
        a: str | UUID

    WithStrange.__annotations__["a"], WithModel.__annotations__["a"] = list[Strange], Model
    with pytest.raises(ConfigError, match=r"field a\[\]: .*Strange cannot be carried"):
        encode(WithStrange([]))
    with pytest.raises(ConfigError, match="make the event itself a pydantic model"):
        encode(WithModel(Model(x=1)))
    with pytest.raises(ConfigError, match="more than one str-like"):
        encode(Ambiguous("x"))


def test_annotations_that_cannot_be_resolved_are_a_configuration_error() -> None:
    @dataclass
    class Lost:
        a: Nowhere  # type: ignore[name-defined] # noqa: F821

    with pytest.raises(ConfigError, match=r"Lost cannot be carried as JSON: .*Nowhere"):
        encode(Lost(1))


@given(
    st.text(), st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(allow_nan=False, allow_infinity=False), st.uuids(),
    st.datetimes(timezones=st.just(UTC) | st.integers(-1439, 1439).map(lambda m: timezone(timedelta(minutes=m)))),
    st.binary(), st.dictionaries(st.text(), st.decimals(allow_nan=False, allow_infinity=False)),
)
def test_whatever_is_accepted_arrives_as_it_is(
    text: str, number: int, ratio: float, money: Decimal, ident: UUID, moment: datetime, blob: bytes,
    named: dict[str, Decimal],
) -> None:
    value = everything(
        text=text, number=number, ratio=ratio, money=money, ident=ident, moment=moment, blob=blob, named=named,
    )
    back = again(value)
    assert back == value
    assert str(back.money) == str(money)
    assert {k: str(v) for k, v in back.named.items()} == {k: str(v) for k, v in named.items()}
    assert back.moment.utcoffset() == moment.utcoffset()
