"""What the planted shops speak of."""

from dataclasses import dataclass

from bothends import event


@event("planted.paid", key="order", topic="planted.orders")
@dataclass(frozen=True)
class Paid:
    order: str
    units: int = 2


@event("planted.cancelled", key="order", topic="planted.cancellations")
@dataclass(frozen=True)
class Cancelled:
    order: str


@event("planted.priced", key="product", topic="planted.prices")
@dataclass(frozen=True)
class Priced:
    product: str
    cents: int
    revision: int


@event("planted.stock-moved", key="order", topic="planted.stock")
@dataclass(frozen=True)
class StockMoved:
    order: str
    units: int


ONE = Paid("1001")
TWO = Paid("1002", 1)

STOCK = """
create table stock (units integer not null);
insert into stock values (10);
create table seen (id text primary key);
"""
