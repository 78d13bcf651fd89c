"""Seeded orders: like the real ones in what is awkward about them, the same for the same seed.

Cancellations, adjustments (``A``), invoices without a customer, negative quantities, prices of zero, below zero and
with three decimals, product codes that differ in case only, hot products, hot customers, a few long invoices.
"""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from decimal import Decimal

from bothends.demo.orders import Line, Order

__all__ = ["make_orders"]

_COUNTRIES = ("United Kingdom", "Germany", "France", "EIRE", "España")


def make_orders(seed: int, count: int) -> list[Order]:
    """``count`` orders (1 to 10,000,000)."""
    if not 1 <= count <= 10_000_000:
        raise ValueError(f"the number of orders must be from 1 to 10,000,000, not {count}")
    rng = random.Random(seed)
    prices = _catalogue(rng)
    products = list(prices)
    customers = [f"{12000 + n}.0" for n in range(max(2, count // 6))]
    at = datetime(2010, 12, 1, 8, 26)
    orders = []
    for position in range(count):
        at += timedelta(minutes=rng.randrange(20))
        kind = rng.random()
        number = 536365 + position
        invoice = f"C{number}" if kind < 0.15 else f"A{number}" if kind < 0.152 else str(number)
        customer = None if rng.random() < 0.1 else customers[int(len(customers) * rng.random() ** 2)]
        orders.append(Order(
            position, invoice, customer or invoice, customer, rng.choice(_COUNTRIES), at.isoformat(sep=" "),
            _lines(rng, invoice, products, prices),
        ))
    return orders


def _catalogue(rng: random.Random) -> dict[str, Decimal]:
    prices = {}
    for n in range(300):
        code = f"{20000 + 7 * n}"
        prices[code] = Decimal(rng.randrange(5, 2000)).scaleb(-2)
        if n % 6 == 0:  # variants, some of which differ in case only
            for suffix in ("A", "a"):
                prices[code + suffix] = Decimal(rng.randrange(5, 2000)).scaleb(-2)
    prices["PADS"] = Decimal("0.001")
    prices["22502"] = Decimal("5.625")
    prices["POST"] = Decimal(18)
    return prices


def _lines(rng: random.Random, invoice: str, products: list[str], prices: dict[str, Decimal]) -> list[Line]:
    if invoice.startswith("A"):
        return [Line("B", 1, Decimal("-11062.06"))]
    size = rng.randrange(100, 300) if rng.random() < 0.004 else 1 + int(rng.expovariate(1 / 8))
    lines = []
    for _ in range(size):
        product = products[int(len(products) * rng.random() ** 2)]
        quantity = 1 + int(rng.expovariate(1 / 9))
        if invoice.startswith("C") or rng.random() < 0.01:
            quantity = -quantity
        lines.append(Line(product, quantity, Decimal(0) if rng.random() < 0.01 else prices[product]))
    return lines
