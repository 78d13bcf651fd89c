"""The envelope on the wire: what we write, and whatever we may be sent [E1]."""

import base64
import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothends.codecs.cloudevents import (
    from_record,
    pack_attributes,
    pack_headers,
    to_headers,
    unpack_attributes,
    unpack_headers,
)
from bothends.errors import Undecodable
from bothends.message import Message, Origin, Record

MINIMAL = [("ce_specversion", b"1.0"), ("ce_id", b"m1"), ("ce_source", b"shop"), ("ce_type", b"t")]
TEXT = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=50)


def record(
    headers: list[tuple[str, bytes]], value: bytes | None = b"{}", key: bytes | None = None, at: int = 3,
) -> Record:
    return Record(Origin("orders.events", 2, at), key, value, headers, 1_700_000_000_000)


def written(**changes: Any) -> list[tuple[str, bytes]]:
    columns: dict[str, Any] = {
        "id": "m1", "source": "shop", "type": "order.created", "time": "2026-01-01T00:00:00.000001Z", "version": 1,
        "key": b"k", "content_type": "application/json", "attributes": None, "headers": None,
    }
    return to_headers(**{**columns, **changes})


class TestWriting:
    def test_names_are_those_of_the_kafka_binding(self) -> None:
        attributes = {"subject": "s", "correlationid": "c", "causationid": "p", "traceparent": "00-1-2-01"}
        assert written(attributes=pack_attributes(attributes), headers=pack_headers([("own", b"1"), ("own", b"\xff")])) == [
            ("ce_specversion", b"1.0"), ("ce_id", b"m1"), ("ce_source", b"shop"), ("ce_type", b"order.created"),
            ("ce_time", b"2026-01-01T00:00:00.000001Z"), ("ce_dataversion", b"1"), ("content-type", b"application/json"),
            ("ce_partitionkey", b"k"), ("ce_subject", b"s"), ("ce_correlationid", b"c"), ("ce_causationid", b"p"),
            ("ce_traceparent", b"00-1-2-01"), ("own", b"1"), ("own", b"\xff"),
        ]

    def test_values_are_utf8_and_never_percent_encoded(self) -> None:
        headers = dict(written(id="é %20 \U0001f445", attributes=pack_attributes({"subject": 'a"b\\ü'})))
        assert headers["ce_id"] == "é %20 \U0001f445".encode()
        assert headers["ce_subject"] == 'a"b\\ü'.encode()

    @pytest.mark.parametrize(
        ("key", "partitionkey"),
        [(None, None), (b"", None), (b"\x83", None), (b"a\x00", None), (b"a\nb", None), (b"a-1", b"a-1"),
         ("é".encode(), "é".encode())],
    )
    def test_partitionkey_only_where_the_key_is_valid_text(self, key: bytes | None, partitionkey: bytes | None) -> None:
        assert dict(written(key=key)).get("ce_partitionkey") == partitionkey

    def test_without_content_type_there_is_no_header(self) -> None:
        assert "content-type" not in dict(written(content_type=None))

    @pytest.mark.parametrize("version", [1, 99, 100, 2**31 - 1])
    def test_versions(self, version: int) -> None:
        assert dict(written(version=version))["ce_dataversion"] == str(version).encode()

    def test_unknown_attributes_of_the_column_are_written_too(self) -> None:
        assert dict(written(attributes='{"sequence":"7"}'))["ce_sequence"] == b"7"


class TestColumns:
    def test_nothing_is_null(self) -> None:
        assert (pack_attributes({}), pack_headers([])) == (None, None)
        assert (unpack_attributes(None), unpack_headers(None)) == ({}, [])

    @given(st.dictionaries(st.sampled_from(["subject", "correlationid"]), st.text(st.characters(codec="utf-8"))))
    def test_attributes_survive(self, attributes: dict[str, str]) -> None:
        assert unpack_attributes(pack_attributes(attributes)) == attributes

    @given(st.lists(st.tuples(st.text(st.characters(codec="utf-8")), st.binary())))
    def test_headers_survive_in_order_with_repeats(self, headers: list[tuple[str, bytes]]) -> None:
        assert unpack_headers(pack_headers(headers)) == headers


