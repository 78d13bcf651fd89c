"""Overtaken: judged by the broker's log and the inbox, within a bound; what was not seen counts as overtaken."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bothends.admin.dead import Filter, letters
from bothends.admin.overtaken import Sorted, sort
from bothends.brokers import open_broker
from bothends.message import Origin
from bothends.ports import Broker, Outgoing
from tests.admin.shelf import Shelf

TOPIC = "orders.events"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    found = open_broker(f"embedded:///{tmp_path / 'log.db'}")
    found.create_topic(TOPIC, 1)
    yield found
    found.close()


def publish(broker: Broker, *records: tuple[bytes, str | None]) -> None:
    """(key, id) each; without an id: a foreign format."""
    publisher = broker.publisher("test")
    publisher.send(1, [
        Outgoing(TOPIC, key, b"{}", [("ce_id", id_.encode()), ("ce_source", b"orders")] if id_ else [])
        for key, id_ in records])
    assert [report.failures for report in publisher.close(10)] == [{}]


def judged(shelf: Shelf, broker: Broker | None, **more: int) -> tuple[list[str], list[str], int]:
    found = shelf.run(letters(shelf.admin, Filter()))
    parts: Sorted = sort(shelf.connection, shelf.admin, broker, found, **more)
    return [x.message_id for x in parts.ready], [x.message_id for x in parts.overtaken], parts.unsure


def test_only_what_was_processed_later_overtakes(shelf: Shelf, broker: Broker) -> None:
    publish(broker, (b"k1", "a1"), (b"k2", "b1"), (b"k3", "c1"), (b"k1", "a2"), (b"k2", "b2"), (b"other", "d1"))
    for offset, (id_, key) in enumerate([("a1", b"k1"), ("b1", b"k2"), ("c1", b"k3")]):
        shelf.letter(id_, key, offset=offset)
    shelf.inbox("a2", "p")  # processed: a1 runs late
    shelf.inbox("b2", "d")  # dead itself: b1 does not
    broker.set_position("inventory.stock", Origin(TOPIC, 0, 6))
    assert judged(shelf, broker) == (["b1", "c1"], ["a1"], 0)


def test_what_the_group_has_not_reached_does_not_overtake(shelf: Shelf, broker: Broker) -> None:
    publish(broker, (b"k1", "a1"), (b"k1", "a2"))
    shelf.letter("a1", b"k1", offset=0)
    broker.set_position("inventory.stock", Origin(TOPIC, 0, 1))
    assert judged(shelf, broker) == (["a1"], [], 0)


def test_a_held_key_is_ready_without_a_look(shelf: Shelf) -> None:
    shelf.letter("a1", b"k1")
    shelf.block(b"k1", "held")
    shelf.letter("b1", None)  # without a key there is no order to lose
    assert judged(shelf, None) == (["a1", "b1"], [], 0)


def test_without_a_broker_or_beyond_the_bound_it_counts_as_overtaken(shelf: Shelf, broker: Broker) -> None:
    publish(broker, *[(b"x", f"x{n}") for n in range(2500)])
    shelf.letter("a1", b"k1", offset=0)
    assert judged(shelf, None) == ([], ["a1"], 1)
    broker.set_position("inventory.stock", Origin(TOPIC, 0, 2500))
    assert judged(shelf, broker, read_max=1000) == ([], ["a1"], 1)
    assert judged(shelf, broker) == (["a1"], [], 0)


def test_a_foreign_message_behind_the_position_was_settled(shelf: Shelf, broker: Broker) -> None:
    publish(broker, (b"k1", "a1"), (b"k1", None))
    shelf.letter("a1", b"k1", offset=0)
    broker.set_position("inventory.stock", Origin(TOPIC, 0, 2))
    assert judged(shelf, broker) == ([], ["a1"], 0)
