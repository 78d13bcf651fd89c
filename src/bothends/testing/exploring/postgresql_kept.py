"""Copies of a scratch database on PostgreSQL, kept within it, and the way back to them: one statement, some milliseconds.

A clone of the database takes 70 ms, truncating all tables 40 ms, deleting and inserting again 1 ms. So rows are deleted and
inserted, with triggers and foreign keys off; truncating is for tables that have grown.
"""

from __future__ import annotations

from collections.abc import Sequence

from bothends.stores.steps import Sql, Steps
from bothends.testing.exploring.server_clock import SCHEMA as CLOCK

__all__ = ["SCHEMA", "can_replace_rows", "keep", "restoring"]

SCHEMA = "bothends_kept"
_BYTES_MAX = 65_536
"""A table that is larger is truncated: what earlier runs have deleted lies in the way."""
_BUMP = 1_009
_OURS = f"n.nspname in ('pg_catalog', 'information_schema', '{SCHEMA}', '{CLOCK}') or n.nspname like 'pg\\_%'"

_SETUP = f"""
create schema {SCHEMA};
create function {SCHEMA}.shape() returns text language sql stable as $$
    select md5(string_agg(concat_ws(' ', c.oid, c.relname, c.relkind, c.relnatts, c.relchecks, c.relhastriggers), ','
        order by c.oid))
    from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace where not ({_OURS})
$$;
"""


def can_replace_rows() -> Steps[bool]:
    """Whether this role may put rows back with triggers and foreign keys off, and there is nothing but rows to put back."""
    found = yield Sql("select rolsuper from pg_roles where rolname = current_user")
    if not found.rows[0][0]:
        return False
    found = yield Sql(
        "select exists (select from pg_class c where c.relkind in ('m', 'f')) or exists (select from pg_largeobject_metadata)")
    return not found.rows[0][0]


def keep(number: int) -> Steps[None]:
    """Keeps all rows and sequences under ``number``."""
    if number == 0:
        yield Sql(_SETUP, rows=False)
    tables = (yield Sql(
        "select format('%I.%I', n.nspname, c.relname), (select coalesce(string_agg(quote_ident(a.attname), ', ' "
        "order by a.attnum), '') from pg_attribute a where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped "
        "and a.attgenerated = ''), n.nspname from pg_class c join pg_namespace n on n.oid = c.relnamespace "
        f"where c.relkind = 'r' and c.relpersistence <> 't' and not ({_OURS}) order by c.oid"
    )).rows
    sequences = (yield Sql(
        "select format('%I.%I', n.nspname, c.relname), s.seqincrement, s.seqmin, s.seqmax from pg_class c join pg_namespace n "
        f"on n.oid = c.relnamespace join pg_sequence s on s.seqrelid = c.oid where not ({_OURS}) order by c.oid"
    )).rows
    filled: list[tuple[int, str, str]] = []
    for place, (name, columns, _) in enumerate(tables):
        found = yield Sql(f"select exists (select from only {name})")
        if found.rows[0][0]:
            filled.append((place, name, columns))
            yield Sql(f"create table {SCHEMA}.k{number}_{place} as select {columns} from only {name}", rows=False)
    counted: list[tuple[str, int, bool, int]] = []
    for name, increment, least, most in sequences:
        ((last, called),) = (yield Sql(f"select last_value, is_called from {name}")).rows
        bumped = last + increment * _BUMP
        counted.append((name, last, called, bumped if least <= bumped <= most else last))
    found = yield Sql(f"select {SCHEMA}.shape()")
    yield Sql(_function(number, str(found.rows[0][0]), [row[0] for row in tables], filled, counted), rows=False)


def _function(
    number: int, shape: str, tables: Sequence[str], filled: Sequence[tuple[int, str, str]],
    counted: Sequence[tuple[str, int, bool, int]],
) -> str:
    every = ", ".join(tables)
    sizes = ", ".join(f"pg_relation_size('{name}')" for name in tables)
    lines = [f"truncate {every};" if tables else "null;"]
    deletes = [f"delete from only {name};" for name in tables] or ["null;"]
    back = [
        f"insert into {name} ({columns}) overriding system value select {columns} from {SCHEMA}.k{number}_{place};"
        for place, name, columns in filled if columns
    ]
    plain = [f"perform setval('{name}', {last}, {str(called).lower()});" for name, last, called, _ in counted]
    noisy = [f"perform setval('{name}', {bumped}, true);" for name, _, _, bumped in counted] or ["null;"]
    return (
        f"create function {SCHEMA}.restore_{number}(p_noise boolean, p_afresh boolean) returns boolean language plpgsql as $$ "
        f"begin if {SCHEMA}.shape() <> '{shape}' then return false; end if; "
        "perform set_config('session_replication_role', 'replica', true); "
        f"if p_afresh or greatest(0, {sizes or '0'}) > {_BYTES_MAX} then {' '.join(lines)} else {' '.join(deletes)} end if; "
        f"{' '.join(back)} {' '.join(plain)} if p_noise then {' '.join(noisy)} end if; return true; end $$"
    )


def restoring(number: int, *, noise: bool, afresh: bool) -> Steps[bool]:
    """Back to what was kept under ``number``. False: tables were made or altered since, which rows alone do not undo."""
    found = yield Sql(
        f"select {SCHEMA}.restore_{number}(:noise::boolean, :afresh::boolean)", {"noise": noise, "afresh": afresh})
    return bool(found.rows[0][0])
