"""What the shop says has happened. Facts, in the past tense; the key is the order, so one order's facts stay in order."""

from dataclasses import dataclass

from bothends import event


@event("order.paid", key="order", topic="shop.orders")
@dataclass(frozen=True)
class OrderPaid:
    order: str
    customer: str
    units: int
    euros: int


@event("order.cancelled", key="order", topic="shop.orders")
@dataclass(frozen=True)
class OrderCancelled:
    order: str


ORDER_1001 = OrderPaid("1001", "anna", units=2, euros=120)
ORDER_1002 = OrderPaid("1002", "berta", units=1, euros=80)
