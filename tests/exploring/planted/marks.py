"""How a handler knows that it has been here before: in memory, in a set of its own, in another transaction, not at all."""

import contextlib
from typing import Any

from bothends import Context, Service
from bothends.testing.exploring.causes import Cause
from tests.exploring.planted import Plant, connect, say, script
from tests.exploring.planted.events import ONE, STOCK, TWO, Paid

DB = Context[Any]
TAKE = "update stock set units = units - ?"
MARK = "insert into seen values (?) on conflict do nothing"


def start(db: Any) -> None:
    script(db, STOCK)


def is_new(db: Any, id: str) -> bool:
    return bool(say(db, MARK, [id]).rowcount == 1)


_done: set[str] = set()


def remembers(wrong: bool) -> Service:
    """``_done`` is empty after a restart."""
    service = Service("remembers")
    stock = service.consumer("stock", inbox=False)

    @stock.handle(Paid)
    def take(paid: Paid, ctx: DB) -> None:
        if wrong:
            if paid.order in _done:
                return
            _done.add(paid.order)
        elif not is_new(ctx.connection, paid.order):
            return
        say(ctx.connection, TAKE, [paid.units])

    return service


def forgets(wrong: bool) -> Service:
    """The set is made anew in each run."""
    service = Service("forgets")
    stock = service.consumer("stock", inbox=not wrong)

    @stock.handle(Paid)
    def take(paid: Paid, ctx: DB) -> None:
        done: set[str] = set()
        if paid.order in done:
            return
        done.add(paid.order)
        say(ctx.connection, TAKE, [paid.units])

    return service


def counts_in_memory(wrong: bool) -> Service:
    """The state of the shelf is kept in an object, and written down from there."""
    service = Service("counts-in-memory")
    stock = service.consumer("stock")
    shelf = {"units": 10}

    @stock.handle(Paid)
    def take(paid: Paid, ctx: DB) -> None:
        if wrong:
            shelf["units"] -= paid.units
            say(ctx.connection, "update stock set units = ?", [shelf["units"]])
        else:
            say(ctx.connection, TAKE, [paid.units])

    return service


def marks_elsewhere(wrong: bool) -> Service:
    """The mark is committed on a connection of its own, before the effect."""
    service = Service("marks-elsewhere")
    stock = service.consumer("stock", inbox=False)

    @stock.handle(Paid, effects=True)
    def take(paid: Paid, ctx: DB) -> None:
        if wrong:
            with contextlib.closing(connect()) as other:
                if not is_new(other, paid.order):
                    return
                other.commit()
        db = ctx.begin()
        if not wrong and not is_new(db, paid.order):
            return
        say(db, TAKE, [paid.units])

    return service


def takes_elsewhere(wrong: bool) -> Service:
    """The effect is committed on a connection of its own; the inbox row follows, or does not."""
    service = Service("takes-elsewhere")
    stock = service.consumer("stock")

    @stock.handle(Paid, effects=True)
    def take(paid: Paid, ctx: DB) -> None:
        if wrong:
            with contextlib.closing(connect()) as other, other:
                say(other, TAKE, [paid.units])
            ctx.begin()
        else:
            say(ctx.begin(), TAKE, [paid.units])

    return service


def commits(wrong: bool) -> Service:
    """A commit inside the handler."""
    service = Service("commits")
    stock = service.consumer("stock")

    @stock.handle(Paid)
    def take(paid: Paid, ctx: DB) -> None:
        say(ctx.connection, TAKE, [paid.units])
        if wrong:
            ctx.connection.commit()

    return service


PLANTS = (
    Plant("deduplication in memory", remembers, start, (ONE,), (Cause.MEMORY,)),
    Plant("deduplication in a set made inside the handler", forgets, start, (ONE,), (Cause.NO_MARK,)),
    Plant("state in a global", counts_in_memory, start, (ONE, TWO), (Cause.MEMORY,)),
    Plant("the mark in another transaction", marks_elsewhere, start, (ONE,), (Cause.OTHER_TRANSACTION,), True),
    Plant("the effect in another transaction", takes_elsewhere, start, (ONE,), (Cause.OTHER_TRANSACTION,), True),
    Plant("a commit inside the handler", commits, start, (ONE,), (Cause.ENDED_TRANSACTION,)),
)
