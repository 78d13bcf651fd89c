"""Cases of the marketplace, for ``bothends check bothends.demo``: orders and a cancellation of two customers."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from decimal import Decimal

from bothends.demo.app import order_event, place_order
from bothends.demo.events import RUN, OrderLine
from bothends.demo.names import SERVICES
from bothends.demo.shop import Connection, Shop
from bothends.testing import answering, case

__all__ = ["an_order_without_a_price", "gateway", "orders_and_a_cancellation"]

GATEWAY = "http://gateway.demo"


class Gateway:
    """What the demo's payment gateway does, without its process. A receipt's number follows from the key, not from the order
    of calls, which is not promised."""

    def __init__(self) -> None:
        self.charges: dict[str, str] = {}

    def __call__(self, verb: str, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        if verb == "GET":
            receipt = self.charges.get(path.rpartition("/")[2])
            return (404, b"{}") if receipt is None else (200, json.dumps({"receipt": receipt}).encode())
        key = headers["idempotency-key"]
        known = key in self.charges
        receipt = self.charges.setdefault(key, f"receipt for {key}")
        return 200 if known else 201, json.dumps({"receipt": receipt}).encode()


gateway = answering(GATEWAY, Gateway())


def _open(db: Connection) -> None:
    os.environ.setdefault("DEMO_GATEWAY_URL", GATEWAY)
    for name in SERVICES:
        Shop(RUN, name).create_tables(db)


@case
def orders_and_a_cancellation(db: Connection) -> list[object]:
    """One customer orders, cancels and orders again; another one orders the same product."""
    _open(db)
    tea, lamp = OrderLine("22423", 2, Decimal("12.75")), OrderLine("84879", 6, Decimal("1.69"))
    back = OrderLine("22423", -1, Decimal("12.75"))
    place_order(db, order_event("536365", "17850", "United Kingdom", [tea, lamp]))
    place_order(db, order_event("C536379", "17850", "United Kingdom", [back]))
    place_order(db, order_event("536381", "15311", "France", [tea]))
    return []


@case
def an_order_without_a_price(db: Connection) -> list[object]:
    """An order without anything to pay: it is booked, and the gateway is not called."""
    _open(db)
    place_order(db, order_event("536414", "536414", "Spain", [OrderLine("22139", 56, Decimal("0.00"))]))
    return []
