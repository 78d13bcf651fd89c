"""The application's statements and handlers, on SQLite and on PostgreSQL: exact, in one transaction, in sorted order."""

from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bothends.demo import app
from bothends.demo.events import OrderCancelled, OrderCreated, OrderLine, PaymentConfirmed
from bothends.demo.world import World
from bothends.testing import context
from tests.demo.conftest import table


def order(invoice: str, *lines: tuple[str, int, str]) -> OrderCreated | OrderCancelled:
    return app.order_event(invoice, "7.0", "UK", [OrderLine(p, q, Decimal(price)) for p, q, price in lines])


def test_units_are_added_per_product_also_twice_in_one_order(world: World) -> None:
    with world.connected("inventory") as db:
        ctx = context(db)
        app.deduct(order("1", ("b", 2, "1"), ("B", 5, "1"), ("b", 1, "1")), ctx)
        app.put_back(order("C2", ("b", -3, "1"), ("ä", 2**40, "1")), ctx)
        assert world.shops["inventory"].units(db) == {"b": 0, "B": 5, "ä": 2**40}
        rows = world.shops["inventory"].effects(db, "inventory.stock")
        assert [(row[2], row[3]) for row in rows] == [("1", "7.0"), ("C2", "7.0")]
        assert rows[0][0] < rows[1][0]
        assert world.shops["inventory"].count_effects(db) == 2


@given(sums=st.lists(st.dictionaries(st.sampled_from("abcdef"), st.decimals(-10**6, 10**6, places=3), min_size=1)))
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_revenue_is_exact(world: World, sums: list[dict[str, Decimal]]) -> None:
    expected: dict[str, Decimal] = {}
    with world.connected("analytics") as db:
        db.execute("begin")
        shop = world.shops["analytics"]
        for one in sums:
            shop.add_revenue(db, one)
            for product, amount in one.items():
                expected[product] = expected.get(product, Decimal(0)) + amount
        assert shop.revenue(db) == expected
        db.execute("rollback")


def test_revenue_of_an_order_is_that_of_its_lines(world: World) -> None:
    with world.connected("analytics") as db:
        ctx = context(db)
        app.book_order(order("1", ("a", 6, "2.55"), ("a", 1, "0.001"), ("b", 3, "0.0")), ctx)
        app.book_cancellation(order("C1", ("a", -1, "2.55")), ctx)
        assert world.shops["analytics"].revenue(db) == {"a": Decimal("12.751"), "b": Decimal(0)}


def test_ten_thousand_times_a_tenth(world: World) -> None:
    with world.connected("analytics") as db:
        db.execute("begin")
        for _ in range(500):
            world.shops["analytics"].add_revenue(db, {"a": Decimal("0.1"), "b": Decimal("0.7")})
        assert world.shops["analytics"].revenue(db) == {"a": Decimal(50), "b": Decimal(350)}
        db.execute("rollback")


@pytest.mark.parametrize(
    ("invoice", "lines", "key", "due"),
    [
        ("1", [("a", 2, "2.55")], "charge-1", "5.10"),
        ("C1", [("a", -2, "2.55")], "refund-C1", "5.10"),
        ("2", [("a", 2, "0")], None, "0"),
        ("3", [("a", -2, "2.55")], None, "-5.10"),
        ("A4", [("B", 1, "-11062.06")], None, "-11062.06"),
    ],
)
def test_the_gateway_is_called_where_something_is_due(
    world: World, invoice: str, lines: list[tuple[str, int, str]], key: str | None, due: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, Decimal]] = []

    def charge(key: str, amount: Decimal) -> str:
        asked.append((key, amount))
        return "r-1"

    monkeypatch.setattr(app._wallet, "charge", charge)
    with world.connected("payments") as db:
        ctx = context(db, effects={})
        one = order(invoice, *lines)
        if isinstance(one, OrderCancelled):
            app.refund_order(one, ctx)
        else:
            app.charge_order(one, ctx)
        booked = db.execute(f"select invoice, amount, receipt from {table(world, db, 'payments', 'payments')}").fetchall()  # type: ignore[arg-type]
        assert [(row[0], row[2]) for row in booked] == [(invoice, "r-1" if key else None)]
        assert world.shops["payments"].effects(db, "payments.charge")[0][2] == invoice
    if key is None:
        assert (asked, ctx.emitted) == ([], [])
    else:
        assert asked == [(key, Decimal(due))]
        assert ctx.emitted == [PaymentConfirmed(invoice, "7.0", Decimal(due), "r-1")]


def test_confirmations_are_counted(world: World) -> None:
    with world.connected("analytics") as db:
        app.count_confirmation(PaymentConfirmed("1", "7.0", Decimal("5.10"), "r-1"), context(db))
        assert world.shops["analytics"].confirmed(db) == [("1", Decimal("5.10"))]
        assert len(world.shops["analytics"].effects(db, "analytics.confirmations")) == 1


def test_sums_join_units_and_revenue(world: World) -> None:
    one = order("1", ("a", 2, "1.5"), ("z", 1, "0"))
    with world.connected("inventory") as inventory, world.connected("analytics") as analytics:
        app.deduct(one, context(inventory))
        app.book_order(one, context(analytics))
        analytics.execute(f"delete from {table(world, analytics, 'analytics', 'revenue')} where product = 'z'")  # type: ignore[arg-type]
    assert world.sums() == {"a": (2, Decimal("3.0")), "z": (1, Decimal(0))}


def test_our_variables_are_set_and_nobody_elses_pass(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOTHENDS_DATABASE_URL", "sqlite:///somebody-elses.db")
    environ = world.environ({})
    assert "BOTHENDS_DATABASE_URL" not in environ
    assert environ["BOTHENDS_ORDERS_DATABASE_URL"] == world.database_of("orders")
    assert environ["BOTHENDS_BROKER_URL"].startswith("embedded:///")
