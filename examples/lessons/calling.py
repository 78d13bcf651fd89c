"""Before any events: the checkout calls the others one after another, and waits for each of them.

The clock counts ticks: card 2, warehouse 3, mail 25, ledger 4.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from examples.lessons.events import OrderPaid

COSTS = {"card": 2, "warehouse": 3, "mail": 25, "ledger": 4}
STOCK = 10


class MailIsDown(Exception):
    pass


@dataclass
class CallingShop:
    """A shop whose checkout is done when the last of its calls is done. ``mail_fails`` is how often mail is down."""

    mail_fails: int = 0
    clock: int = 0
    stock: int = STOCK
    charged: list[str] = field(default_factory=list)
    reserved: list[str] = field(default_factory=list)
    mailed: list[str] = field(default_factory=list)
    booked: list[str] = field(default_factory=list)

    def checkout(self, order: OrderPaid) -> int:
        """Returns the ticks that the customer waited. Raises MailIsDown, and what was done before stays done."""
        began = self.clock
        steps: list[tuple[str, Callable[[OrderPaid], None]]] = [
            ("card", self._charge), ("warehouse", self._reserve), ("mail", self._mail), ("ledger", self._book),
        ]
        for name, step in steps:
            self.clock += COSTS[name]
            step(order)
        return self.clock - began

    def _charge(self, order: OrderPaid) -> None:
        self.charged.append(order.order)

    def _reserve(self, order: OrderPaid) -> None:
        self.stock -= order.units
        self.reserved.append(order.order)

    def _mail(self, order: OrderPaid) -> None:
        if self.mail_fails:
            self.mail_fails -= 1
            raise MailIsDown(f"order {order.order}: no mail could be sent")
        self.mailed.append(order.order)

    def _book(self, order: OrderPaid) -> None:
        self.booked.append(order.order)
