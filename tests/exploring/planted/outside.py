"""What leaves the house: calls without a key, with a key that changes, with swallowed errors, events past the outbox."""

import uuid
from typing import Any

from bothends import Context, Service
from bothends.testing import recorded
from bothends.testing.exploring.causes import Cause
from tests.exploring.planted import ERRORS, Plant, savepoint, say, script
from tests.exploring.planted.events import ONE, STOCK, TWO, Paid, StockMoved

DB = Context[Any]
BOOK = "insert into booked values (?)"


class Bank:
    """Honours keys."""

    def __init__(self) -> None:
        self.charges: dict[str, int] = {}

    def charge(self, cents: int, key: str | None = None) -> str:
        return f"receipt {self.charges.setdefault(key or f'none {len(self.charges)}', cents)}"


class Bus:
    def __init__(self) -> None:
        self.sent: list[str] = []

    def publish(self, order: str, units: int) -> None:
        self.sent.append(f"{order} {units}")


bank = recorded(Bank())
bus = recorded(Bus())


def start(db: Any) -> None:
    script(db, STOCK + "create table booked (order_no text);")


def charges_without_key(wrong: bool) -> Service:
    service = Service("charges-without-key")
    pay = service.consumer("pay")

    @pay.handle(Paid, effects=True)
    def charge(paid: Paid, ctx: DB) -> None:
        if wrong:
            bank.charge(paid.units * 100)
        else:
            ctx.once("charge", lambda key: bank.charge(paid.units * 100, key), result=str, if_unknown="repeat")
        say(ctx.begin(), BOOK, [paid.order])

    return service


def charges_with_a_new_key(wrong: bool) -> Service:
    service = Service("charges-with-a-new-key")
    pay = service.consumer("pay")

    @pay.handle(Paid)
    def charge(paid: Paid, ctx: DB) -> None:
        bank.charge(paid.units * 100, key=str(uuid.uuid4()) if wrong else f"charge-{paid.order}")
        say(ctx.connection, BOOK, [paid.order])

    return service


def holds_what_is_unknown(wrong: bool) -> Service:
    """With ``if_unknown="hold"`` a human finds out. Wrong: the default key is there, and the handler calls beside it."""
    service = Service("holds-what-is-unknown")
    pay = service.consumer("pay")

    @pay.handle(Paid, effects=True)
    def charge(paid: Paid, ctx: DB) -> None:
        if wrong:
            bank.charge(1)
        ctx.once("charge", lambda key: bank.charge(paid.units * 100, key), result=str)
        say(ctx.begin(), BOOK, [paid.order])

    return service


def swallows_the_call(wrong: bool) -> Service:
    service = Service("swallows-the-call")
    pay = service.consumer("pay")

    @pay.handle(Paid)
    def charge(paid: Paid, ctx: DB) -> None:
        try:
            bank.charge(paid.units * 100, key=f"charge-{paid.order}")
        except ConnectionError:
            if not wrong:
                raise
        say(ctx.connection, BOOK, [paid.order])

    return service


def swallows_the_statement(wrong: bool) -> Service:
    service = Service("swallows-the-statement")
    stock = service.consumer("stock")

    @stock.handle(Paid)
    def take(paid: Paid, ctx: DB) -> None:
        try:
            with savepoint(ctx.connection):
                say(ctx.connection, "update stock set units = units - ?", [paid.units])
        except ERRORS:
            if not wrong:
                raise

    return service


def publishes_directly(wrong: bool) -> Service:
    service = Service("publishes-directly")
    stock = service.consumer("stock")

    @stock.handle(Paid)
    def take(paid: Paid, ctx: DB) -> None:
        say(ctx.connection, "update stock set units = units - ?", [paid.units])
        if wrong:
            bus.publish(paid.order, paid.units)
        else:
            ctx.emit(StockMoved(paid.order, paid.units))

    return service


PLANTS = (
    Plant("an outside call without a key", charges_without_key, start, (ONE,), (Cause.CALL_WITHOUT_KEY,)),
    Plant("a key that changes", charges_with_a_new_key, start, (ONE,), (Cause.CALL_WITH_NEW_KEY,)),
    Plant("a call beside the one that is held", holds_what_is_unknown, start, (ONE,), (Cause.CALL_WITHOUT_KEY,)),
    Plant("a swallowed call", swallows_the_call, start, (ONE, TWO), (Cause.SWALLOWED,)),
    Plant("a swallowed statement", swallows_the_statement, start, (ONE,), (Cause.SWALLOWED,)),
    Plant("an event published directly", publishes_directly, start, (ONE,), (Cause.CALL_WITHOUT_KEY,)),
)
