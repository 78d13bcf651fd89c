"""Harness: flows through the product's own outbox, relay, inbox and parking, with a memory broker and a virtual clock."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from bothends import ConfigError, Context, InvalidEvent, Permanent, Retry, RetryAfter, Service
from bothends.errors import StoreUnavailable
from bothends.testing import Harness
from tests.testing import shops
from tests.testing.shops import OrderPlaced, Shop, StockUpdated


def stocked(harness: Harness, service: Service | None = None) -> None:
    """The table, with 10 units."""
    with harness.session(service) as session:
        session.execute(text(shops.TABLE))
        session.execute(text(shops.ROW))
        session.commit()


def place(harness: Harness, shop: Shop, *orders: OrderPlaced, **options: Any) -> None:
    with harness.session(shop.orders) as session:
        for order in orders:
            shop.orders.outbox.add(session, order, **options)
        session.commit()


def units(harness: Harness, service: Service | None = None) -> int:
    with harness.session(service) as session:
        return int(session.scalar(text("select units from stock")))


def fails(times: int, error: type[Exception] = RuntimeError) -> Any:
    """Fails the first ``times`` runs."""
    left = [times]

    def fail(order: str, attempt: int) -> None:
        if left[0]:
            left[0] -= 1
            raise error("as planned")

    return fail


@pytest.mark.parametrize("make", [shops.make, shops.make_async])
def test_a_flow_on_every_database(database_url: str, make: Any) -> None:
    shop = make()
    with Harness(shop.orders, shop.stock, database=database_url, deliver_twice=True) as h:
        stocked(h)
        place(h, shop, OrderPlaced("1", units=2), OrderPlaced("2"))
        assert h.settle() is h
        assert sorted(e.left for e in h.published(StockUpdated)) in ([7, 8], [7, 9])
        assert h.published(OrderPlaced) == [OrderPlaced("1", units=2), OrderPlaced("2")]
        assert units(h) == 7
        assert h.dead == []
    assert len(shop.runs) == 2


def test_without_a_database_each_harness_has_its_own_in_memory() -> None:
    first, second = shops.make(), shops.make()
    with Harness(first.orders, first.stock) as one, Harness(second.orders, second.stock) as two:
        stocked(one)
        stocked(two)
        place(one, first, OrderPlaced("1"))
        one.settle()
        two.settle()
        assert (units(one), units(two)) == (9, 10)


def test_services_with_databases_of_their_own(tmp_path: Path) -> None:
    shop = shops.make()
    urls = {"orders": f"sqlite:///{tmp_path}/orders.db", "stock": f"sqlite:///{tmp_path}/stock.db"}
    with Harness(shop.orders, shop.stock, database=urls) as h:
        stocked(h, shop.stock)
        place(h, shop, OrderPlaced("1"))
        h.settle()
        assert units(h, shop.stock) == 9
        with pytest.raises(ConfigError, match="orders, stock"):
            h.session()


@pytest.mark.needs("postgresql")
def test_two_stores_in_one_flow(tmp_path: Path, pg_database: str) -> None:
    shop = shops.make()
    with Harness(shop.orders, shop.stock, database={"orders": f"sqlite:///{tmp_path}/o.db", "stock": pg_database}) as h:
        stocked(h, shop.stock)
        place(h, shop, OrderPlaced("1"))
        h.settle()
        assert units(h, shop.stock) == 9


def test_a_url_of_code_or_environment_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOTHENDS_DATABASE_URL", "postgresql://production.example/shop")
    service = Service("orders", database="postgresql://production.example/shop")
    with Harness(service) as h:
        h.settle()


def test_a_missing_or_unknown_service_is_named() -> None:
    shop = shops.make()
    with pytest.raises(ConfigError, match="stock"):
        Harness(shop.orders, shop.stock, database={"orders": "sqlite://"})
    with pytest.raises(ConfigError, match="mail"):
        Harness(shop.orders, database={"orders": "sqlite://", "mail": "sqlite://"})
    with pytest.raises(ConfigError, match="at least one"):
        Harness()
    with pytest.raises(ConfigError, match="orders"):
        Harness(shop.orders, Service("orders"))


def test_retries_take_virtual_time_only(database_url: str) -> None:
    shop = shops.make(Retry(attempts=5))
    shop.fail = fails(4)
    with Harness(shop.orders, shop.stock, database=database_url) as h:
        stocked(h)
        place(h, shop, OrderPlaced("1"))
        h.settle()
        assert units(h) == 9
    assert shop.runs == [("1", 1), ("1", 2), ("1", 3), ("1", 4), ("1", 5)]


def test_a_key_keeps_its_order_through_retries() -> None:
    shop = shops.make()
    shop.fail = fails(2)
    with Harness(shop.orders, shop.stock) as h:
        stocked(h)
        place(h, shop, OrderPlaced("1", units=1), OrderPlaced("1", units=2), OrderPlaced("1", units=3))
        h.settle()
        assert [e.left for e in h.published(StockUpdated)] == [9, 7, 4]


def test_a_permanent_failure_is_dead_with_its_reason(database_url: str) -> None:
    shop = shops.make()
    shop.fail = lambda order, attempt: (_ for _ in ()).throw(Permanent("none left", reason="out_of_stock"))
    with Harness(shop.orders, shop.stock, database=database_url) as h:
        stocked(h)
        place(h, shop, OrderPlaced("1"))
        h.settle()
        (dead,) = h.dead
        assert (dead.consumer, dead.reason) == ("stock.counter", "out_of_stock")
        assert "none left" in dead.error
        assert dead.event == OrderPlaced("1")
        assert units(h) == 10


def test_attempts_that_are_used_up_are_dead_and_the_key_goes_on() -> None:
    shop = shops.make(Retry(attempts=3))
    shop.fail = fails(3)
    with Harness(shop.orders, shop.stock) as h:
        stocked(h)
        place(h, shop, OrderPlaced("1", units=5), OrderPlaced("1", units=2))
        h.settle()
        assert [dead.reason for dead in h.dead] == ["handler_error"]
        assert units(h) == 8


def test_a_held_key_stays_held_and_settles() -> None:
    shop = shops.make(Retry(attempts=1, then="hold"))
    shop.fail = fails(1)
    with Harness(shop.orders, shop.stock) as h:
        stocked(h)
        place(h, shop, OrderPlaced("1"), OrderPlaced("1"), OrderPlaced("2"))
        h.settle()
        assert len(h.dead) == 1
        assert [order for order, _ in shop.runs] == ["1", "2"]
        h.advance(timedelta(days=30)).settle()
        assert [order for order, _ in shop.runs] == ["1", "2"]


def test_retry_after_is_honoured_by_the_clock() -> None:
    shop = shops.make()
    shop.fail = lambda order, attempt: (_ for _ in ()).throw(RetryAfter(86_400)) if attempt == 1 else None
    with Harness(shop.orders, shop.stock) as h:
        stocked(h)
        place(h, shop, OrderPlaced("1"))
        h.settle()
        assert units(h) == 9


def test_delayed_events_wait_for_advance(database_url: str) -> None:
    shop = shops.make()
    with Harness(shop.orders, shop.stock, database=database_url) as h:
        stocked(h)
        place(h, shop, OrderPlaced("1"), delay=timedelta(hours=1))
        place(h, shop, OrderPlaced("2"), deliver_at=datetime.now(UTC) + timedelta(hours=2))
        h.settle()
        assert h.published(OrderPlaced) == []
        h.advance(timedelta(minutes=59)).settle()
        assert h.published(OrderPlaced) == []
        h.advance(timedelta(minutes=2)).settle()
        assert h.published(OrderPlaced) == [OrderPlaced("1")]
        h.advance(timedelta(hours=1)).settle()
        assert h.published(OrderPlaced) == [OrderPlaced("1"), OrderPlaced("2")]
        assert units(h) == 8


def test_time_does_not_run_backwards() -> None:
    with Harness(Service("orders")) as h, pytest.raises(ValueError, match="forward"):
        h.advance(timedelta(seconds=-1))


def test_a_handler_that_is_not_idempotent_is_found_by_delivering_twice() -> None:
    shop = shops.make(inbox=False)
    with Harness(shop.orders, shop.stock, deliver_twice=True) as h:
        stocked(h)
        place(h, shop, OrderPlaced("1"))
        with pytest.raises(AssertionError, match=r"(?s)second delivery.*- \('brie', 9\).*\+ \('brie', 8\)"):
            h.settle()


def test_an_event_that_is_said_twice_is_found_by_delivering_twice() -> None:
    service = Service("orders")
    consumer = service.consumer("echo", inbox=False)

    @consumer.handle(OrderPlaced)
    def echo(order: OrderPlaced, ctx: Context[Any]) -> None:
        ctx.emit(StockUpdated(order.sku, 1))

    shop = Shop(service, service)
    with Harness(service, deliver_twice=True) as h:
        place(h, shop, OrderPlaced("1"))
        with pytest.raises(AssertionError, match=r"kit\.stock"):
            h.settle()


def test_a_flow_without_end_is_stopped_with_what_still_moves() -> None:
    service = Service("orders")
    consumer = service.consumer("ping")

    @consumer.handle(OrderPlaced)
    def ping(order: OrderPlaced, ctx: Context[Any]) -> None:
        ctx.emit(OrderPlaced(order.order, units=order.units + 1))

    shop = Shop(service, service)
    with Harness(service) as h:
        place(h, shop, OrderPlaced("1"))
        with pytest.raises(AssertionError, match=r"(?s)does not settle.*orders\.ping"):
            h.settle()


def test_retries_without_end_are_stopped_with_what_still_waits() -> None:
    shop = shops.make(Retry(attempts=None))
    shop.fail = fails(10**9)
    with Harness(shop.orders, shop.stock) as h:
        stocked(h)
        place(h, shop, OrderPlaced("1"))
        with pytest.raises(AssertionError, match=r"(?s)does not settle.*stock\.counter"):
            h.settle()


def test_an_open_session_is_named() -> None:
    shop = shops.make()
    with Harness(shop.orders, shop.stock) as h:
        session = h.session()
        session.execute(text(shops.TABLE))
        shop.orders.outbox.add(session, OrderPlaced("1"))
        with pytest.raises(AssertionError, match="commit"):
            h.settle()


def test_a_session_that_has_only_read_is_no_obstacle(database_url: str) -> None:
    shop = shops.make()
    with Harness(shop.orders, shop.stock, database=database_url) as h:
        stocked(h)
        place(h, shop, OrderPlaced("1"))
        with h.session() as reader:
            assert reader.scalar(text("select units from stock")) == 10
            h.settle()
        assert units(h) == 9


def test_a_harness_that_is_not_entered_says_so() -> None:
    with pytest.raises(RuntimeError, match="with Harness"):
        Harness(Service("orders")).settle()


@pytest.mark.parametrize("make", [shops.make, shops.make_async])
async def test_settling_in_a_coroutine(database_url: str, make: Any) -> None:
    shop = make()
    async with Harness(shop.orders, shop.stock, database=database_url) as h:
        stocked(h)
        place(h, shop, OrderPlaced("1"))
        assert await h.settle_async() is h
        assert units(h) == 9


async def test_settle_in_a_coroutine_names_settle_async() -> None:
    shop = shops.make_async()
    async with Harness(shop.orders, shop.stock) as h:
        with pytest.raises(RuntimeError, match="settle_async"):
            h.settle()


def test_a_loop_bound_resource_lives_as_long_as_the_harness() -> None:
    """An asynchronous client that a handler uses belongs to one loop: two settles run on the same one."""
    loops = []
    shop = shops.make_async()
    shop.fail = lambda order, attempt: loops.append(asyncio.get_running_loop())
    with Harness(shop.orders, shop.stock) as h:
        stocked(h)
        for order in ("1", "2"):
            place(h, shop, OrderPlaced(order))
            h.settle()
    assert len(loops) == 2
    assert loops[0] is loops[1]


def test_the_connection_of_the_test_sees_what_was_committed(database_url: str) -> None:
    shop = shops.make()
    with Harness(shop.orders, shop.stock, database=database_url) as h:
        connection = h.connection()
        connection.execute(shops.TABLE)
        connection.execute(shops.ROW)
        place(h, shop, OrderPlaced("1"))
        h.settle()
        assert connection.execute("select units from stock").fetchone()[0] == 9


def test_published_reads_every_topic_that_an_event_went_to() -> None:
    service = Service("orders")
    with Harness(service) as h:
        with h.session() as session:
            service.outbox.add(session, StockUpdated("a", 1))
            service.outbox.add(session, StockUpdated("b", 2), topic="another.topic")
            session.commit()
        h.settle()
        assert h.published(StockUpdated) == [StockUpdated("a", 1), StockUpdated("b", 2)]


@pytest.mark.parametrize("mode", ["block", "topic"])
def test_the_other_retry_modes_settle_too(mode: Any, database_url: str) -> None:
    shop = shops.make(Retry(attempts=4, mode=mode))
    shop.fail = fails(3)
    with Harness(shop.orders, shop.stock, database=database_url, deliver_twice=True) as h:
        stocked(h)
        place(h, shop, OrderPlaced("1"), OrderPlaced("2"), OrderPlaced("3"))
        h.settle()
        assert units(h) == 7
        assert h.published(OrderPlaced) == [OrderPlaced("1"), OrderPlaced("2"), OrderPlaced("3")]
    succeeded = [order for order, _ in shop.runs]
    if mode == "block":
        assert succeeded == ["1", "1", "1", "1", "2", "3"], "the partition waits for its head"
    else:
        assert max(attempt for _, attempt in shop.runs) >= 2


def test_a_dead_letter_after_retry_topics() -> None:
    shop = shops.make(Retry(attempts=2, mode="topic"))
    shop.fail = fails(2)
    with Harness(shop.orders, shop.stock) as h:
        stocked(h)
        place(h, shop, OrderPlaced("1"))
        h.settle()
        assert [(dead.reason, dead.attempts) for dead in h.dead] == [("handler_error", 2)]
    assert shop.runs == [("1", 1), ("1", 2)]


def test_what_would_be_a_message_becomes_a_row_and_ids_are_refused_as_ever(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOTHENDS_RELAY_SOURCE", "message")
    shop = shops.make()
    with Harness(shop.orders, shop.stock, database=database_url, deliver_twice=True) as h:
        stocked(h)
        place(h, shop, OrderPlaced("1"), OrderPlaced("2"))
        h.settle()
        assert (len(h.published(StockUpdated)), units(h), h.dead) == (2, 8, [])
        with pytest.raises(InvalidEvent, match="relay_source"):
            place(h, shop, OrderPlaced("3"), id="mine")
        with pytest.raises(InvalidEvent, match="relay_source"):
            place(h, shop, OrderPlaced("3"), delay=timedelta(hours=1))


def test_a_service_is_known_by_its_name_too(tmp_path: Path) -> None:
    orders, billing = Service("orders"), Service("billing")
    with Harness(orders, billing, database={name: f"sqlite:///{tmp_path}/{name}.db" for name in ("orders", "billing")}) as h:
        assert h.connection("billing") is h.connection(billing)
        assert h.connection("billing") is not h.connection("orders")
        with h.session("orders") as session:
            assert session.scalar(text("select count(*) from bothends_outbox")) == 0
        with pytest.raises(ConfigError, match=r"no service 'mail', only orders, billing"):
            h.session("mail")
        with pytest.raises(TypeError, match=r"give the Service, or its name"):
            h.session(orders.consumer("stock"))  # type: ignore[arg-type]


def test_a_lock_on_the_schema_is_said_as_what_it_is() -> None:
    """It is no matter of folders."""
    billing = Service("billing")
    with Harness(billing) as h:
        with h.session(billing) as session:
            session.execute(text("create table mine (id int)"))
            with pytest.raises(StoreUnavailable, match=r"locked: main; commit or close the session") as caught:
                h.connection(billing)
            assert "folder" not in str(caught.value)
        assert h.connection(billing).execute("select 1").fetchone() == (1,)
