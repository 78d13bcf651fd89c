"""Shop: the application's own tables and statements, in the words of PostgreSQL and of SQLite.

Each service has a schema of its own on PostgreSQL, a file of its own on SQLite. Money is ``numeric`` on PostgreSQL and
text on SQLite, whose ``sum()`` is a binary float: there the handler adds, in the transaction that holds the write lock.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

from bothends.demo import money
from bothends.demo.names import schema_of

if TYPE_CHECKING:
    import psycopg

__all__ = ["Connection", "Shop", "open_database"]

Connection: TypeAlias = "psycopg.Connection[Any] | sqlite3.Connection"

_EFFECTS = (
    "effects_log (seq {serial}, consumer text not null, event_id text not null, invoice text not null,"
    " key text not null)"
)
_TABLES = {
    "orders": ["orders (invoice text primary key, key text not null, country text not null, total {money} not null)"],
    "inventory": ["stock (product text primary key, units bigint not null)", _EFFECTS],
    "payments": [
        "payments (invoice text primary key, amount {money} not null, receipt text)",
        _EFFECTS,
    ],
    "analytics": [
        "revenue (product text primary key, revenue {money} not null)",
        "confirmed (seq {serial}, invoice text not null, amount {money} not null)",
        _EFFECTS,
    ],
}


def open_database(url: str) -> Connection:
    """The service's own connection, as an application makes one."""
    if url.startswith("sqlite:///"):
        lite = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, timeout=5)
        lite.execute("pragma journal_mode = wal")
        lite.execute("pragma synchronous = full")
        return lite
    import psycopg

    return psycopg.connect(url, connect_timeout=5, autocommit=True)


class Shop:
    """The tables of one service of one run."""

    def __init__(self, run: str, service: str) -> None:
        self.service = service
        self._schema = f'"{schema_of(run, service)}".'

    @property
    def tables(self) -> list[str]:
        return [text.partition(" ")[0] for text in _TABLES[self.service]]

    def create_tables(self, db: Connection) -> None:
        lite = isinstance(db, sqlite3.Connection)
        words = {
            "serial": f"{'integer' if lite else 'bigint generated always as identity'} primary key",
            "money": "text" if lite else "numeric",
        }
        for table in _TABLES[self.service]:
            prefix = "" if lite else self._schema
            db.execute(f"create table if not exists {prefix}{table.format(**words)}")

    def _run(self, db: Connection, text: str, *values: object) -> Any:
        """``{s}`` stands for the schema and ``?`` for a value."""
        if isinstance(db, sqlite3.Connection):
            return db.execute(text.replace("{s}", ""), values)
        return db.execute(text.replace("{s}", self._schema).replace("?", "%s"), values)

    def place(self, db: Connection, invoice: str, key: str, country: str, total: Decimal) -> None:
        self._run(
            db, "insert into {s}orders (invoice, key, country, total) values (?, ?, ?, ?)",
            invoice, key, country, _value(db, total),
        )

    def is_placed(self, db: Connection, invoice: str) -> bool:
        return self._run(db, "select 1 from {s}orders where invoice = ?", invoice).fetchone() is not None

    def add_units(self, db: Connection, units: Mapping[str, int]) -> None:
        """Locks the products in sorted order, so that two orders never wait for each other in a circle."""
        rows = sorted(units.items())
        if isinstance(db, sqlite3.Connection):
            db.executemany(
                "insert into stock (product, units) values (?, ?)"
                " on conflict (product) do update set units = units + excluded.units", rows,
            )
            return
        self._run(
            db, "insert into {s}stock as held (product, units) select * from unnest(?::text[], ?::bigint[])"
            " on conflict (product) do update set units = held.units + excluded.units",
            [product for product, _ in rows], [count for _, count in rows],
        )

    def add_revenue(self, db: Connection, revenue: Mapping[str, Decimal]) -> None:
        products = sorted(revenue)
        if isinstance(db, sqlite3.Connection):
            known = db.execute(
                "select product, revenue from revenue where product in (select value from json_each(?))",
                [json.dumps(products)],
            ).fetchall()
            held = {product: Decimal(amount) for product, amount in known}
            db.executemany(
                "insert into revenue (product, revenue) values (?, ?)"
                " on conflict (product) do update set revenue = excluded.revenue",
                [(p, str(money.add(held.get(p, money.ZERO), revenue[p]))) for p in products],
            )
            return
        self._run(
            db, "insert into {s}revenue as held (product, revenue) select * from unnest(?::text[], ?::numeric[])"
            " on conflict (product) do update set revenue = held.revenue + excluded.revenue",
            products, [revenue[product] for product in products],
        )

    def book_payment(self, db: Connection, invoice: str, amount: Decimal, receipt: str | None) -> None:
        self._run(
            db, "insert into {s}payments (invoice, amount, receipt) values (?, ?, ?)",
            invoice, _value(db, amount), receipt,
        )

    def count_confirmed(self, db: Connection, invoice: str, amount: Decimal) -> None:
        self._run(db, "insert into {s}confirmed (invoice, amount) values (?, ?)", invoice, _value(db, amount))

    def log_effect(self, db: Connection, consumer: str, event_id: str, invoice: str, key: str) -> None:
        """A row per effect, without any unique constraint: what happens twice shows."""
        self._run(
            db, "insert into {s}effects_log (consumer, event_id, invoice, key) values (?, ?, ?, ?)",
            consumer, event_id, invoice, key,
        )

    def effects(self, db: Connection, consumer: str) -> list[tuple[int, str, str, str]]:
        found = self._run(
            db, "select seq, event_id, invoice, key from {s}effects_log where consumer = ? order by seq", consumer
        )
        return [tuple(row) for row in found.fetchall()]

    def count_effects(self, db: Connection) -> int:
        return int(self._run(db, "select count(*) from {s}effects_log").fetchone()[0])

    def count_orders(self, db: Connection) -> int:
        return int(self._run(db, "select count(*) from {s}orders").fetchone()[0])

    def units(self, db: Connection) -> dict[str, int]:
        return dict(self._run(db, "select product, units from {s}stock").fetchall())

    def revenue(self, db: Connection) -> dict[str, Decimal]:
        rows = self._run(db, "select product, revenue from {s}revenue").fetchall()
        return {product: Decimal(amount) for product, amount in rows}

    def confirmed(self, db: Connection) -> list[tuple[str, Decimal]]:
        rows = self._run(db, "select invoice, amount from {s}confirmed order by seq").fetchall()
        return [(invoice, Decimal(amount)) for invoice, amount in rows]


def _value(db: Connection, amount: Decimal) -> Decimal | str:
    return str(amount) if isinstance(db, sqlite3.Connection) else amount
