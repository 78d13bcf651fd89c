"""The events of the marketplace. Topics carry the run's name, so that runs on one broker do not disturb each other."""

from __future__ import annotations

import os
from dataclasses import dataclass
from decimal import Decimal

from bothends import event
from bothends.demo.names import topic_of

__all__ = ["ORDERS", "PAYMENTS", "RUN", "OrderCancelled", "OrderCreated", "OrderLine", "PaymentConfirmed"]

RUN = os.environ.get("DEMO_RUN", "demo")
ORDERS, PAYMENTS = topic_of(RUN, "orders"), topic_of(RUN, "payments")


@dataclass(frozen=True)
class OrderLine:
    product: str
    quantity: int
    price: Decimal


@event("order.created", key="customer", topic=ORDERS)
@dataclass(frozen=True)
class OrderCreated:
    invoice: str
    customer: str
    """The customer's number, or for guests the invoice's: whose orders are handled one after another."""
    country: str
    lines: list[OrderLine]


@event("order.cancelled", key="customer", topic=ORDERS)
@dataclass(frozen=True)
class OrderCancelled:
    invoice: str
    customer: str
    country: str
    lines: list[OrderLine]


@event("payment.confirmed", key="customer", topic=PAYMENTS)
@dataclass(frozen=True)
class PaymentConfirmed:
    invoice: str
    customer: str
    amount: Decimal
    receipt: str
