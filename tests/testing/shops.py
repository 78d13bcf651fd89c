"""Small services for the test kit's own tests: one that says OrderPlaced, one that counts stock and says StockUpdated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bothends import AsyncContext, Context, Retry, Service, event


@event("order.placed", key="order", topic="kit.orders")
@dataclass(frozen=True)
class OrderPlaced:
    order: str
    sku: str = "brie"
    units: int = 1


@event("stock.updated", key="sku", topic="kit.stock")
@dataclass(frozen=True)
class StockUpdated:
    sku: str
    left: int


@dataclass
class Shop:
    """``fail`` is asked before each run of the handler, with (order, attempt), and may raise. ``runs`` are all runs."""

    orders: Service
    stock: Service
    runs: list[tuple[str, int]] = field(default_factory=list)
    fail: Any = None

    def ran(self, order: str, attempt: int) -> None:
        self.runs.append((order, attempt))
        if self.fail is not None:
            self.fail(order, attempt)


def _mark(connection: Any) -> str:
    return "%s" if any(cls.__module__.startswith("psycopg") for cls in type(connection).__mro__) else "?"


def make(retry: Retry = Retry(), *, inbox: bool = True) -> Shop:
    """Handlers on plain driver connections; the stock is in a table ``stock (sku, units)``."""
    shop = Shop(Service("orders"), Service("stock"))
    counter = shop.stock.consumer("counter", retry=retry, inbox=inbox, owner="team-stock")

    @counter.handle(OrderPlaced)
    def count(order: OrderPlaced, ctx: Context[Any]) -> None:
        shop.ran(order.order, ctx.attempt)
        mark = _mark(ctx.connection)
        ctx.connection.execute(f"update stock set units = units - {mark} where sku = {mark}", (order.units, order.sku))
        cursor = ctx.connection.execute(f"select units from stock where sku = {mark}", (order.sku,))
        ctx.emit(StockUpdated(order.sku, cursor.fetchone()[0]))

    return shop


def make_async(retry: Retry = Retry()) -> Shop:
    """``make`` with a handler that is a coroutine."""
    shop = Shop(Service("orders"), Service("stock"))
    counter = shop.stock.consumer("counter", retry=retry)

    @counter.handle(OrderPlaced)
    async def count(order: OrderPlaced, ctx: AsyncContext[Any]) -> None:
        shop.ran(order.order, ctx.attempt)
        mark = _mark(ctx.connection)
        await ctx.connection.execute(f"update stock set units = units - {mark} where sku = {mark}", (order.units, order.sku))
        cursor = await ctx.connection.execute(f"select units from stock where sku = {mark}", (order.sku,))
        row = await cursor.fetchone()
        ctx.emit(StockUpdated(order.sku, row[0]))

    return shop


TABLE = "create table stock (sku varchar(20) primary key, units integer not null)"
ROW = "insert into stock values ('brie', 10)"
