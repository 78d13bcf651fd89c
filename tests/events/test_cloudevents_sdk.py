"""The official CloudEvents SDK as the oracle: it reads what we write, and we read what it writes [E1]."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from cloudevents.core.bindings import kafka
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given
from hypothesis import strategies as st

from bothends import event
from bothends.codecs.cloudevents import from_record, pack_attributes, pack_headers, to_headers
from bothends.drafts import Draft, draft
from bothends.message import Origin, Record

TEXT = st.text(st.characters(exclude_categories=("Cc", "Cs", "Cn", "Co")), min_size=1, max_size=30)


def wire(made: Draft) -> tuple[dict[str, bytes], bytes | None, bytes | None]:
    headers = to_headers(
        made.id, made.source, made.type, made.time, made.version, made.key, made.content_type,
        pack_attributes(made.attributes), pack_headers(made.headers),
    )
    return dict(headers), made.key, made.body


def read_by_the_sdk(made: Draft) -> Any:
    headers, key, body = wire(made)
    assert body is not None
    return kafka.from_kafka(kafka.KafkaMessage(headers=headers, key=key, value=body), JSONFormat())


def read_by_us(message: kafka.KafkaMessage) -> Any:
    key = message.key.encode() if isinstance(message.key, str) else message.key
    return from_record(Record(Origin("t", 0, 0), key, message.value, list(message.headers.items()), 0))


@given(
    data=st.dictionaries(st.text(st.characters(codec="utf-8")), st.integers(-(2**63), 2**63 - 1) | TEXT | st.none()),
    id=TEXT, source=TEXT, type=TEXT, subject=TEXT, correlation=TEXT, key=st.none() | TEXT,
)
def test_the_sdk_reads_what_we_write(
    data: dict[str, Any], id: str, source: str, type: str, subject: str, correlation: str, key: str | None,
) -> None:
    made = draft(
        data, source=source, default_topic="t", type=type, id=id, subject=subject, correlation_id=correlation, key=key,
        causation_id="cause", traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", version=2,
        headers=[("own", b"1")],
    )
    seen = read_by_the_sdk(made)
    assert (seen.get_id(), seen.get_source(), seen.get_type(), seen.get_subject()) == (id, source, type, subject)
    assert (seen.get_specversion(), seen.get_datacontenttype()) == ("1.0", "application/json")
    assert seen.get_data() == data
    assert seen.get_time() == datetime.fromisoformat(made.time)
    assert (seen.get_extension("correlationid"), seen.get_extension("causationid")) == (correlation, "cause")
    assert seen.get_extension("dataversion") == "2"
    assert seen.get_extension("partitionkey") == key
    assert "own" not in seen.get_attributes()


@pytest.mark.parametrize(("body", "content_type"), [(b"\0\xff", "application/octet-stream"), (b"<a/>", "text/xml")])
def test_the_sdk_reads_other_bodies(body: bytes, content_type: str) -> None:
    seen = read_by_the_sdk(draft(body, source="s", default_topic="t", type="raw", content_type=content_type))
    data = seen.get_data()
    assert (data.encode() if isinstance(data, str) else data) == body


@given(
    data=st.dictionaries(TEXT, st.integers(-(2**63), 2**63 - 1) | TEXT | st.booleans() | st.none()), id=TEXT, source=TEXT,
    type=TEXT, subject=st.none() | TEXT, key=st.none() | TEXT, structured=st.booleans(),
)
def test_we_read_what_the_sdk_writes(
    data: dict[str, Any], id: str, source: str, type: str, subject: str | None, key: str | None, structured: bool,
) -> None:
    attributes: dict[str, Any] = {
        "id": id, "source": source, "type": type, "specversion": "1.0", "datacontenttype": "application/json",
        "time": datetime(2026, 1, 1, 12, 30, 0, 123456, tzinfo=UTC), "correlationid": "c", "myext": "é",
    }
    attributes |= {name: value for name, value in (("subject", subject), ("partitionkey", key)) if value is not None}
    written = (kafka.to_structured_event if structured else kafka.to_binary_event)(CloudEvent(attributes, data))
    message = read_by_us(written)
    assert (message.id, message.source, message.type, message.subject) == (id, source, type, subject)
    assert (message.correlation_id, message.extensions) == ("c", {"myext": "é"})
    assert (message.content_type, message.key) == ("application/json", key.encode() if key is not None else None)
    assert datetime.fromisoformat(message.time) == attributes["time"]
    assert json.loads(message.body) == data


@pytest.mark.parametrize("structured", [False, True])
def test_we_read_the_sdks_binary_data(structured: bool) -> None:
    attributes = {"id": "1", "source": "s", "type": "t", "specversion": "1.0", "datacontenttype": "application/octet-stream"}
    made = CloudEvent(attributes, b"\0\xff{}")
    written = (kafka.to_structured_event if structured else kafka.to_binary_event)(made)
    assert read_by_us(written).body == b"\0\xff{}"


def test_events_are_named_the_same_on_both_sides() -> None:
    from dataclasses import dataclass

    @event("order.created", key="order_id")
    @dataclass
    class Created:
        order_id: str

    seen = read_by_the_sdk(draft(Created("7"), source="orders", default_topic="t"))
    assert seen.get_data() == {"order_id": "7"}
    assert {n for n, v in seen.get_attributes().items() if v is not None} == {
        "id", "source", "type", "specversion", "time", "datacontenttype", "partitionkey", "dataversion",
    }
