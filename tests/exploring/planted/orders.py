"""What comes in another order than it was said: a cancellation before its order, an old price after a new one."""

from typing import Any

from bothends import Context, Service
from bothends.testing.exploring.causes import Cause
from tests.exploring.planted import Plant, say, script
from tests.exploring.planted.events import ONE, STOCK, Cancelled, Paid, Priced

DB = Context[Any]


def start_orders(db: Any) -> None:
    script(db, STOCK + "create table orders (no text primary key, units integer, cancelled integer not null default 0);")


def start_prices(db: Any) -> None:
    script(db, "create table prices (product text primary key, cents integer, revision integer);")


def cancels_late(wrong: bool) -> Service:
    """Two topics, so the cancellation may come first: then there is nothing to cancel yet."""
    service = Service("cancels-late")
    stock = service.consumer("stock")

    @stock.handle(Paid)
    def take(paid: Paid, ctx: DB) -> None:
        db = ctx.connection
        say(
            db, "insert into orders (no, units) values (?, ?) on conflict (no) do update set units = excluded.units",
            [paid.order, paid.units])
        if not say(db, "select cancelled from orders where no = ?", [paid.order]).fetchone()[0]:
            say(db, "update stock set units = units - ?", [paid.units])

    @stock.handle(Cancelled)
    def give_back(cancelled: Cancelled, ctx: DB) -> None:
        db = ctx.connection
        known = say(db, "select units from orders where no = ?", [cancelled.order]).fetchone()
        if known is None and not wrong:
            say(db, "insert into orders (no, cancelled) values (?, 1)", [cancelled.order])
        elif known is not None:
            say(db, "update orders set cancelled = 1 where no = ?", [cancelled.order])
            say(db, "update stock set units = units + ?", [known[0]])

    return service


def prices_go_back(wrong: bool) -> Service:
    """Setting a price twice is harmless; setting an old one late is not."""
    service = Service("prices-go-back")
    catalogue = service.consumer("catalogue", inbox=False)

    @catalogue.handle(Priced)
    def price(priced: Priced, ctx: DB) -> None:
        newer = "" if wrong else " where excluded.revision > prices.revision"
        say(
            ctx.connection, "insert into prices values (?, ?, ?) on conflict (product) do update "
            f"set cents = excluded.cents, revision = excluded.revision{newer}",
            [priced.product, priced.cents, priced.revision],
        )

    return service


PLANTS = (
    Plant("a cancellation that comes first", cancels_late, start_orders, (ONE, Cancelled("1001")), (Cause.ORDER,)),
    Plant("an old version that overwrites a newer one", prices_go_back, start_prices,
          (Priced("brie", 450, 1), Priced("brie", 480, 2)), (Cause.STALE,)),
)
