"""Kafka's answers, rewritten: by frames, in any pieces, and with the real client and broker."""

import struct
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothends.demo.kafka_addresses import Rewriter
from bothends.demo.proxies import Address, Proxies


def moved(host: str, port: int) -> tuple[str, int]:
    return f"proxy-of-{host}", port + 10_000


def text(value: str) -> bytes:
    return struct.pack("!h", len(value)) + value.encode()


def frame(body: bytes) -> bytes:
    return struct.pack("!i", len(body)) + body


def request(api: int, version: int, correlation: int, rest: bytes = b"\xff\xff") -> bytes:
    return frame(struct.pack("!hhi", api, version, correlation) + rest)


def answer(correlation: int, body: bytes) -> bytes:
    return frame(struct.pack("!i", correlation) + body)


def metadata(hosts: list[tuple[str, int]], version: int = 8) -> bytes:
    brokers = b"".join(
        struct.pack("!i", n) + text(host) + struct.pack("!i", port) + struct.pack("!h", -1)
        for n, (host, port) in enumerate(hosts)
    )
    throttle = b"\0\0\0\0" if version >= 3 else b""
    return throttle + struct.pack("!i", len(hosts)) + brokers + b"the rest, untouched"


def both(rewriter: Rewriter, asked: bytes, answered: bytes) -> bytes:
    assert rewriter.request(asked) == asked
    return rewriter.answer(answered)


@pytest.mark.parametrize("version", [1, 3, 8])
def test_metadata_names_the_proxy(version: int) -> None:
    hosts = [("kafka-1", 9092), ("kafka-2.example", 9093)]
    got = both(Rewriter(moved), request(3, version, 7), answer(7, metadata(hosts, version)))
    assert got == answer(7, metadata([moved(*host) for host in hosts], version))


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_coordinator_is_the_proxy(version: int) -> None:
    def body(host: str, port: int) -> bytes:
        head = struct.pack("!ih", 0, 0) + struct.pack("!h", -1) if version else struct.pack("!h", 0)
        return head + struct.pack("!i", 1) + text(host) + struct.pack("!i", port)

    got = both(Rewriter(moved), request(10, version, 9), answer(9, body("kafka-1", 9092)))
    assert got == answer(9, body("proxy-of-kafka-1", 19092))


def test_no_coordinator_yet_stays_so() -> None:
    body = struct.pack("!ih", 0, 15) + text("not available") + struct.pack("!i", -1) + text("") + struct.pack("!i", -1)
    assert both(Rewriter(moved), request(10, 2, 9), answer(9, body)) == answer(9, body)


ROWS = [(0, 3, 13), (1, 4, 17), (3, 0, 13), (10, 0, 6), (18, 0, 4), (60, 0, 2)]
LOWERED = [(0, 3, 13), (1, 4, 17), (3, 0, 8), (10, 0, 2), (18, 0, 4)]


def versions(rows: list[tuple[int, int, int]], flexible: bool, error: int = 0) -> bytes:
    head = struct.pack("!h", error)
    if flexible:
        packed = b"".join(struct.pack("!hhh", *row) + b"\0" for row in rows)
        return head + bytes([len(rows) + 1]) + packed + b"\0\0\0\0\0"
    return head + struct.pack("!i", len(rows)) + b"".join(struct.pack("!hhh", *row) for row in rows) + b"\0\0\0\0"


@pytest.mark.parametrize(("version", "flexible"), [(0, False), (2, False), (3, True), (4, True)])
def test_versions_are_lowered_to_what_can_be_read(version: int, flexible: bool) -> None:
    got = both(Rewriter(moved), request(18, version, 1), answer(1, versions(ROWS, flexible)))
    assert got == answer(1, versions(LOWERED, flexible))


def test_a_version_that_the_broker_does_not_know_is_answered_in_the_oldest_format() -> None:
    got = both(Rewriter(moved), request(18, 4, 1), answer(1, versions(ROWS, False, error=35)))
    assert got == answer(1, versions(LOWERED, False, error=35))


def test_everything_else_passes_untouched() -> None:
    rewriter = Rewriter(moved)
    fetched = answer(5, metadata([("kafka-1", 9092)]))  # looks like one, but a fetch was asked
    assert both(rewriter, request(1, 17, 5), fetched) == fetched


@given(st.lists(st.tuples(st.sampled_from([0, 1, 3]), st.binary(max_size=40)), max_size=8), st.data())
def test_pieces_of_any_size_give_the_same(asked: list[tuple[int, bytes]], data: st.DataObject) -> None:
    sent = b"".join(request(api, 8, n, b"\xff\xff" + rest) for n, (api, rest) in enumerate(asked))
    hosts = [("kafka-1", 9092)]
    answers = b"".join(
        answer(n, metadata(hosts) + rest if api == 3 else rest) for n, (api, rest) in enumerate(asked)
    )
    expected = b"".join(
        answer(n, metadata([moved(*hosts[0])]) + rest if api == 3 else rest) for n, (api, rest) in enumerate(asked)
    )
    rewriter = Rewriter(moved)
    assert b"".join(map(rewriter.request, _pieces(sent, data))) == sent
    assert b"".join(map(rewriter.answer, _pieces(answers, data))) == expected


def _pieces(whole: bytes, data: st.DataObject) -> list[bytes]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=10)))
    return [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", struct.pack("!i", -1) + b"\0" * 20])
def test_what_is_not_kafka_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a Kafka frame"):
        Rewriter(moved).request(data)


def test_kafkas_clients_stay_behind_the_proxy(kafka_url: str, topic_prefix: str) -> None:
    from confluent_kafka import Consumer, Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    parts = urlsplit(kafka_url)
    proxies = Proxies({"broker": Address(str(parts.hostname), parts.port or 9092)}, kafka=["broker"])
    here = proxies.addresses["broker"]
    client: dict[str, Any] = {"bootstrap.servers": f"{here.host}:{here.port}", "log_level": 0}
    admin = AdminClient(client)
    found = admin.list_topics(timeout=10).brokers
    assert {(b.host, b.port) for b in found.values()} == {tuple(here)}
    topic = f"{topic_prefix}proxied"
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result()
    producer = Producer(client | {"enable.idempotence": True})
    consumer = Consumer(client | {"group.id": topic, "auto.offset.reset": "earliest", "group.protocol": "classic"})
    consumer.subscribe([topic])
    producer.produce(topic, b"1")
    assert producer.flush(10) == 0
    (first,) = consumer.consume(1, 20)
    assert first.value() == b"1"

    proxies.cut("broker")
    producer.produce(topic, b"2")
    assert producer.flush(0.5) == 1
    proxies.restore("broker")
    assert producer.flush(20) == 0
    (second,) = consumer.consume(1, 20)
    assert second.value() == b"2"
    consumer.close()
    proxies.close()
