"""Scenario: rounds, failures, lost acknowledgements and ticks, on the product's own engine."""

import gc
import weakref
from typing import Any

import pytest
from sqlalchemy import text

from bothends import AsyncContext, ConfigError, Context, Permanent, Retry, Service
from bothends.testing import Scenario
from tests.testing.shops import OrderPlaced, StockUpdated

COSTS = {"card": 2, "warehouse": 3, "mail": 25, "ledger": 4}
ONE, TWO = OrderPlaced("1001", units=2), OrderPlaced("1002", units=1)


def shop(*names: str, **options: Any) -> Service:
    """A service whose consumers accept everything."""
    service = Service("shop")
    for name in names or ("warehouse", "mail", "ledger"):
        consumer = service.consumer(name, **options)

        @consumer.handle(OrderPlaced)
        def accept(order: OrderPlaced, ctx: Context[Any]) -> None:
            pass

    return service


def test_the_rounds_of_the_specification() -> None:
    s = Scenario(shop(), costs=COSTS)
    s.fails("mail", times=1).publish(ONE)
    assert s.run() == ["warehouse 1 processed", "mail 1 parked", "ledger 1 processed", "mail 1 processed"]
    assert (s.ticks_async, s.ticks_sync) == (2, 34)


def test_a_failed_message_stays_at_the_head_of_its_own_queue_only() -> None:
    s = Scenario(shop()).fails("mail").publish(ONE, TWO)
    assert s.run() == [
        "warehouse 1 processed", "mail 1 parked", "ledger 1 processed",
        "warehouse 2 processed", "mail 1 processed", "ledger 2 processed",
        "mail 2 processed",
    ]


def test_a_lost_ack_is_a_duplicate_in_the_next_round() -> None:
    s = Scenario(shop("warehouse")).loses_ack("warehouse", times=2).publish(ONE, TWO)
    assert s.run() == [
        "warehouse 1 processed", "warehouse 1 duplicate", "warehouse 1 duplicate", "warehouse 2 processed",
    ]


def test_a_lost_ack_of_a_failed_run_changes_nothing_about_its_retry() -> None:
    s = Scenario(shop("mail")).fails("mail").loses_ack("mail").publish(ONE)
    assert s.run() == ["mail 1 parked", "mail 1 duplicate", "mail 1 processed"]


def test_without_an_inbox_a_copy_is_handled_again() -> None:
    s = Scenario(shop("mail", inbox=False)).loses_ack("mail").publish(ONE)
    assert s.run() == ["mail 1 processed", "mail 1 processed"]


def test_attempts_that_are_used_up_are_dead_and_the_queue_goes_on() -> None:
    s = Scenario(shop("mail", retry=Retry(attempts=3))).fails("mail", times=3).publish(ONE, TWO)
    assert s.run() == ["mail 1 parked", "mail 1 parked", "mail 1 dead", "mail 2 processed"]
    assert [(dead.consumer, dead.reason) for dead in s.dead] == [("shop.mail", "transient")]


def test_behind_a_held_key_the_queue_goes_on() -> None:
    s = Scenario(shop("mail", retry=Retry(attempts=1, then="hold"))).fails("mail").publish(ONE, ONE, TWO)
    assert s.run() == ["mail 1 dead", "mail 2 parked", "mail 3 processed"]


@pytest.mark.parametrize(("mode", "first"), [("block", "parked"), ("topic", "forwarded")])
def test_other_retry_modes_stay_at_the_head_too(mode: Any, first: str) -> None:
    s = Scenario(shop("mail", retry=Retry(mode=mode))).fails("mail").publish(ONE, TWO)
    assert s.run() == [f"mail 1 {first}", "mail 1 processed", "mail 2 processed"]


def test_a_long_backoff_is_no_wait_here() -> None:
    s = Scenario(shop("mail", retry=Retry(first_s=86_400, cap_s=86_400))).fails("mail", times=4).publish(ONE)
    assert s.run() == ["mail 1 parked"] * 4 + ["mail 1 processed"]


def test_two_types_of_which_one_is_handled() -> None:
    s = Scenario(shop("mail", topic=["kit.orders", "kit.stock"])).publish(StockUpdated("brie", 1), ONE)
    assert s.run() == ["mail 1 ignored", "mail 2 processed"]


def test_what_a_handler_says_is_published_in_the_next_round() -> None:
    service = Service("shop")

    @service.consumer("warehouse").handle(OrderPlaced)
    def count(order: OrderPlaced, ctx: Context[Any]) -> None:
        ctx.emit(StockUpdated(order.sku, 9))

    @service.consumer("shelf").handle(StockUpdated)
    def show(stock: StockUpdated) -> None:
        pass

    assert Scenario(service).publish(ONE).run() == ["warehouse 1 processed", "shelf 2 processed"]


def test_async_handlers_and_a_permanent_failure() -> None:
    service = Service("shop")

    @service.consumer("mail").handle(OrderPlaced)
    async def send(order: OrderPlaced, ctx: AsyncContext[Any]) -> None:
        if order is not None and order.order == "1002":
            raise Permanent("no address", reason="no_address")

    s = Scenario(service).fails("mail").publish(ONE, TWO)
    assert s.run() == ["mail 1 parked", "mail 1 processed", "mail 2 dead"]
    assert s.dead[0].reason == "no_address"


def test_a_scenario_goes_on_after_its_end() -> None:
    s = Scenario(shop("mail")).publish(ONE)
    assert s.run() == ["mail 1 processed"]
    assert s.run() == []
    assert s.publish(TWO).run() == ["mail 2 processed"]


def test_rounds_one_by_one() -> None:
    s = Scenario(shop("mail", "ledger")).publish(ONE, TWO)
    assert s.round() == ["mail 1 processed", "ledger 1 processed"]
    assert s.round() == ["mail 2 processed", "ledger 2 processed"]
    assert s.round() == []


def test_the_service_itself_is_left_as_it_was() -> None:
    service = shop("mail")
    before = dict(service.consumers["mail"].handlers)
    Scenario(service).fails("mail", times=9).publish(ONE)
    assert service.consumers["mail"].handlers == before
    assert Scenario(service).publish(ONE).run() == ["mail 1 processed"], "two scenarios of one service do not meet"


def test_names_and_numbers_that_are_wrong() -> None:
    s = Scenario(shop())
    with pytest.raises(ConfigError, match="warehouse, mail, ledger"):
        s.fails("post")
    with pytest.raises(ConfigError, match="no consumer 'post'"):
        s.loses_ack("post")
    with pytest.raises(ValueError, match="at least 1"):
        s.fails("mail", times=0)


def test_costs_only_make_ticks() -> None:
    s = Scenario(shop("mail"), costs={"card": 2, "stamp": 1, "mail": 25})
    assert (s.ticks_async, s.ticks_sync) == (3, 28)
    assert Scenario(shop()).ticks_sync == 0


def test_a_scenario_on_a_database_of_ones_own(database_url: str) -> None:
    s = Scenario(shop("mail", retry=Retry(attempts=2)), database=database_url).fails("mail", times=2).publish(ONE, TWO)
    assert s.run() == ["mail 1 parked", "mail 1 dead", "mail 2 processed"]
    with s.session() as session:
        assert session.scalar(text("select 1")) == 1
    s.close()


def test_a_scenario_that_nobody_holds_is_closed() -> None:
    s = Scenario(shop("mail"))
    gone = weakref.ref(s)
    connection = s.connection
    del s
    gc.collect()
    assert gone() is None
    with pytest.raises(Exception, match="closed"):
        connection.execute("select 1")
