"""What operators ask of SQLite: times are Unix seconds, one writer needs no row locks, and what is left in the outbox
is what waits."""

from __future__ import annotations

from bothends.stores.postgresql.admin import PostgresqlAdmin
from bothends.stores.steps import Sql

__all__ = ["SqliteAdmin"]

_NOW = "((julianday('now') - 2440587.5) * 86400.0)"


class SqliteAdmin(PostgresqlAdmin):
    blob = "blob"
    keeps_published = False
    has_log = False

    def table(self, name: str) -> str:
        return f"bothends_{name}"

    def fragment(self, name: str, rest: str) -> str:
        match name:
            case "now":
                return _NOW
            case "at":
                return f"strftime('%Y-%m-%dT%H:%M:%fZ', {rest}, 'unixepoch')"
            case "age":
                return f"({_NOW} - {rest})"
            case "ago":
                return f"({_NOW} - :{rest})"
            case "lock" | "skip":
                return ""
        raise KeyError(name)

    def exists(self) -> Sql:
        return Sql("select exists (select 1 from sqlite_master where name = 'bothends_meta')")

    def waiting(self, rows_max: int, scan_max: int) -> Sql:
        return self.sql(
            """select topic, count(*), min(time), 1
               from (select topic, time from {s}.outbox order by seq limit :rows_max) group by topic""",
            rows_max=rows_max)

    def backlog(self) -> Sql:
        return self.sql("select count(*) from {s}.outbox")
