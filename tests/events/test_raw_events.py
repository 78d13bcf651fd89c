"""Events whose body is bytes of any format: a subclass of ``bytes``, byte-identical from ``add`` to the handler."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from bothends import ConfigError, Context, InvalidEvent, Service, event
from bothends.codecs.json import codec_for, decode
from bothends.drafts import draft
from bothends.events import describe
from bothends.testing import Harness

BODY = b"<order id='17'>\x00\xff\xc3\x28</order>"


@event("order.imported", topic="legacy.orders", version=3)
class OrderImported(bytes):
    """XML of the old system."""


def test_the_declaration_counts() -> None:
    made = draft(OrderImported(BODY), source="s", default_topic="t", key="17", content_type="application/xml")
    assert (made.type, made.topic, made.version, made.key, made.body) == ("order.imported", "legacy.orders", 3, b"17", BODY)
    assert made.content_type == "application/xml"


def test_round_trip() -> None:
    codec = codec_for(OrderImported)
    back = decode(codec.encode(OrderImported(BODY)), describe(OrderImported))
    assert isinstance(back, OrderImported)
    assert back == BODY


def test_plain_bytes_still_need_a_type() -> None:
    with pytest.raises(InvalidEvent, match="type= is needed"):
        draft(BODY, source="s", default_topic="t")


def test_an_undeclared_subclass_needs_a_type() -> None:
    class Other(bytes):
        pass

    with pytest.raises(InvalidEvent, match="type= is needed"):
        draft(Other(BODY), source="s", default_topic="t")


def test_a_key_attribute_must_exist() -> None:
    with pytest.raises(ConfigError, match="key='order_id' is no attribute"):

        @event("x", key="order_id")
        class X(bytes):
            pass


def test_a_handler_gets_the_bytes_on_the_first_run_and_on_a_retry(tmp_path: Path) -> None:
    service = Service("imports")
    consumer = service.consumer("store", owner="team-imports")
    runs: list[OrderImported] = []

    @consumer.handle(OrderImported)
    def keep(body: OrderImported, ctx: Context[sqlite3.Connection]) -> None:
        runs.append(body)
        if ctx.attempt == 1:
            raise RuntimeError("again")

    with Harness(service, database=f"sqlite:///{tmp_path}/raw.db") as h:
        connection = h.connection()
        connection.execute("begin immediate")
        service.outbox.add(connection, OrderImported(BODY), key="17")
        connection.commit()
        h.settle()
        assert not h.dead
    assert runs == [BODY, BODY]
    assert all(isinstance(body, OrderImported) for body in runs)