@given(
    id=TEXT, source=TEXT, type=TEXT, subject=st.none() | TEXT, correlation=st.none() | TEXT, key=st.none() | st.binary(),
    version=st.integers(1, 2**31 - 1), body=st.none() | st.binary(),
    headers=st.lists(st.tuples(TEXT.map(lambda name: f"x-{name}"), st.binary()), max_size=5),
)
def test_what_is_written_is_read_back(
    id: str, source: str, type: str, subject: str | None, correlation: str | None, key: bytes | None, version: int,
    body: bytes | None, headers: list[tuple[str, bytes]],
) -> None:
    attributes = {n: v for n, v in (("subject", subject), ("correlationid", correlation)) if v is not None}
    wire = written(
        id=id, source=source, type=type, key=key, version=version, attributes=pack_attributes(attributes),
        headers=pack_headers(headers),
    )
    assert from_record(record(wire, body, key)) == Message(
        id=id, source=source, type=type, key=key, headers=headers, body=body, time="2026-01-01T00:00:00.000001Z",
        subject=subject, content_type="application/json", version=version if version < 10**9 else None,
        correlation_id=correlation, extensions={} if version < 10**9 else {"dataversion": str(version)},
        topic="orders.events", partition=2, offset=3,
    )


class TestReadingBinary:
    def test_header_bytes_not_utf8(self) -> None:
        """field-problems: header-bytes-not-utf8."""
        bad = [("bad", b"\xc3\x28"), ("name", "ø".encode()), ("nam\udce9", b"x"), ("ce_subject", b"\xc3\x28")]
        message = from_record(record([*MINIMAL, *bad], key=b"\x83"))
        assert (message.id, message.key, message.subject) == ("m1", b"\x83", None)
        assert message.headers == bad
        assert from_record(record(MINIMAL, at=4)).offset == 4

    @pytest.mark.parametrize("value", [None, b"", b"null", b"{}"])
    def test_four_values_stay_apart(self, value: bytes | None) -> None:
        message = from_record(record([*MINIMAL, ("own", b"1")], value, b"k"))
        assert (message.body, message.key, message.headers) == (value, b"k", [("own", b"1")])

    @pytest.mark.parametrize("spoilt", [None, b"", b"\xff", b"a\0", b"a\nb", b"x" * 1025])
    @pytest.mark.parametrize(("name", "reason"), [("id", "no_id"), ("source", "undecodable"), ("type", "undecodable")])
    def test_without_id_source_or_type_it_is_undecodable(self, name: str, reason: str, spoilt: bytes | None) -> None:
        headers = [h for h in MINIMAL if h[0] != f"ce_{name}"] + ([(f"ce_{name}", spoilt)] if spoilt is not None else [])
        with pytest.raises(Undecodable, match=rf"record orders.events:2:3 has no CloudEvents {name} .*ForeignJson") as problem:
            from_record(record(headers))
        assert problem.value.reason == reason

    def test_names_in_any_case_and_the_last_of_repeated_ones(self) -> None:
        message = from_record(record([
            ("CE_ID", b"old"), ("ce_id", b"new"), ("Ce_Source", b"s"), ("ce_TYPE", b"t"), ("Content-Type", b"text/plain"),
        ]))
        assert (message.id, message.source, message.type, message.content_type) == ("new", "s", "t", "text/plain")

    def test_other_attributes_are_extensions_and_other_headers_stay_in_order(self) -> None:
        message = from_record(record([
            ("a", b"1"), *MINIMAL, ("ce_sequence", b"7"), ("a", b"2"), ("ce_partitionkey", b"other"), ("ce_", b"?"),
        ], key=b"k"))
        assert message.extensions == {"sequence": "7", "partitionkey": "other"}
        assert message.headers == [("a", b"1"), ("a", b"2"), ("ce_", b"?")]

    @pytest.mark.parametrize("version", [b"0", b"-1", b"1.0", b"x", b"01", "٣".encode(), b"9" * 30])
    def test_a_dataversion_that_is_no_number_is_an_extension(self, version: bytes) -> None:
        message = from_record(record([*MINIMAL, ("ce_dataversion", version)]))
        assert (message.version, message.extensions) == (None, {"dataversion": version.decode()})

    def test_specversion(self) -> None:
        assert from_record(record(MINIMAL[1:])).id == "m1"
        assert from_record(record([("ce_specversion", b"1.9"), *MINIMAL[1:]])).id == "m1"
        with pytest.raises(Undecodable, match=r"'0\.3' is not understood"):
            from_record(record([("ce_specversion", b"0.3"), *MINIMAL[1:]]))

    @given(st.lists(st.tuples(st.text(max_size=20), st.binary(max_size=20))), st.none() | st.binary())
    def test_no_header_stops_a_consumer(self, headers: list[tuple[str, bytes]], value: bytes | None) -> None:
        own = [h for h in headers if not h[0].lower().startswith("ce_") and h[0].lower() != "content-type"]
        assert from_record(record([*own, *MINIMAL], value)).headers == own
        with contextlib.suppress(Undecodable):
            from_record(record(headers, value))


