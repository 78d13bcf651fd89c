"""What the shop says has happened: facts, in the past tense. The key is the order, so its facts stay in order."""

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
