"""Reading records and letters: whatever comes, a consumer lives and no byte is lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bothends import ForeignJson, Service
from bothends.letters import KeyOf, pack_headers, unpack_headers
from bothends.message import Origin, Record
from bothends.service import Consumer
from bothends.worker.deliveries import Verdict, read, read_letter
from tests.worker.conftest import TOPIC, Placed


def consumer(**options: Any) -> Consumer:
    made = Service("shop").consumer("stock", **options)
    made.handle(Placed)(lambda event: None)
    return made


def record(*headers: tuple[str, bytes], key: bytes | None = b"o1", body: bytes | None = b'{"order":"o1"}') -> Record:
    return Record(Origin(TOPIC, 0, 7), key, body, [
        ("ce_specversion", b"1.0"), ("ce_id", b"1"), ("ce_source", b"orders"), ("ce_type", b"order.placed"), *headers,
    ], 5)


def test_a_record_becomes_an_event_with_its_name_and_queue() -> None:
    delivery = read(consumer(), record())
    assert (delivery.verdict, delivery.event, delivery.name) == (Verdict.RUN, Placed("o1"), ("orders", "1"))
    assert delivery.queue == KeyOf(TOPIC, True, b"o1")
    assert read(consumer(), record(key=None)).queue == KeyOf(TOPIC, False, b"1")
    assert read(consumer(), record(key=b"")).queue == KeyOf(TOPIC, True, b"")


def test_versions() -> None:
    for version, verdict in ((b"1", Verdict.RUN), (b"2", Verdict.RUN), (b"3", Verdict.NEWER), (b"99", Verdict.NEWER)):
        assert read(consumer(), record(("ce_dataversion", version))).verdict is verdict
    assert read(consumer(), record()).verdict is Verdict.RUN


def test_fields_that_were_added_are_ignored_and_missing_ones_are_named() -> None:
    assert read(consumer(), record(body=b'{"order":"o1","colour":"red"}')).event == Placed("o1")
    missing = read(consumer(), record(body=b'{"amount":1}'))
    assert missing.verdict is Verdict.BROKEN
    assert missing.problem is not None
    assert missing.problem.reason == "schema"


def test_headers_that_are_no_text_stop_nobody() -> None:
    raw = b"\xc3\x28".decode("utf-8", "surrogateescape")
    delivery = read(consumer(), record(("bad", b"\xc3\x28"), (raw, b"v"), ("name", "ø".encode())))
    assert delivery.verdict is Verdict.RUN
    assert delivery.message is not None
    assert ("bad", b"\xc3\x28") in list(delivery.message.headers)
    letter = delivery.to_letter(reason="x", error="", fingerprint="")
    assert list(letter.record().headers) == list(delivery.record.headers)


def test_a_letter_is_read_by_todays_declarations() -> None:
    delivery = read(consumer(), record())
    delivery.attempts = 3
    letter = delivery.to_letter(reason="handler_error", error="e", fingerprint="f")._replace(position=9)
    again = read_letter(consumer(), letter)
    assert (again.verdict, again.name, again.attempts, again.queue) == (Verdict.RUN, delivery.name, 3, delivery.queue)
    assert again.record == replace(delivery.record, headers=list(delivery.record.headers))
    none = Service("shop").consumer("other")
    gone = read_letter(none, letter)
    assert (gone.verdict, gone.name) == (Verdict.BROKEN, delivery.name)
    broken = read_letter(consumer(), letter._replace(headers=pack_headers([])))
    assert (broken.verdict, broken.name) == (Verdict.BROKEN, delivery.name)


def test_foreign_json_gets_its_id_key_and_source_by_rule() -> None:
    rule = ForeignJson(type="order.placed", id="no", key="order")
    delivery = read(consumer(format=rule), Record(Origin(TOPIC, 0, 1), None, b'{"no":17,"order":"o2"}', [], 1))
    assert (delivery.name, delivery.queue.key) == ((f"topic:{TOPIC}", "17"), b"o2")
    no_id = read(consumer(format=rule), Record(Origin(TOPIC, 0, 1), None, b'{"order":"o2"}', [], 1))
    assert no_id.problem is not None
    assert no_id.problem.reason == "no_id"


@given(
    st.binary(max_size=50) | st.none(), st.binary(max_size=200) | st.none(),
    st.lists(st.tuples(st.sampled_from(["ce_id", "ce_source", "ce_type", "ce_specversion", "content-type", "x"]),
                       st.binary(max_size=30)), max_size=8),
)
def test_no_record_stops_a_consumer(key: bytes | None, body: bytes | None, headers: list[tuple[str, bytes]]) -> None:
    made = consumer()
    delivery = read(made, Record(Origin(TOPIC, 0, 1), key, body, headers, 1))
    letter = delivery.to_letter(reason="r", error="", fingerprint="")
    assert (letter.body, letter.record_key) == (body, key)
    assert list(letter.record().headers) == headers
    read_letter(made, letter)


@given(st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=20)), max_size=10))
def test_headers_survive_their_packing(raw: list[tuple[bytes, bytes]]) -> None:
    headers = [(name.decode("utf-8", "surrogateescape"), value) for name, value in raw]
    assert list(unpack_headers(pack_headers(headers))) == headers
