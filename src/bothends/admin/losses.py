"""What a downgrade of our tables would lose, counted before anybody is asked."""

from __future__ import annotations

from bothends.admin.amounts import amount, size
from bothends.admin.status import COUNT_MAX, SCAN_MAX
from bothends.stores.postgresql.admin import PostgresqlAdmin
from bothends.stores.steps import Steps

__all__ = ["losses"]

_TABLES = (
    (2, "held", "state <> 'dead'", "held event"), (2, "held", "state = 'dead'", "dead event"),
    (2, "delayed", "true", "delayed event"), (3, "parked", "true", "parked message"),
    (3, "dead_letters", "state = 'open'", "open dead letter"), (3, "inbox", "true", "inbox row"),
    (4, "effects", "true", "effect's record"), (4, "audit", "true", "audit row"),
)
"""The version that brought a table, its rows that count, and one of them."""
_LOG = 5


def losses(admin: PostgresqlAdmin, now: int, target: int) -> Steps[list[str]]:
    """``["3 unpublished events", "1 open dead letter"]``: what goes with the tables that version ``target`` does not
    have, on a database of version ``now``. Counts stop at 10,000, so this is quick."""
    found: list[str] = []
    if target < 1 <= now:
        rows = yield admin.waiting(COUNT_MAX, SCAN_MAX) if now > 1 else admin.sql(
            "select '', count(*) from (select 1 from {s}.outbox limit :cap) counted", cap=COUNT_MAX)
        found.append(_counted(sum(row[1] for row in rows.rows), "unpublished event"))
    for since, table, which, one in _TABLES:
        if target < since <= now:
            rows = yield admin.sql(
                f"select count(*) from (select 1 from {{s}}.{table} where {which} limit :cap) counted", cap=COUNT_MAX)
            found.append(_counted(rows.rows[0][0], one, "effects' records" if table == "effects" else None))
    if admin.has_log and target < _LOG <= now:
        rows = yield from admin.slots()
        found += [f"the slot {row[0]} with {size(int(row[5] or 0))} of the log" for row in rows.rows
                  if row[4] is not None]
    return [one for one in found if one]


def _counted(count: int, one: str, many: str | None = None) -> str:
    return "" if not count else ("at least " if count >= COUNT_MAX else "") + amount(count, one, many)