def structured(event: Any, *, content_type: str = "application/cloudevents+json; charset=UTF-8") -> Record:
    value = event if isinstance(event, bytes) else json.dumps(event).encode()
    return record([("a", b"1"), ("content-type", content_type.encode())], value, b"k")


EVENT = {"specversion": "1.0", "id": "m1", "source": "shop", "type": "t"}


class TestReadingStructured:
    def test_attributes_and_json_data_as_written(self) -> None:
        body = b'{"price": 1.10, "n":616581622363398142,"s":"\\u00e9"}'
        head = json.dumps({**EVENT, "time": "2026-01-01T00:00:00Z", "subject": "s", "dataversion": 2, "flag": True,
                           "gone": None, "correlationid": "c", "causationid": "p", "partitionkey": "k"})
        message = from_record(structured(head[:-1].encode() + b', "data": ' + body + b"}"))
        assert message == Message(
            id="m1", source="shop", type="t", key=b"k", headers=[("a", b"1")], body=body, time="2026-01-01T00:00:00Z",
            subject="s", content_type="application/json", version=2, correlation_id="c", causation_id="p",
            extensions={"flag": "true"}, topic="orders.events", partition=2, offset=3,
        )

    @pytest.mark.parametrize(
        ("members", "body"),
        [
            ({}, None), ({"data": None}, b"null"), ({"data": "x"}, b'"x"'), ({"data": [1]}, b"[1]"),
            ({"data": "é<a/>", "datacontenttype": "text/xml"}, "é<a/>".encode()),
            ({"data": "x", "datacontenttype": "application/vnd.a+json;v=1"}, b'"x"'),
            ({"data": {"a": 1}, "datacontenttype": "text/plain"}, b'{"a": 1}'),
            ({"data_base64": base64.b64encode(b"\0\xff").decode()}, b"\0\xff"), ({"data_base64": ""}, b""),
        ],
    )
    def test_data(self, members: dict[str, Any], body: bytes | None) -> None:
        assert from_record(structured({**EVENT, **members})).body == body

    @pytest.mark.parametrize(
        ("event", "problem"),
        [
            (b"", "broken"), (b"[]", "broken"), (b"{", "broken"), (b"[" * 50_000, "broken"), (b'{"id":NaN}', "broken"),
            (b'{"id":"\xff"}', "broken"), ({**EVENT, "data": 1, "data_base64": ""}, "exclude each other"),
            ({**EVENT, "data_base64": "@@@"}, "broken"), ({**EVENT, "data_base64": 5}, "broken"),
            ({**EVENT, "subject": "a\0"}, "control characters"), ({**EVENT, "subject": {}}, "neither text"),
            ({**EVENT, "subject": "\ud800"}, "broken"), ({**EVENT, "subject": 1.5}, "neither text"),
            ({**EVENT, "specversion": "0.3"}, "is not understood"), ({**EVENT, "source": ""}, "no CloudEvents source"),
            ({**EVENT, "type": None}, "no CloudEvents type"),
        ],
    )
    def test_broken_events_say_what_is_wrong(self, event: Any, problem: str) -> None:
        with pytest.raises(Undecodable, match=problem) as raised:
            from_record(structured(event))
        assert raised.value.reason == "undecodable"

    def test_without_id(self) -> None:
        for broken in (structured({**EVENT, "id": ""}), record([("content-type", b"application/cloudevents+json")], None)):
            with pytest.raises(Undecodable) as problem:
                from_record(broken)
            assert problem.value.reason == "no_id"

    @pytest.mark.parametrize(
        ("content_type", "problem"),
        [("application/cloudevents-batch+json", "batch mode is not accepted"),
         ("application/cloudevents+avro", r"\+avro' is not understood"), ("Application/CloudEvents", "not understood")],
    )
    def test_other_formats_are_refused_clearly(self, content_type: str, problem: str) -> None:
        with pytest.raises(Undecodable, match=problem):
            from_record(structured([EVENT], content_type=content_type))

    @given(st.binary(max_size=100))
    def test_no_bytes_stop_a_consumer(self, value: bytes) -> None:
        with pytest.raises(Undecodable):
            from_record(structured(value))
