"""The relay's statements on SQLite. One writer at a time: commit order is seq order, so what is left is the cursor.

A fenced step takes the write lock (BEGIN IMMEDIATE) and looks for the relay's own row before it changes anything.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from typing import Any

from bothends.core.relaying import Cursor, lanes_of
from bothends.stores.connection import Connection
from bothends.stores.sqlite.relay_held import HeldSteps
from bothends.stores.sqlite.relay_rows import RowSteps, roll_back
from bothends.stores.steps import Result, Sql, Steps

__all__ = ["Patient", "SqliteRelay"]

_NOW = "(julianday('now') - 2440587.5) * 86400.0"
_PATIENCE_S = 5.0
_OTHERS_MAX = 256
_PAUSE_S = 0.001


class Patient:
    """An executor that waits where a shared in-memory database says LOCKED at once, as a file would with its timeout."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def execute(self, statement: Sql, /) -> Result:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return self._connection.execute(statement)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_LOCKED or time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE_S)


class LeaseSteps:
    """As on PostgreSQL; ``now`` is the boot clock in seconds, ``boot`` the id of this boot."""

    def register(
        self, *, name: str, pid: int, host: str, lease_s: float, former: int | None, now: float, boot: str, process: str = "",
        wants: str = "poll", source: str = "poll",
    ) -> Steps[int]:
        if former is not None:
            yield from self.leave(former)
        made = yield Sql(
            "insert into bothends_relays (name, pid, host, process, wants, source, lease_s, lease_until, boot, boot_until) "
            f"values (:name, :pid, :host, :process, :wants, :source, :lease_s, {_NOW} + :lease_s, :boot, :until) returning id",
            {"name": name, "pid": pid, "host": host, "process": process, "wants": wants,
             "source": source, "lease_s": lease_s, "boot": boot,
             "until": now + lease_s},
        )
        return int(made.rows[0][0])

    def others(self, me: int) -> Steps[list[tuple[int, str]]]:
        found = yield Sql(
            f"select id, process from bothends_relays where id <> :me and process <> '' order by id limit {_OTHERS_MAX}",
            {"me": me})
        return [(id, process) for id, process in found.rows]

    def renew(
        self, me: int, *, lease_s: float, state: str, detail: str, now: float, boot: str, wants: str = "poll",
        source: str = "poll", reason: str = "",
    ) -> Steps[bool]:
        done = yield Sql(
            f"update bothends_relays set lease_until = {_NOW} + :lease_s, boot_until = :until, boot = :boot, "
            "state = :state, detail = :detail, wants = :wants, source = :source, reason = :reason where id = :me",
            {"me": me, "lease_s": lease_s, "until": now + lease_s, "boot": boot, "state": state, "detail": detail,
             "wants": wants, "source": source, "reason": reason},
        )
        return done.count == 1

    def expire(self, *, now: float, boot: str) -> Steps[tuple[int, int]]:
        over = yield Sql(
            "select id from bothends_relays where boot <> :boot or boot_until < :now", {"now": now, "boot": boot})
        for (id,) in over.rows:
            yield Sql("begin immediate", rows=False)
            try:
                # Looked at again under the lock: it may have been renewed.
                yield Sql("delete from bothends_relays where id = :id and (boot <> :boot or boot_until < :now)",
                          {"id": id, "now": now, "boot": boot}, rows=False)
                yield Sql("update bothends_relay_lanes set relay = null where relay is not null "
                          "and relay not in (select id from bothends_relays)", rows=False)
                yield Sql("commit", rows=False)
            except BaseException:
                yield from roll_back()
                raise
        found = yield Sql(
            "select (select count(*) from bothends_relays), (select count(*) from bothends_relay_lanes where relay is null)")
        live, free = found.rows[0]
        return live, free

    def take(self, me: int, lanes: int) -> Steps[list[int]]:
        taken = yield Sql(
            "update bothends_relay_lanes set relay = :me where relay is null and lane in (select lane from "
            "bothends_relay_lanes where relay is null order by lane limit :lanes) and "
            "exists (select 1 from bothends_relays where id = :me) returning lane", {"me": me, "lanes": lanes},
        )
        return [row[0] for row in taken.rows]

    def give_up(self, me: int, lanes: Sequence[int]) -> Steps[None]:
        mask = sum(1 << lane for lane in lanes)
        mask = mask - (1 << 64) if mask >> 63 else mask
        yield Sql("update bothends_relay_lanes set relay = null where relay = :me and ((:lanes >> lane) & 1) <> 0",
                  {"me": me, "lanes": mask}, rows=False)

    def leave(self, me: int) -> Steps[None]:
        yield Sql("begin immediate", rows=False)
        try:
            yield Sql("delete from bothends_relays where id = :me", {"me": me}, rows=False)
            yield Sql("update bothends_relay_lanes set relay = null where relay = :me", {"me": me}, rows=False)
            yield Sql("commit", rows=False)
        except BaseException:
            yield from roll_back()
            raise

    def cursors(self, lanes: int) -> Steps[dict[int, Cursor]]:
        """What is left in the outbox is the cursor: every lane begins at its first row."""
        yield from ()
        return dict.fromkeys(lanes_of(lanes), Cursor(0, ""))

    def identity(self) -> Steps[str]:
        """A file has no sequences or transaction ids that another one could not have."""
        yield from ()
        return "sqlite"

    def stamp(self, name: str, value: str) -> Steps[str]:
        yield Sql("insert into bothends_meta (name, value) values (:name, :value) on conflict (name) do nothing",
                  {"name": name, "value": value}, rows=False)
        found = yield Sql("select value from bothends_meta where name = :name", {"name": name})
        return str(found.rows[0][0])

    def restamp(self, name: str, value: str) -> Steps[None]:
        yield Sql("update bothends_meta set value = :value where name = :name", {"name": name, "value": value}, rows=False)

    def rewind_all(self, name: str, identity: str) -> Steps[bool]:
        yield from self.restamp(name, identity)
        return True


class StorageSteps:
    """Confirmed rows are deleted, so nothing is rotated; of the progress, which is kept for rates, the oldest goes."""

    KEEP = 10_000

    def candidates(self) -> Steps[list[str]]:
        yield Sql(f"delete from bothends_relay_progress where id < (select max(id) from bothends_relay_progress) - {self.KEEP}",
                  rows=False)
        return []

    def done(self, child: str) -> Steps[bool]:
        del child
        yield from ()
        return False

    def truncate(self, child: str) -> Steps[None]:
        del child
        yield from ()


class SqliteRelay:
    connection_factory: type[Any] | None = None
    has_log = False
    executor = Patient

    def __init__(self, schema: str) -> None:
        del schema
        self.leases = LeaseSteps()
        self.rows = RowSteps()
        self.held = HeldSteps()
        self.storage = StorageSteps()
