"""Audit: compares what a run did with what its input demands. Pure: orders and rows in, findings out.

The truth is the input. Every (invoice, consumer) pair needs exactly one effect, every due charge exactly one call at
the gateway, the first effects of a key come in the input's order, units and revenue per product equal the plain sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import NamedTuple

from bothends.demo import money
from bothends.demo.orders import Order

__all__ = ["Charge", "Effect", "Findings", "Sums", "audit", "plain_sums"]

_EXAMPLES_MAX = 20


class Effect(NamedTuple):
    """One row of a consumer's ``effects_log``."""

    seq: int
    event_id: str
    invoice: str
    key: str


class Charge(NamedTuple):
    """One line of the gateway's file."""

    key: str
    amount: Decimal


class Sums(NamedTuple):
    units: int
    revenue: Decimal


@dataclass
class Findings:
    """Counts, and the first examples of each kind in words."""

    lost: int = 0
    double_effects: int = 0
    order_violations: int = 0
    unexpected: int = 0
    """Effects and charges that no order asked for, or that carry another key."""
    wrong_sums: int = 0
    """Products whose units or revenue, and charges whose amount, differ from the input's."""
    examples: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not (self.lost or self.double_effects or self.order_violations or self.unexpected or self.wrong_sums)

    def note(self, kind: str, text: str, count: int = 1) -> None:
        setattr(self, kind, getattr(self, kind) + count)
        if len(self.examples) < _EXAMPLES_MAX:
            self.examples.append(f"{kind}: {text}")


def plain_sums(orders: Iterable[Order]) -> dict[str, Sums]:
    """Units and revenue per product, straight from the input."""
    sums: dict[str, Sums] = {}
    nothing = Sums(0, money.ZERO)
    for order in orders:
        for line in order.lines:
            units, revenue = sums.get(line.product, nothing)
            sums[line.product] = Sums(units + line.quantity, money.add(revenue, line.amount))
    return sums


def audit(
    orders: Sequence[Order],
    effects: Mapping[str, Iterable[Effect]],
    charges: Iterable[Charge],
    sums: Mapping[str, Sums],
    *,
    only_charged: frozenset[str] = frozenset(),
) -> Findings:
    """``effects`` maps each consumer to its rows; those in ``only_charged`` see only orders that were charged (they
    listen to ``payment.confirmed``). ``sums`` is what the consumers' databases hold."""
    findings = Findings()
    charged = {order.invoice: order for order in orders if order.charge is not None}
    every = {order.invoice: order for order in orders}
    for consumer, rows in effects.items():
        _audit_consumer(findings, consumer, charged if consumer in only_charged else every, rows)
    _audit_charges(findings, charged.values(), charges)
    _audit_sums(findings, plain_sums(orders), sums)
    return findings


def _audit_consumer(findings: Findings, consumer: str, due: Mapping[str, Order], rows: Iterable[Effect]) -> None:
    seen: set[str] = set()
    highest: dict[str, int] = {}
    for row in sorted(rows, key=lambda row: row.seq):
        order = due.get(row.invoice)
        if order is None or row.key != order.key:
            stranger = f"{consumer}: an effect of {row.invoice!r} with key {row.key!r} (row {row.seq})"
            findings.note("unexpected", stranger)
        if order is None:
            continue
        if row.invoice in seen:
            findings.note("double_effects", f"{consumer}: {row.invoice} again (row {row.seq}, event {row.event_id})")
            continue
        seen.add(row.invoice)
        if order.position < highest.get(order.key, -1):
            findings.note("order_violations", f"{consumer}: {row.invoice} of key {order.key} came late (row {row.seq})")
        highest[order.key] = max(order.position, highest.get(order.key, -1))
    for invoice in due.keys() - seen:
        findings.note("lost", f"{consumer}: no effect of {invoice}")


def _audit_charges(findings: Findings, orders: Iterable[Order], charges: Iterable[Charge]) -> None:
    due = dict(filter(None, (order.charge for order in orders)))
    seen: set[str] = set()
    for key, amount in charges:
        if key not in due:
            findings.note("unexpected", f"gateway: {key!r} was charged, nothing asked for it")
        elif key in seen:
            findings.note("double_effects", f"gateway: {key} was charged again")
        elif amount != due[key]:
            findings.note("wrong_sums", f"gateway: {key} was charged {amount}, not {due[key]}")
        seen.add(key)
    for key in due.keys() - seen:
        findings.note("lost", f"gateway: {key} was never charged")


def _audit_sums(findings: Findings, due: Mapping[str, Sums], held: Mapping[str, Sums]) -> None:
    nothing = Sums(0, money.ZERO)
    for product in sorted(due.keys() | held.keys()):
        want, have = due.get(product, nothing), held.get(product, nothing)
        if want != have or (product in due) != (product in held):
            findings.note("wrong_sums", f"product {product!r}: {have}, not {want}")
