"""The same shop without an inbox. Every handler here looks right, and is wrong as soon as a message comes twice:
``inbox=False`` says "my own unique row is the marker", and there is none.

``bothends check examples.lessons.naive_shop`` finds that out, and tells how it happens."""

import sqlite3

from bothends import Consumer, Context, Retry, Service
from bothends.testing import case, recorded
from examples.lessons.events import ORDER_1001, OrderPaid
from examples.lessons.shop import TABLES, Shop


def make_naive_shop(letters: list[str] | None = None) -> Shop:
    """Consumers ``warehouse`` and ``mail``, both of which believe that a message comes once."""
    shop = Shop(Service("naive-shop"), [] if letters is None else letters)
    subtract(shop.service.consumer("warehouse", inbox=False, retry=Retry(attempts=3)))
    send_letters(shop.service.consumer("mail", inbox=False, retry=Retry(attempts=3)), shop.letters)
    return shop


def make_forgetful_shop() -> Shop:
    """One consumer, ``warehouse``, which means to remember what it has seen."""
    shop = Shop(Service("forgetful-shop"))
    subtract_unless_seen(shop.service.consumer("warehouse", inbox=False))
    return shop


def subtract(warehouse: Consumer) -> None:
    @warehouse.handle(OrderPaid)
    def reserve(paid: OrderPaid, ctx: Context[sqlite3.Connection]) -> None:
        ctx.connection.execute("update stock set units = units - ?", [paid.units])


def send_letters(mail: Consumer, letters: list[str]) -> None:
    @mail.handle(OrderPaid)
    def thank(paid: OrderPaid) -> None:
        letters.append(paid.order)


def subtract_unless_seen(warehouse: Consumer) -> None:
    """The set is made anew in every run: it never contains anything. One made outside would be empty after a restart,
    and would remember what was rolled back."""

    @warehouse.handle(OrderPaid)
    def reserve(paid: OrderPaid, ctx: Context[sqlite3.Connection]) -> None:
        seen: set[str] = set()
        if paid.order in seen:
            return
        seen.add(paid.order)
        ctx.connection.execute("update stock set units = units - ?", [paid.units])


naive = make_naive_shop(recorded([], name="letters")).service


@case
def an_order_is_paid(db: sqlite3.Connection) -> list[OrderPaid]:
    """Two of ten units go out of the door, and one letter. How many are left when something dies on the way?"""
    db.executescript(TABLES)
    return [ORDER_1001]
