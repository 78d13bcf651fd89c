"""What users' own tables hold on PostgreSQL, and which numbers its sequences give out."""

from __future__ import annotations

from collections.abc import Set

from bothends.stores.steps import Sql, Steps
from bothends.testing.exploring.pictures import ROWS_MAX, Picture, texts

__all__ = ["names_of_tables", "tables"]

_TABLES = (
    "select c.oid, n.nspname, c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.relkind in "
    "('r', 'p') and not c.relispartition and c.relpersistence <> 't' and n.nspname <> 'information_schema' and n.nspname "
    "not like 'pg\\_%' and n.nspname not in ('bothends_kept', 'bothends_clock') order by 2, 3"
)
_COLUMNS = (
    "select a.attname, a.attidentity <> '' or coalesce(pg_get_expr(d.adbin, d.adrelid) like 'nextval(%', false), a.attnum "
    "from pg_attribute a left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum "
    "where a.attrelid = :table::oid and a.attnum > 0 and not a.attisdropped order by a.attnum"
)
_REFERENCES = "select conrelid, conkey, confrelid, confkey from pg_constraint where contype = 'f'"

Name = tuple[str, str]


def names_of_tables() -> Steps[set[Name]]:
    """(schema, name) of every table."""
    found = yield Sql(_TABLES)
    return {(row[1], row[2]) for row in found.rows}


def tables(picture: Picture, ours: Set[Name]) -> Steps[None]:
    """All rows of all tables that are not ``ours``. Raises ValueError for a table of more than ``ROWS_MAX`` rows."""
    found = yield Sql(_TABLES)
    shown: dict[int, tuple[str, dict[int, int]]] = {}
    for oid, schema, table in found.rows:
        if (schema, table) in ours:
            continue
        name = table if schema == "public" else f"{schema}.{table}"
        columns = (yield Sql(_COLUMNS, {"table": oid})).rows
        rows = yield Sql(f"select * from {_quoted(schema)}.{_quoted(table)} limit {ROWS_MAX + 1}")
        if len(rows.rows) > ROWS_MAX:
            raise ValueError(f"the explorer compares whole tables, and {name} has more than {ROWS_MAX} rows")
        picture.put(name, [row[0] for row in columns], map(texts, rows.rows))
        picture.given_out.update((name, place) for place, row in enumerate(columns) if row[1])
        shown[oid] = name, {row[2]: place for place, row in enumerate(columns)}
    yield from _referring(picture, shown)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _referring(picture: Picture, shown: dict[int, tuple[str, dict[int, int]]]) -> Steps[None]:
    """Foreign keys that hold numbers which sequences gave out, at any distance."""
    found = yield Sql(_REFERENCES)
    before = -1
    while before != len(picture.given_out):  # ends: it only grows, up to all columns
        before = len(picture.given_out)
        for source, from_columns, target, to_columns in found.rows:
            if source not in shown or target not in shown:
                continue
            (name, places), (other, others) = shown[source], shown[target]
            for mine, theirs in zip(from_columns, to_columns, strict=True):
                if (other, others[theirs]) in picture.given_out:
                    picture.given_out.add((name, places[mine]))
