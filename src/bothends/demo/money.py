"""Money: exact decimal sums. An amount that does not fit 60 digits raises; nothing is ever rounded."""

from __future__ import annotations

import decimal
import re
from collections.abc import Iterable
from decimal import Decimal

__all__ = ["ZERO", "add", "parse", "plain", "times", "total"]

ZERO = Decimal(0)
_EXACT = decimal.Context(
    prec=60, traps=[decimal.Inexact, decimal.InvalidOperation, decimal.Overflow, decimal.Subnormal]
)
_NUMBER = re.compile(r"[+-]?(\d{1,20}(\.\d{0,12})?|\.\d{1,12})")


def parse(text: str) -> Decimal:
    """The decimal as written, its trailing zeros too. Raises ValueError for anything but sign, digits and one point."""
    if not _NUMBER.fullmatch(text) or not text.isascii():
        raise ValueError(f"not a decimal number of at most 20 and 12 digits: {text[:50]!r}")
    return Decimal(text)


def add(left: Decimal, right: Decimal) -> Decimal:
    return _EXACT.add(left, right)


def times(quantity: int, price: Decimal) -> Decimal:
    return _EXACT.multiply(Decimal(quantity), price)


def total(amounts: Iterable[Decimal]) -> Decimal:
    result = ZERO
    for amount in amounts:
        result = _EXACT.add(result, amount)
    return result


def plain(amount: Decimal) -> str:
    """One spelling for each value: no exponent, at least two decimals and no needless ones, no minus before zero."""
    whole, _, decimals = f"{amount:f}".partition(".")
    text = f"{whole}.{decimals.rstrip('0').ljust(2, '0')}"
    return "0.00" if amount == 0 else text
