"""Our tables: numbered migrations, up and down, in files that can be read and run by hand as well.

``meta`` records the version, in the transaction that changes it. Any number of deployments may apply at once: an
advisory lock (PostgreSQL) or the write lock (SQLite) lets one through at a time, and the others find the work done.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Literal, NamedTuple

from bothends.errors import ConfigError
from bothends.stores.connection import Connection
from bothends.stores.steps import Sql, Steps, run

if TYPE_CHECKING:
    from bothends.stores import Store

__all__ = [
    "Migration", "SchemaStatus", "apply", "grants", "migrate", "migrations", "quoted_schema", "script", "status",
    "version",
]

Dialect = Literal["postgresql", "sqlite"]

_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.up\.sql")
_SCHEMA = re.compile(r"[^\W\d][\w $-]*")
_SCHEMA_MAX = 63
_WITHIN = re.compile(r"\s*create trigger\b(?s:.*)\bbegin\b(?!(?s:.*)\bend\s*$)")
"""What a statement that goes on after a ``;`` looks like up to there."""
_TOKEN = re.compile(r"(?P<comment>--[^\n]*)|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|\$\w*\$.*?\$\w*\$|(?P<end>;)", re.DOTALL)


class Migration(NamedTuple):
    number: int
    name: str
    up: str
    down: str


class SchemaStatus(NamedTuple):
    version: int
    """What the database has; 0: no tables of ours."""
    latest: int
    """What this package needs."""
    pending: list[str]
    """Names of the migrations that ``apply`` would run, for instance ``0002_relay``."""

    @property
    def ok(self) -> bool:
        return self.version == self.latest


def quoted_schema(schema: str) -> str:
    """``schema`` as an identifier in SQL text. Raises ConfigError for a name that is no identifier of PostgreSQL
    (63 bytes; letters, digits, ``_``, ``$``, ``-`` and spaces; it does not begin with a digit)."""
    if not _SCHEMA.fullmatch(schema) or len(schema.encode()) > _SCHEMA_MAX:
        raise ConfigError(
            f"schema={schema!r}: give a name of at most {_SCHEMA_MAX} bytes that begins with a letter or '_' "
            "and goes on with letters, digits, '_', '$', '-' or spaces"
        )
    return f'"{schema}"'


@lru_cache(maxsize=4)
def migrations(dialect: Dialect) -> tuple[Migration, ...]:
    """All migrations of a dialect, oldest first; their numbers are 1, 2, 3, ..."""
    folder = files("bothends.stores").joinpath("migrations", dialect)
    found = []
    for entry in folder.iterdir():
        if match := _NAME.fullmatch(entry.name):
            name = f"{match[1]}_{match[2]}"
            up, down = (folder.joinpath(f"{name}.{way}.sql").read_text("utf-8") for way in ("up", "down"))
            found.append(Migration(int(match[1]), name, up, down))
    found.sort()
    if [m.number for m in found] != list(range(1, len(found) + 1)):
        raise ConfigError(f"the package's migrations for {dialect} have gaps: reinstall it")
    return tuple(found)


def _statements(text: str, schema: str) -> list[str]:
    """The statements of one file, without comments. Ends of statements are found outside quotes, ``$$`` bodies and the
    bodies of SQLite's triggers."""
    text = text.replace("{s}", schema)
    statements, begin, kept = [], 0, ""
    for token in _TOKEN.finditer(text):
        if token["comment"] or token["end"]:
            kept += text[begin:token.start()]
            begin = token.end()
        if token["end"] and _WITHIN.match(kept):
            kept += ";"
        elif token["end"]:
            statements.append(kept.strip())
            kept = ""
    if (kept + text[begin:]).strip():
        raise ConfigError(f"a migration ends without ';': {kept[:60]!r}")
    return statements


def version(dialect: Dialect, schema: str) -> Steps[int]:
    """The version that ``meta`` records; 0 where there is no such table."""
    if dialect == "postgresql":
        known = yield Sql("select to_regclass(:name) is not null", {"name": f"{quoted_schema(schema)}.meta"})
        table = f"{quoted_schema(schema)}.meta"
    else:
        known = yield Sql("select count(*) from sqlite_master where type = 'table' and name = 'bothends_meta'")
        table = "bothends_meta"
    if not known.rows[0][0]:
        return 0
    found = yield Sql(f"select value from {table} where name = 'schema_version'")
    return int(found.rows[0][0]) if found.rows else 0


def _need_text() -> Steps[None]:
    found = yield Sql("select current_setting('server_encoding'), current_database()")
    encoding, name = found.rows[0]
    if encoding == "SQL_ASCII":
        raise ConfigError(
            f"the database {name!r} has the encoding SQL_ASCII, which takes bytes that are no text, and whoever reads them "
            "stops there: make one with an encoding (createdb --encoding UTF8 --template template0 ...) and move there"
        )


