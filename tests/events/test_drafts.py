"""What ``add`` checks before any SQL [A3][O3][O4][O5] and [Limits]."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import msgspec
import pydantic
import pytest

from bothends import UNSET, ConfigError, InvalidEvent, MissingKey, Tombstone, event
from bothends.drafts import LIMITS, Draft, draft


@event("order.created", version=3, key="order_id", topic="shop.orders", strict=True)
@dataclass(frozen=True)
class Created:
    order_id: UUID | None
    note: str = ""


@event("loose", key="name")
@dataclass(frozen=True)
class Loose:
    name: str | int | bool | float | None
    note: str = ""


@event("plain")
@dataclass
class Plain:
    a: int = 1


@dataclass
class Unmarked:
    a: int = 1


ORDER = Created(UUID(int=1))


def make(event: object = ORDER, **arguments: Any) -> Draft:
    return draft(event, source="orders", default_topic="orders.events", **arguments)


def test_declared_values_make_the_row() -> None:
    made = make()
    assert (made.source, made.type, made.topic, made.version) == ("orders", "order.created", "shop.orders", 3)
    assert (made.key, made.strict, made.given_id) == (str(UUID(int=1)).encode(), True, False)
    assert made.body == b'{"order_id":"00000000-0000-0000-0000-000000000001","note":""}'
    assert (made.content_type, made.attributes, made.headers) == ("application/json", {}, [])
    assert (made.deliver_at, made.delay_s) == (None, None)
    assert UUID(made.id).version == 7
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", made.time)
    assert abs(datetime.fromisoformat(made.time) - datetime.now(UTC)) < timedelta(minutes=1)


def test_parameters_win_over_the_declaration() -> None:
    made = make(
        type="order.imported", version=9, topic="t", id="mine", subject="s", correlation_id="c", causation_id="p",
        traceparent="00-a-b-01", content_type="application/json; charset=utf-8", key="k",
        headers=[("a", b"1"), ("b", b""), ("a", b"\xff")],
    )
    assert (made.type, made.version, made.topic, made.id, made.key) == ("order.imported", 9, "t", "mine", b"k")
    assert made.given_id
    assert made.attributes == {"subject": "s", "correlationid": "c", "causationid": "p", "traceparent": "00-a-b-01"}
    assert made.headers == [("a", b"1"), ("b", b""), ("a", b"\xff")]
    assert made.content_type == "application/json; charset=utf-8"


def test_a_derived_id_is_no_given_one() -> None:
    made = make(derived_id="d")
    assert (made.id, made.given_id) == ("d", False)


def test_an_event_without_topic_goes_to_the_services() -> None:
    assert make(Plain()).topic == "orders.events"


class TestBodies:
    @pytest.mark.parametrize("body", [b"", b"null", b"\x00\xff", b"<order/>", b'{"a": 1}'])
    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_bytes_stay_as_they_are(self, body: bytes, kind: Callable[[bytes], Any]) -> None:
        made = make(kind(body), type="raw", key="17")
        assert (made.body, type(made.body), made.content_type) == (body, bytes, None)
        assert make(kind(body), type="raw", content_type="application/xml").content_type == "application/xml"

    def test_dicts_structs_models_and_lists(self) -> None:
        class AStruct(msgspec.Struct):
            a: int

        class AModel(pydantic.BaseModel):
            a: int

        for body in ({"a": 1}, AStruct(1), AModel(a=1), Plain(1), Unmarked(1)):
            made = make(body, type="x")
            assert (made.body, made.type, made.version, made.key) == (b'{"a":1}', "x", 1, None)
        assert make([1], type="x").body == b"[1]"

    @pytest.mark.parametrize("body", [b"x", {"a": 1}, Unmarked()])
    def test_what_names_no_type_needs_one(self, body: object) -> None:
        with pytest.raises(InvalidEvent, match="type= is needed"):
            make(body)

    @pytest.mark.parametrize("thing", [None, "text", 5, 1.5, object(), Created, dict, {1, 2}, (1,)])
    def test_what_is_no_event_is_a_type_error(self, thing: object) -> None:
        with pytest.raises(TypeError):
            make(thing, type="x")

    def test_none_is_told_about_tombstones(self) -> None:
        with pytest.raises(TypeError, match="Tombstone"):
            make(None)

    def test_tombstones_have_no_body_and_differ_from_empty_ones(self) -> None:
        made = make(Tombstone("order.gone", key="7"))
        assert (made.body, made.type, made.key, made.topic, made.content_type) == (
            None, "order.gone", b"7", "orders.events", None)
        typed = make(Tombstone(Created, key="7"))
        assert (typed.body, typed.type, typed.topic, typed.version, typed.strict) == (
            None, "order.created", "shop.orders", 3, True)
        assert make(b"", type="x").body == b""

    def test_a_tombstone_needs_a_key_and_an_event_type(self) -> None:
        with pytest.raises(MissingKey, match="which key is gone"):
            make(Tombstone("x", key=None))  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="is no event"):
            make(Tombstone(Unmarked, key="1"))
        with pytest.raises(InvalidEvent, match="type is a str"):
            make(Tombstone(5, key="1"))  # type: ignore[arg-type]

    def test_a_wrong_field_is_named(self) -> None:
        with pytest.raises(InvalidEvent, match=r"Plain\.a: int is declared, got str"):
            make(Plain("1"))  # type: ignore[arg-type]


class TestKeys:
    @pytest.mark.parametrize(
        ("key", "encoded"),
        [("", b""), ("é", "é".encode()), ("e\u0301", "e\u0301".encode()), ("\U0001f445", "\U0001f445".encode()),
         (-5, b"-5"), ("a\nb", b"a\nb")],
    )
    def test_empty_key_is_not_no_key(self, key: Any, encoded: bytes) -> None:
        """field-problems: empty-key-is-not-no-key. NFC and NFD are two keys: the bytes decide."""
        assert make(Loose(key)).key == encoded

    def test_no_key_on_purpose(self) -> None:
        made = make(key=None)
        assert (made.key, made.strict) == (None, False)
        assert make(key=UNSET).key == str(UUID(int=1)).encode()
        assert make({"a": 1}, type="x").key is None
        assert make({"a": 1}, type="x", key="").key == b""

    def test_a_declared_key_that_is_none_is_missing(self) -> None:
        with pytest.raises(MissingKey, match=r"Created: the declared key \(order_id\) is None; flush before you build"):
            make(Created(None))
        assert make(Created(None), key="given").key == b"given"
        assert make(Created(None), key=None).key is None

    def test_a_key_may_be_a_function(self) -> None:
        @event("f", key=lambda e: e.a and f"a-{e.a}")
        @dataclass
        class ByFunction:
            a: str | None

        assert make(ByFunction("x")).key == b"a-x"
        with pytest.raises(MissingKey):
            make(ByFunction(None))

    @pytest.mark.parametrize("key", [True, 1.5, "a\0b", "\ud800", "x" * 1001, "é" * 501])
    def test_keys_that_cannot_be_carried(self, key: Any) -> None:
        with pytest.raises(InvalidEvent, match=r"^key "):
            make(Loose(key))

    @pytest.mark.parametrize("key", [b"k", 5, UUID(int=1), "a\0b", "\udfff", "x" * 1001])
    def test_given_keys_are_text(self, key: Any) -> None:
        with pytest.raises(InvalidEvent, match=r"^key "):
            make(key=key)

    def test_the_longest_key(self) -> None:
        assert make(key="x" * 1000).key == b"x" * 1000


class TestText:
    """field-problems: characters-the-database-refuses."""

    @pytest.mark.parametrize("field", ["id", "type", "subject", "correlation_id", "causation_id", "traceparent"])
    @pytest.mark.parametrize("text", ["", "a\0b", "\ud800", "line\nbreak", "\x85"])
    def test_text_that_cannot_be_carried_is_named(self, field: str, text: str) -> None:
        with pytest.raises(InvalidEvent, match=rf"^{field} "):
            make(**{field: text})

    @pytest.mark.parametrize("field", ["id", "type", "subject", "correlation_id", "content_type"])
    def test_other_things_are_no_text(self, field: str) -> None:
        with pytest.raises(InvalidEvent, match=rf"^{field} is a str, got bytes"):
            make(**{field: b"x"})

    @pytest.mark.parametrize("field", ["id", "type", "content_type"])
    def test_the_longest_names(self, field: str) -> None:
        make(**{field: "x" * 255})
        with pytest.raises(InvalidEvent, match=rf"^{field} has 256 characters"):
            make(**{field: "x" * 256})

    @pytest.mark.parametrize("field", ["subject", "correlation_id", "causation_id"])
    def test_the_longest_attributes(self, field: str) -> None:
        make(**{field: "x" * 1024})
        for text in ("x" * 1025, "é" * 513):
            with pytest.raises(InvalidEvent, match=rf"^{field} has"):
                make(**{field: text})

    def test_emoji_survive_everywhere(self) -> None:
        tongue = "\U0001f445"
        made = make(Loose(tongue, tongue + "\0"), id=tongue, subject=tongue, headers=[(tongue, tongue.encode())])
        assert (made.id, made.attributes["subject"], made.headers[0][0]) == (tongue, tongue, tongue)
        assert made.body == f'{{"name":"{tongue}","note":"{tongue}\\u0000"}}'.encode()

    def test_a_surrogate_in_the_body_is_named(self) -> None:
        with pytest.raises(InvalidEvent, match=r"Created\.note: a lone surrogate"):
            make(Created(UUID(int=1), "\ud800"))

    @pytest.mark.parametrize("source", ["", "a\0", "x" * 256])
    def test_the_source_is_checked(self, source: str) -> None:
        with pytest.raises(InvalidEvent, match=r"^source "):
            draft(ORDER, source=source, default_topic="t")


class TestTopicsAndVersions:
    @pytest.mark.parametrize("topic", ["", "a b", "é", "a/b", "x" * 250, "a\0", ".", "..", "\ud800", "a\n"])
    def test_topics_that_no_broker_takes(self, topic: str) -> None:
        with pytest.raises(InvalidEvent, match=r"^topic "):
            make(topic=topic)

    def test_the_longest_topic(self) -> None:
        assert make(topic="x" * 249).topic == "x" * 249
        assert make(topic="A.b_c-9").topic == "A.b_c-9"

    @pytest.mark.parametrize("version", [0, -1, True, "1", 1.0, 2**31])
    def test_versions(self, version: Any) -> None:
        with pytest.raises(InvalidEvent, match=r"^version "):
            make(version=version)


class TestHeaders:
    @pytest.mark.parametrize("name", ["ce_id", "ce_x", "CE_Type", "content-type", "Content-Type"])
    def test_the_envelopes_own_names_are_refused(self, name: str) -> None:
        with pytest.raises(InvalidEvent, match="is the envelope's own"):
            make(headers=[(name, b"x")])

    @pytest.mark.parametrize("name", ["", "a\0", "\ud800", "x" * 256, "a\nb"])
    def test_names_that_cannot_be_carried(self, name: str) -> None:
        with pytest.raises(InvalidEvent, match=r"^header name "):
            make(headers=[(name, b"x")])

    @pytest.mark.parametrize("value", ["text", None, 5])
    def test_values_are_bytes(self, value: Any) -> None:
        with pytest.raises(InvalidEvent, match=r"^header 'a': .* must be bytes"):
            make(headers=[("a", value)])

    def test_at_most_64(self) -> None:
        assert len(make(headers=[("a", b"")] * 64).headers) == 64
        with pytest.raises(InvalidEvent, match="65 headers"):
            make(headers=[("a", b"")] * 65)

    def test_repeated_names_are_refused_only_where_the_broker_cannot_carry_them(self) -> None:
        twice = [("a", b"1"), ("b", b"2"), ("a", b"3")]
        assert make(headers=twice).headers == twice
        with pytest.raises(InvalidEvent, match="'a' stands twice"):
            make(headers=twice, repeated_headers=False)

    def test_what_is_no_pair_is_said(self) -> None:
        for wrong in (["ab", "c"], [("a",)], [5]):
            with pytest.raises(InvalidEvent, match=r"headers are pairs \(name, bytes\)"):
                make(headers=wrong)


class TestSize:
    def test_body_key_and_headers_count_together(self) -> None:
        head = [("é", b"123")]  # 5 bytes
        assert make(b"x" * 899_990, type="x", key="12345", headers=head).body is not None
        with pytest.raises(InvalidEvent, match="900001 bytes, the limit is 900000"):
            make(b"x" * 899_991, type="x", key="12345", headers=head)
        with pytest.raises(InvalidEvent, match="bytes, the limit"):
            make(Created(UUID(int=1), "x" * 900_000))

    def test_limits_are_settings(self) -> None:
        with pytest.raises(InvalidEvent, match="the limit is 10"):
            make(b"x" * 11, type="x", limits=LIMITS._replace(event_bytes=10))


class TestDue:
    """field-problems: dates-outside-python-range, processes-in-different-time-zones."""

    def test_deliver_at_is_kept_in_utc(self) -> None:
        at = datetime(2027, 1, 1, 12, tzinfo=timezone(timedelta(hours=-5)))
        made = make(deliver_at=at)
        assert made.deliver_at == at
        assert made.deliver_at is not None
        assert made.deliver_at.tzinfo is UTC
        assert make(deliver_at=datetime(1, 1, 1, tzinfo=UTC)).deliver_at == datetime(1, 1, 1, tzinfo=UTC)

    @pytest.mark.parametrize(
        "at",
        [
            datetime.max.replace(tzinfo=UTC), datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))),
            datetime.min.replace(tzinfo=timezone(timedelta(hours=12))),
            datetime(3026, 1, 1, tzinfo=UTC),
        ],
    )
    def test_dates_beyond_reach_are_a_typed_error(self, at: datetime) -> None:
        with pytest.raises(InvalidEvent, match=r"^deliver_at .* beyond"):
            make(deliver_at=at)

    def test_naive_dates_are_refused(self) -> None:
        with pytest.raises(InvalidEvent, match=r"^deliver_at has no time zone"):
            make(deliver_at=datetime(2027, 1, 1))

    @pytest.mark.parametrize(
        ("delay", "seconds"),
        [(timedelta(seconds=1.5), 1.5), (timedelta(days=36_525), 36_525 * 86_400.0), (timedelta(0), None),
         (timedelta(seconds=-5), None), (timedelta.min, None)],
    )
    def test_delays(self, delay: timedelta, seconds: float | None) -> None:
        made = make(delay=delay)
        assert (made.deliver_at, made.delay_s) == (None, seconds)

    @pytest.mark.parametrize("delay", [timedelta.max, timedelta(days=365_000), timedelta(days=36_525, microseconds=1)])
    def test_delays_beyond_reach_are_a_typed_error(self, delay: timedelta) -> None:
        with pytest.raises(InvalidEvent, match=r"^delay "):
            make(delay=delay)

    def test_wrong_kinds_and_both_at_once(self) -> None:
        for wrong in ({"delay": 5}, {"deliver_at": "2027-01-01"}):
            with pytest.raises(InvalidEvent, match=r"is a (timedelta|datetime), got (int|str)"):
                make(**wrong)
        with pytest.raises(InvalidEvent, match="exclude each other"):
            make(delay=timedelta(1), deliver_at=datetime.now(UTC))


def test_drafts_are_values() -> None:
    one = make(id="a")
    assert one == msgspec.structs.replace(one, time=one.time)
    assert make(replace(ORDER, note="n"), id="a") != one
