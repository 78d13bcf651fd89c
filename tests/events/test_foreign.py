"""Records of producers that know nothing of CloudEvents [A15][C3]."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothends import ConfigError, ForeignJson, Message
from bothends.core.hashing import content_hash
from bothends.errors import Undecodable
from bothends.message import Origin, Record

SHIPMENT = ForeignJson(type="shipment.sent", id="shipmentId", key="orderNo", time="sentAt")


def record(value: bytes | None, key: bytes | None = b"raw", headers: Any = ()) -> Record:
    return Record(Origin("legacy.shipments", 1, 42), key, value, headers, 0)


def test_fields_make_the_envelope() -> None:
    body = b'{"shipmentId":"S-1","orderNo":"17","sentAt":"2026-01-01T00:00:00Z","price":1.10,"x":{"y":[]}}'
    assert SHIPMENT.message(record(body, headers=[("a", b"\xff")])) == Message(
        id="S-1", source="topic:legacy.shipments", type="shipment.sent", key=b"17", headers=[("a", b"\xff")], body=body,
        time="2026-01-01T00:00:00Z", content_type="application/json", topic="legacy.shipments", partition=1, offset=42,
    )


@pytest.mark.parametrize(
    ("token", "id"), [(b"7", "7"), (b"616581622363398142", "616581622363398142"), (b'"\\u00e9"', "é"), (b'" "', " ")],
)
def test_ids_are_text_or_whole_numbers(token: bytes, id: str) -> None:
    assert SHIPMENT.message(record(b'{"shipmentId":' + token + b"}")).id == id


@pytest.mark.parametrize(
    "token", [b'""', b"null", b"true", b"1.5", b"1e3", b"[1]", b"{}", b'"a\\u0000"', b'"%s"' % (b"x" * 1025)],
)
def test_what_is_no_id_is_said(token: bytes) -> None:
    with pytest.raises(Undecodable, match=r"legacy\.shipments:1:42: its id rule \(field 'shipmentId'\)") as problem:
        SHIPMENT.message(record(b'{"shipmentId":' + token + b"}"))
    assert problem.value.reason == "no_id"


def test_without_the_field_or_a_value_there_is_no_id() -> None:
    for value in (b"{}", None):
        with pytest.raises(Undecodable) as problem:
            SHIPMENT.message(record(value))
        assert problem.value.reason == "no_id"


@pytest.mark.parametrize("value", [
    b"", b"<xml/>", b"[1]", b"null", b'"x"', b"{", b'{"a":NaN}', b"\xff", b'{"a":' + b"[" * 50_000,
])
def test_what_is_no_json_object_is_undecodable(value: bytes) -> None:
    with pytest.raises(Undecodable, match=r"legacy\.shipments:1:42 is no JSON object") as problem:
        SHIPMENT.message(record(value))
    assert problem.value.reason == "undecodable"


def test_without_the_key_field_the_records_key_orders() -> None:
    assert SHIPMENT.message(record(b'{"shipmentId":"1"}')).key == b"raw"
    assert SHIPMENT.message(record(b'{"shipmentId":"1","orderNo":null}', None)).key is None
    assert SHIPMENT.message(record(b'{"shipmentId":"1","orderNo":""}')).key == b""
    assert SHIPMENT.message(record(b'{"shipmentId":"1","orderNo":5}')).key == b"5"
    assert ForeignJson(type="t", id="i").message(record(b'{"i":1}', b"\x83")).key == b"\x83"


def test_a_source_may_be_given() -> None:
    assert ForeignJson(type="t", id="i", source="erp").message(record(b'{"i":1}')).source == "erp"


def test_position_and_body_hash_on_request() -> None:
    by_position = ForeignJson(type="t", id=ForeignJson.POSITION)
    by_hash = ForeignJson(type="t", id=ForeignJson.BODY_HASH)
    for value in (None, b"", b"not json", b'{"a":1}'):
        assert by_position.message(record(value)).id == "legacy.shipments:1:42"
        assert by_hash.message(record(value)).id == content_hash(value).hex()
    assert by_hash.message(record(b'{"a":1,"b":2}')).id == by_hash.message(record(b'{"b":2, "a":1}')).id


def test_a_function_sees_the_message() -> None:
    rule = ForeignJson(type="t", id=lambda m: dict(m.headers)["id"].decode())
    assert rule.message(record(b"x", headers=[("id", b"7")])).id == "7"
    with pytest.raises(Undecodable, match=r"the id rule <lambda> raised KeyError\('id'\)") as problem:
        rule.message(record(b"x"))
    assert problem.value.reason == "no_id"
    with pytest.raises(Undecodable, match="gives no id"):
        ForeignJson(type="t", id=lambda m: None).message(record(b"x"))  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("wrong", [{"id": "", "type": "t"}, {"id": "i", "type": ""}, {"id": "i", "type": "t", "source": ""}])
def test_empty_rules_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        ForeignJson(**wrong)


@given(st.binary(max_size=80))
def test_no_bytes_stop_a_consumer(value: bytes) -> None:
    with contextlib.suppress(Undecodable):
        SHIPMENT.message(record(value))
