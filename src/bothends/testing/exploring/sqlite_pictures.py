"""What users' own tables hold on SQLite, and which numbers SQLite gives out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bothends.stores.steps import Sql, Steps
from bothends.testing.exploring.pictures import ROWS_MAX, Picture, texts

__all__ = ["tables"]


def tables(picture: Picture) -> Steps[None]:
    """All rows of all tables that are not ours. Raises ValueError for a table of more than ``ROWS_MAX`` rows."""
    found = yield Sql(
        "select name from sqlite_master where type = 'table' and name not like 'bothends\\_%' escape '\\'"
        " and name not like 'sqlite\\_%' escape '\\' order by 1"
    )
    for (name,) in found.rows:
        quoted = '"' + name.replace('"', '""') + '"'
        columns = yield Sql(f"select name, type, pk from pragma_table_info({_literal(name)})")
        rows = yield Sql(f"select * from {quoted} limit {ROWS_MAX + 1}")
        if len(rows.rows) > ROWS_MAX:
            raise ValueError(f"the explorer compares whole tables, and {name} has more than {ROWS_MAX} rows")
        picture.put(name, [row[0] for row in columns.rows], map(texts, rows.rows))
        keys = [n for n, row in enumerate(columns.rows) if row[2]]
        if len(keys) == 1 and columns.rows[keys[0]][1].upper() == "INTEGER":
            _counted(picture, name, keys[0], [row[keys[0]] for row in rows.rows])
    yield from _referring(picture)


def _literal(name: str) -> str:
    return "'" + name.replace("'", "''") + "'"


def _counted(picture: Picture, name: str, column: int, numbers: Sequence[Any]) -> None:
    """A rowid's alias whose values are what SQLite would have counted."""
    if sorted(numbers) == list(range(1, len(numbers) + 1)):
        picture.given_out.add((name, column))


def _referring(picture: Picture) -> Steps[None]:
    """Foreign keys that hold numbers which the database gave out."""
    counted = {(table, picture.columns[table][column]) for table, column in picture.given_out}
    for name in list(picture.rows):
        keys = yield Sql(f'select "table", "from", "to" from pragma_foreign_key_list({_literal(name)})')
        for target, source, column in keys.rows:
            if any(table == target and column in (None, counted_column) for table, counted_column in counted):
                picture.given_out.add((name, picture.columns[name].index(source)))
