"""The shop that publishes: the checkout charges the card and says OrderPaid, in one transaction. Who listens is no
business of the checkout.

Each handler is written as if its message came exactly once. That it takes effect once is the inbox's work: a row per
(consumer, event id), written in the handler's own transaction.
"""

import sqlite3
from dataclasses import dataclass, field

from bothends import Consumer, Context, Retry, Service
from examples.lessons.events import OrderCancelled, OrderPaid

STOCK = 10
EUROS_PER_POINT = 10

TABLES = f"""
create table stock (units integer not null);
insert into stock values ({STOCK});
create table reservations (order_no text primary key, units integer not null);
create table cancelled (order_no text primary key);
create table ledger (order_no text not null, euros integer not null);
create table notices (order_no text not null);
create table points (customer text primary key, points integer not null);
"""


@dataclass
class Shop:
    """One shop: its service, and the letters that its mailer has really sent (no database takes those back)."""

    service: Service
    letters: list[str] = field(default_factory=list)


def make_shop() -> Shop:
    """Consumers ``warehouse``, ``mail``, ``ledger``, in this order. Three failures in a row are a dead letter."""
    shop = Shop(Service("shop"))
    retry = Retry(attempts=3)
    reserve_stock(shop.service.consumer("warehouse", owner="warehouse", retry=retry))
    send_letters(shop.service.consumer("mail", owner="front-desk", retry=retry), shop.letters)
    keep_books(shop.service.consumer("ledger", owner="accounts", retry=retry))
    return shop


def reserve_stock(warehouse: Consumer) -> None:
    """Two types, one consumer: so a cancellation is in order with the payment that it cancels."""

    @warehouse.handle(OrderPaid)
    def reserve(paid: OrderPaid, ctx: Context[sqlite3.Connection]) -> None:
        db = ctx.connection
        if db.execute("select 1 from cancelled where order_no = ?", [paid.order]).fetchone():
            return  # the cancellation came first: there is nothing to reserve any more
        db.execute("insert into reservations values (?, ?)", [paid.order, paid.units])
        db.execute("update stock set units = units - ?", [paid.units])

    @warehouse.handle(OrderCancelled)
    def give_back(cancelled: OrderCancelled, ctx: Context[sqlite3.Connection]) -> None:
        db = ctx.connection
        db.execute("insert into cancelled values (?)", [cancelled.order])
        reserved = db.execute("select units from reservations where order_no = ?", [cancelled.order]).fetchone()
        if reserved is not None:  # only what was taken goes back
            db.execute("delete from reservations where order_no = ?", [cancelled.order])
            db.execute("update stock set units = units + ?", [reserved[0]])


def send_letters(mail: Consumer, letters: list[str]) -> None:
    """A letter is outside every transaction: ``once`` records durably that it is sent."""

    @mail.handle(OrderPaid, effects=True)
    def thank(paid: OrderPaid, ctx: Context[sqlite3.Connection]) -> None:
        def send(key: str) -> str:
            letters.append(paid.order)
            return f"letter {len(letters)}"

        ctx.once("letter", send, result=str)
        ctx.begin()


def keep_books(ledger: Consumer) -> None:
    @ledger.handle(OrderPaid)
    def book(paid: OrderPaid, ctx: Context[sqlite3.Connection]) -> None:
        ctx.connection.execute("insert into ledger values (?, ?)", [paid.order, paid.euros])


def push_notices(app: Consumer) -> None:
    """A fourth subscriber, added later. Nobody who pays, ships or books had to be touched."""

    @app.handle(OrderPaid)
    def notify(paid: OrderPaid, ctx: Context[sqlite3.Connection]) -> None:
        ctx.connection.execute("insert into notices values (?)", [paid.order])


def count_points(loyalty: Consumer) -> None:
    """1 point per 10 EUR, for each order once: a balance that is added to shows every duplicate."""

    @loyalty.handle(OrderPaid)
    def collect(paid: OrderPaid, ctx: Context[sqlite3.Connection]) -> None:
        ctx.connection.execute(
            "insert into points values (?, ?) on conflict (customer) do update set points = points + excluded.points",
            [paid.customer, paid.euros // EUROS_PER_POINT],
        )
