"""The marketplace: orders are placed; inventory, payments and analytics subscribe. An ordinary application.

``bothends relay bothends.demo.app`` and ``bothends work bothends.demo.app`` run it, configured by the environment like
any other. ``DEMO_RUN`` names the run, ``DEMO_GATEWAY_URL`` the payment gateway.
"""

from __future__ import annotations

from collections import defaultdict
from decimal import Decimal

from bothends import Context, Retry, Service
from bothends.demo import money
from bothends.demo.events import RUN, OrderCancelled, OrderCreated, OrderLine, PaymentConfirmed
from bothends.demo.names import schema_of
from bothends.demo.shop import Connection, Shop
from bothends.demo.wallet import Wallet

__all__ = ["analytics", "inventory", "order_event", "orders", "payments", "place_order", "was_placed"]

# Processes are killed here all the time: a death says nothing about the message that was in hand.
RETRY = Retry(attempts=30, first_s=0.5, cap_s=10, then="hold", crashes=None)

orders = Service("orders", schema=schema_of(RUN, "orders"))
inventory = Service("inventory", schema=schema_of(RUN, "inventory"))
payments = Service("payments", schema=schema_of(RUN, "payments"))
analytics = Service("analytics", schema=schema_of(RUN, "analytics"))

_orders, _inventory, _payments, _analytics = (Shop(RUN, s.name) for s in (orders, inventory, payments, analytics))
_wallet = Wallet()


# orders


def place_order(db: Connection, order: OrderCreated | OrderCancelled) -> str:
    """The order's row and its event, in the caller's transaction. Returns the event's id."""
    _orders.place(db, order.invoice, order.customer, order.country, _total(order.lines))
    return orders.outbox.add(db, order)


def was_placed(db: Connection, invoice: str) -> bool:
    """For after a COMMIT that was not answered."""
    return _orders.is_placed(db, invoice)


def order_event(invoice: str, customer: str, country: str, lines: list[OrderLine]) -> OrderCreated | OrderCancelled:
    kind = OrderCancelled if invoice.startswith("C") else OrderCreated
    return kind(invoice, customer, country, lines)


def _total(lines: list[OrderLine]) -> Decimal:
    return money.total(money.times(line.quantity, line.price) for line in lines)


# inventory: units per product, without a limit

stock = inventory.consumer("stock", owner="team-stock", retry=RETRY)


@stock.handle(OrderCreated)
def deduct(order: OrderCreated, ctx: Context[Connection]) -> None:
    _move_stock(order, ctx)


@stock.handle(OrderCancelled)
def put_back(order: OrderCancelled, ctx: Context[Connection]) -> None:
    _move_stock(order, ctx)


def _move_stock(order: OrderCreated | OrderCancelled, ctx: Context[Connection]) -> None:
    units: dict[str, int] = defaultdict(int)
    for line in order.lines:
        units[line.product] += line.quantity
    _inventory.add_units(ctx.connection, units)
    _inventory.log_effect(ctx.connection, "inventory.stock", ctx.message.id, order.invoice, order.customer)


# payments: one call of the gateway where there is something to charge or to give back

charge = payments.consumer("charge", owner="team-pay", retry=RETRY, timeout_s=60)


@charge.handle(OrderCreated, effects=True)
def charge_order(order: OrderCreated, ctx: Context[Connection]) -> None:
    total = _total(order.lines)
    _settle(order, ctx, total, f"charge-{order.invoice}", total)


@charge.handle(OrderCancelled, effects=True)
def refund_order(order: OrderCancelled, ctx: Context[Connection]) -> None:
    total = _total(order.lines)
    _settle(order, ctx, total, f"refund-{order.invoice}", -total)


def _settle(
    order: OrderCreated | OrderCancelled, ctx: Context[Connection], total: Decimal, key: str, due: Decimal
) -> None:
    receipt = None
    if due > 0:
        receipt = ctx.once(
            "gateway", lambda key: _wallet.charge(key, due), key=key, result=str, if_unknown=_wallet.find
        )
    db = ctx.begin()
    _payments.book_payment(db, order.invoice, total, receipt)
    _payments.log_effect(db, "payments.charge", ctx.message.id, order.invoice, order.customer)
    if receipt is not None:
        ctx.emit(PaymentConfirmed(order.invoice, order.customer, due, receipt))


# analytics: revenue per product, and the payments that were confirmed

revenue = analytics.consumer("revenue", owner="team-data", retry=RETRY)
confirmations = analytics.consumer("confirmations", owner="team-data", retry=RETRY)


@revenue.handle(OrderCreated)
def book_order(order: OrderCreated, ctx: Context[Connection]) -> None:
    _book(order, ctx)


@revenue.handle(OrderCancelled)
def book_cancellation(order: OrderCancelled, ctx: Context[Connection]) -> None:
    _book(order, ctx)


def _book(order: OrderCreated | OrderCancelled, ctx: Context[Connection]) -> None:
    booked: dict[str, Decimal] = defaultdict(Decimal)
    for line in order.lines:
        booked[line.product] = money.add(booked[line.product], money.times(line.quantity, line.price))
    _analytics.add_revenue(ctx.connection, booked)
    _analytics.log_effect(ctx.connection, "analytics.revenue", ctx.message.id, order.invoice, order.customer)


@confirmations.handle(PaymentConfirmed)
def count_confirmation(payment: PaymentConfirmed, ctx: Context[Connection]) -> None:
    _analytics.count_confirmed(ctx.connection, payment.invoice, payment.amount)
    _analytics.log_effect(
        ctx.connection, "analytics.confirmations", ctx.message.id, payment.invoice, payment.customer
    )
