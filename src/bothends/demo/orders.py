"""Orders: the truth of a run. Read from files in the columns of UCI's Online Retail, exactly as written there.

Lines are grouped by ``InvoiceNo`` over the whole input, at the place of the invoice's first line. A number that starts
with ``C`` is a cancellation. The key is ``CustomerID`` as written in the first line, else ``InvoiceNo``.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import IO, NamedTuple

from bothends.demo import money

__all__ = ["COLUMNS", "LINES_MAX", "InvalidOrders", "Line", "Order", "lines_of", "read_orders"]

COLUMNS = (
    "InvoiceNo", "StockCode", "Description", "Quantity", "InvoiceDate", "UnitPrice", "CustomerID", "Country",
)
LINES_MAX = 10_000
"""Lines of one invoice: more would not fit an event."""
_NAME_MAX = 200
_QUANTITY_MAX = 2**53


class InvalidOrders(ValueError):
    """A file that is not what it should be; says which line, and what was expected there."""


class Line(NamedTuple):
    product: str
    quantity: int
    price: Decimal

    @property
    def amount(self) -> Decimal:
        return money.times(self.quantity, self.price)


@dataclass(slots=True)
class Order:
    """One invoice. ``position`` is its place among all, from 0."""

    position: int
    invoice: str
    key: str
    customer: str | None
    country: str
    at: str
    """As written: local time without a zone."""
    lines: list[Line] = field(default_factory=list)

    @property
    def cancelled(self) -> bool:
        return self.invoice.startswith("C")

    @property
    def total(self) -> Decimal:
        return money.total(line.amount for line in self.lines)

    @property
    def charge(self) -> tuple[str, Decimal] | None:
        """The idempotency key and the amount of the call that the gateway is due, if any."""
        total = self.total
        if self.cancelled:
            return (f"refund-{self.invoice}", -total) if total < 0 else None
        return (f"charge-{self.invoice}", total) if total > 0 else None


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        stream = gzip.GzipFile(fileobj=raw) if packed else raw
        with io.TextIOWrapper(stream, encoding="utf-8-sig", newline="") as text:
            yield text


def lines_of(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(number, cells) of each line after the header, cells in the order of ``COLUMNS``; the number is a text editor's.

    Raises InvalidOrders for a missing column, a line of another length, and bytes that are not (gzip of) UTF-8.
    """
    try:
        with _opened(path) as text:
            reader = csv.reader(text, strict=True)
            header = next(reader, [])
            if missing := [name for name in COLUMNS if name not in header]:
                names = ", ".join(COLUMNS)
                raise InvalidOrders(f"{path}: column {missing[0]} is missing; the first line must name {names}")
            order = [header.index(name) for name in COLUMNS]
            same = order == list(range(len(header)))
            for cells in reader:
                if len(cells) != len(header):
                    if not cells:
                        continue
                    where = f"{path}:{reader.line_num}"
                    raise InvalidOrders(f"{where}: {len(cells)} cells where the header has {len(header)}")
                yield reader.line_num, cells if same else [cells[i] for i in order]
    except OSError as error:  # gzip.BadGzipFile too
        raise InvalidOrders(f"{path}: cannot be read: {error}") from error
    except (UnicodeDecodeError, csv.Error, EOFError, zlib.error) as error:
        raise InvalidOrders(f"{path}: not a CSV file in UTF-8 (or the gzip of one): {error}") from error


def read_orders(paths: Sequence[Path]) -> list[Order]:
    """Every invoice of the files, taken as one input in the order given. Raises InvalidOrders."""
    return list(_grouped(paths).values())


def _grouped(paths: Iterable[Path]) -> dict[str, Order]:
    orders: dict[str, Order] = {}
    prices: dict[str, Decimal] = {}  # few different ones: parsed once
    for path in paths:
        for number, (invoice, product, _, quantity, at, price, customer, country) in lines_of(path):
            try:
                order = orders.get(invoice)
                if order is None:
                    _check_names(invoice, customer)
                    order = Order(len(orders), invoice, customer or invoice, customer or None, country, at)
                    orders[invoice] = order
                if price not in prices:
                    prices[price] = money.parse(price)
                order.lines.append(Line(_checked(product, "StockCode"), _units(quantity), prices[price]))
                if len(order.lines) > LINES_MAX:
                    raise ValueError(f"invoice {invoice} has more than {LINES_MAX} lines")
            except ValueError as error:
                raise InvalidOrders(f"{path}:{number}: {error}") from error
    return orders


def _check_names(invoice: str, customer: str) -> None:
    if not invoice:
        raise ValueError("InvoiceNo is empty")
    _checked(invoice, "InvoiceNo")
    _checked(customer, "CustomerID")


def _checked(name: str, column: str) -> str:
    if len(name) > _NAME_MAX or "\0" in name:
        raise ValueError(f"{column} has more than {_NAME_MAX} characters, or a NUL: {name[:50]!r}")
    return name


def _units(text: str) -> int:
    if not text.removeprefix("-").isdecimal() or not text.isascii() or len(text) > 17:
        raise ValueError(f"Quantity must be a whole number, not {text[:50]!r}")
    units = int(text)
    if abs(units) >= _QUANTITY_MAX:
        raise ValueError(f"Quantity must be below 2**53, not {text}")
    return units