def _lock(schema: str) -> Steps[None]:
    # A snapshot from before the wait would not see what the one before us applied.
    yield Sql("set transaction isolation level read committed", rows=False)
    yield from _need_text()
    yield Sql("select pg_advisory_xact_lock(hashtextextended(:name, 0))", {"name": f"bothends schema {schema}"})
    found = yield Sql("select 1 from pg_namespace where nspname = :schema", {"schema": schema})
    if not found.rows:  # `if not exists` alone would need the right to create schemas even where it exists
        yield Sql(f"create schema if not exists {quoted_schema(schema)}", rows=False)


def migrate(dialect: Dialect, schema: str, target: int | None = None) -> Steps[list[str]]:
    """Brings the tables up, or down, to version ``target`` (default: the newest), as the first statements of a
    transaction that the caller has begun and will commit. The names of what was run: ``["0001_outbox up"]``.

    Raises ConfigError where the database is newer than this package, or has no encoding; then nothing is changed.
    """
    every = migrations(dialect)
    target = len(every) if target is None else target
    if not 0 <= target <= len(every):
        raise ConfigError(f"there is no schema version {target}; this package has 0 to {len(every)}")
    if dialect == "postgresql":
        yield from _lock(schema)
    now = yield from version(dialect, schema)
    if now > len(every):
        raise ConfigError(f"the database has schema version {now}, this package knows {len(every)}: upgrade it")
    name = quoted_schema(schema) if dialect == "postgresql" else ""
    plan = [(m, m.up, "up") for m in every[now:target]] + [(m, m.down, "down") for m in reversed(every[target:now])]
    for _, text, _ in plan:
        for statement in _statements(text, name):
            yield Sql(statement, rows=False)
    if plan and target:
        meta = f"{name}.meta" if dialect == "postgresql" else "bothends_meta"
        yield Sql(
            f"insert into {meta} (name, value) values ('schema_version', :version) "
            "on conflict (name) do update set value = excluded.value", {"version": str(target)}, rows=False,
        )
    return [f"{m.name} {way}" for m, _, way in plan]


def apply(store: Store, target: int | None = None, *, connection: Connection | None = None) -> list[str]:
    """Migrates ``store`` in one transaction, on ``connection`` or one of its own; what was run. Raises ConfigError as
    ``migrate`` does, and StoreUnavailable."""
    own = connection or store.connect(name="bothends schema")
    try:
        own.begin()
        done = run(migrate(_dialect(store), store.schema, target), own)
        own.commit()
        return done
    finally:
        own.rollback()
        if connection is None:
            own.close()


def status(store: Store, *, connection: Connection | None = None) -> SchemaStatus:
    """What the database has and what it lacks. Writes nothing."""
    own = connection or store.connect(name="bothends schema")
    try:
        now = run(version(_dialect(store), store.schema), own)
    finally:
        if connection is None:
            own.close()
    every = migrations(_dialect(store))
    return SchemaStatus(now, len(every), [m.name for m in every[now:]])


def script(dialect: Dialect, schema: str, *, since: int = 0) -> str:
    """What ``apply`` would run on a database of version ``since``, as text for a migration tool or a person."""
    name = quoted_schema(schema) if dialect == "postgresql" else ""
    every = migrations(dialect)
    parts = [f"create schema if not exists {name};\n"] if name and not since else []
    parts += [f"-- {m.name}\n{m.up.replace('{s}', name)}" for m in every[since:]]
    meta = f"{name}.meta" if name else "bothends_meta"
    parts.append(
        f"insert into {meta} (name, value) values ('schema_version', '{len(every)}')\n"
        "    on conflict (name) do update set value = excluded.value;\n"
    )
    return "\n".join(parts)


def grants(schema: str, role: str, what: Literal["add", "run"]) -> str:
    """PostgreSQL: what ``role`` needs. ``add``: to add events (an application that has no consumers of ours); ``run``:
    to be a relay, a worker or the command line as well. Run it as the tables' owner."""
    name, to = quoted_schema(schema), '"' + role.replace('"', '""') + '"'
    if what == "add":
        return (
            f"grant usage on schema {name} to {to};\n"
            f"grant insert, select on {name}.outbox to {to};\n"
            f"grant usage, select on sequence {name}.outbox_seq to {to};\n"
            f"grant execute on function {name}.outbox_add to {to};\n"
        )
    return (
        f"grant usage on schema {name} to {to};\n"
        f"grant select, insert, update, delete, truncate on all tables in schema {name} to {to};\n"
        f"grant usage, select, update on all sequences in schema {name} to {to};\n"
        f"grant execute on all functions in schema {name} to {to};\n"
    )


def _dialect(store: Store) -> Dialect:
    return "sqlite" if store.dialect == "sqlite" else "postgresql"
