"""What the users' own tables hold, so that one delivery can be compared with two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeAlias

from bothends.stores import Store
from bothends.stores.steps import Sql, Steps

__all__ = ["ROWS_MAX", "Snapshot", "difference", "snapshot"]

ROWS_MAX = 100_000
"""Rows of one table that are compared; a test with more compares too much to say anything."""

Snapshot: TypeAlias = Mapping[str, Counter[tuple[str, ...]]]
"""Table name to its rows, each as text; a row may be there more than once."""

_SHOWN_MAX = 5


def snapshot(store: Store) -> Steps[Snapshot]:
    """All rows of all tables that are not ours. Raises ValueError for a table of more than ``ROWS_MAX`` rows."""
    if store.dialect == "postgresql":
        result = yield Sql(
            "select quote_ident(table_schema) || '.' || quote_ident(table_name) from information_schema.tables"
            " where table_type = 'BASE TABLE' and table_schema not in ('pg_catalog', 'information_schema', :ours)"
            " and table_schema not like 'pg\\_%' order by 1",
            {"ours": store.schema},
        )
    else:
        result = yield Sql(
            "select '\"' || replace(name, '\"', '\"\"') || '\"' from sqlite_master where type = 'table'"
            " and name not like 'bothends\\_%' escape '\\' and name not like 'sqlite\\_%' escape '\\' order by 1"
        )
    found: dict[str, Counter[tuple[str, ...]]] = {}
    for (name,) in result.rows:
        rows = yield Sql(f"select * from {name} limit {ROWS_MAX + 1}")  # a name that the catalogue has quoted
        if len(rows.rows) > ROWS_MAX:
            raise ValueError(f"deliver_twice compares whole tables, and {name} has more than {ROWS_MAX} rows")
        found[str(name)] = Counter(_as_text(row) for row in rows.rows)
    return found


def _as_text(row: tuple[Any, ...]) -> tuple[str, ...]:
    return tuple(repr(bytes(value) if isinstance(value, memoryview) else value) for value in row)


def difference(once: Snapshot, twice: Snapshot) -> list[str]:
    """What a second delivery changed, as lines to read; empty when nothing did."""
    lines = []
    for name in sorted(once.keys() | twice.keys()):
        before, after = once.get(name, Counter()), twice.get(name, Counter())
        for sign, rows in (("-", before - after), ("+", after - before)):
            shown = sorted(rows.elements())
            lines += [f"{name}: {sign} ({', '.join(row)})" for row in shown[:_SHOWN_MAX]]
            if len(shown) > _SHOWN_MAX:
                lines.append(f"{name}: {sign} ... and {len(shown) - _SHOWN_MAX} more rows")
    return lines
