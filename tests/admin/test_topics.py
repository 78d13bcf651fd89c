"""Topics: what events of an outbox wait for, on each database."""

from bothends import Service
from bothends.admin import topics
from tests.admin.shelf import Shelf


def test_an_empty_outbox_waits_for_nothing(shelf: Shelf) -> None:
    assert shelf.run(topics.waiting(shelf.admin)) == {}


def test_unpublished_held_and_delayed_events_are_counted_and_dead_ones_are_not(shelf: Shelf) -> None:
    shelf.outbox(2, topic="a")
    shelf.held(101, "place", topic="a")
    shelf.held(102, "behind", topic="b")
    shelf.held(103, "dead", topic="c", key=b"k2")
    shelf.sql("insert into {s}.delayed (seq, lane, id, source, type, topic, time, version, deliver_at) "
              "values (104, 0, 'd', 'inventory', 't', 'd', 't', 1, {now})")
    assert shelf.run(topics.waiting(shelf.admin)) == {"a": 3, "b": 1, "d": 1}


def test_a_service_has_its_own_topics_and_what_is_nobodys() -> None:
    orders, billing = Service("orders"), Service("billing")
    found = topics.uses(orders, {"orders.events": 1, "billing.events": 2, "free": 3}, [billing])
    assert {topic: use.needed for topic, use in found.items()} == {"free": True, "orders.events": True}
    assert found["free"].by == "3 waiting events"
    assert found["orders.events"].by == "1 waiting event"
    assert topics.uses(orders, {}, [billing]) == {"orders.events": topics.Use(
        "events without a topic, if there will be any", False)}


def test_a_declared_topic_with_waiting_events_says_both() -> None:
    orders = Service("orders")
    orders.consumer("audit", topic="orders.log")
    assert topics.uses(orders, {"orders.log": 7})["orders.log"].by == "read by orders.audit, 7 waiting events"
