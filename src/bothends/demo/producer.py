"""Producer: places its share of the orders, one transaction each, each customer's in the order of the input.

    python -m bothends.demo.producer SPEC        SPEC is the JSON of ``Share``; ends with status 0 when all are placed

Producers share the customers by a hash of the key, so two processes never place orders of one customer. After a COMMIT
that was not answered nobody knows whether it happened: the invoice is looked up before it is placed again.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from bothends.demo.app import order_event, place_order, was_placed
from bothends.demo.events import OrderLine
from bothends.demo.orders import Order, read_orders
from bothends.demo.seeded import make_orders
from bothends.demo.shop import Connection, open_database

__all__ = ["Share", "Source", "main", "place_all"]

GIVE_UP_S = 300.0
"""A database that is away longer ends the process with its error."""
_PAUSE_FIRST_S, _PAUSE_MAX_S = 0.05, 1.0


@dataclass(frozen=True)
class Source:
    """Where orders come from: files, or a seed and a number."""

    files: list[str]
    seed: int
    count: int

    def orders(self) -> list[Order]:
        return read_orders([Path(file) for file in self.files]) if self.files else make_orders(self.seed, self.count)


@dataclass(frozen=True)
class Share:
    """What one producer does: the orders whose key hashes to ``number`` of ``among``."""

    source: Source
    number: int
    among: int
    database: str

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Share:
        read = json.loads(text)
        return Share(Source(**read.pop("source")), **read)

    def orders(self) -> Iterator[Order]:
        return (o for o in self.source.orders() if zlib.crc32(o.key.encode()) % self.among == self.number)


def lost_or_busy() -> tuple[type[Exception], ...]:
    """Errors after which nobody knows what became of the transaction, or which pass; psycopg only where it is used."""
    errors: list[type[Exception]] = [sqlite3.OperationalError, sqlite3.IntegrityError]
    if "psycopg" in sys.modules:
        import psycopg

        # A unique violation: the COMMIT that was not answered ended just after the look-up.
        errors += [psycopg.OperationalError, psycopg.errors.UniqueViolation]
    return tuple(errors)


def place_all(orders: Iterator[Order], connect: Callable[[], Connection], *, give_up_s: float = GIVE_UP_S) -> int:
    """Places every order; returns how many were found placed after an unanswered COMMIT."""
    db: Connection | None = None
    found = 0
    for order in orders:
        event = order_event(
            order.invoice, order.key, order.country, [OrderLine(*line) for line in order.lines]
        )
        asked, pause_s, doubtful = time.monotonic(), _PAUSE_FIRST_S, False
        while True:
            try:
                if db is None:
                    db = connect()
                if doubtful and was_placed(db, order.invoice):
                    found += 1
                    break
                db.execute("begin immediate" if isinstance(db, sqlite3.Connection) else "begin")
                place_order(db, event)
                db.execute("commit")
                break
            except lost_or_busy():
                if time.monotonic() - asked > give_up_s:
                    raise
                _drop(db)
                db, doubtful = None, True
                time.sleep(pause_s)
                pause_s = min(_PAUSE_MAX_S, pause_s * 2)
    _drop(db)
    return found


def _drop(db: Connection | None) -> None:
    """Closes; whatever transaction was open ends with it."""
    if db is not None:
        with suppress(*lost_or_busy()):
            db.close()


def main() -> None:
    share = Share.from_json(sys.argv[1])
    found = place_all(share.orders(), lambda: open_database(share.database))
    print(json.dumps({"found_after_unanswered_commit": found}))


if __name__ == "__main__":
    main()
