"""The relay's statements on PostgreSQL: leases and cursors here; rows, held rows and storage in their own modules.

Every statement is one autocommit statement, so that no relay can freeze while it holds a lock or pins a snapshot. A
*fenced* statement share-locks the relay's own row first: it waits for a takeover in progress, and does nothing after one.
"""

from __future__ import annotations

from collections.abc import Sequence

from bothends.core.relaying import Cursor, lanes_of, signed
from bothends.stores.connection import Connection
from bothends.stores.postgresql.pgoutput import MESSAGE_SEQ
from bothends.stores.postgresql.relay_connection import RelayConnection, RelayExecutor
from bothends.stores.postgresql.relay_held import HeldSteps
from bothends.stores.postgresql.relay_log import LogSteps
from bothends.stores.postgresql.relay_rows import RowSteps
from bothends.stores.postgresql.relay_storage import StorageSteps
from bothends.stores.schema import quoted_schema
from bothends.stores.steps import Executor, Sql, Steps

__all__ = ["PostgresqlRelay"]

CLOCK_MARGIN_S = 1.0
"""A lease may end this much later than the database's clock allows, before the clock is taken to have stepped back."""
_PAGE = 500
_OTHERS_MAX = 256


class LeaseSteps:
    """Registration, lanes and cursors. ``me`` is the id of a relay's registration: its epoch."""

    def __init__(self, schema: str) -> None:
        self._s = quoted_schema(schema)

    def register(
        self, *, name: str, pid: int, host: str, lease_s: float, former: int | None, now: float, boot: str, process: str = "",
        wants: str = "poll", source: str = "poll",
    ) -> Steps[int]:
        """A new registration, and the end of ``former``, which was this relay's own. ``now`` and ``boot`` are for
        stores without a clock of their own."""
        if former is not None:
            yield Sql(f"delete from {self._s}.relays where id = :former", {"former": former}, rows=False)
        # What a dead relay has is freed by foreign keys. They have not worked where a session was told to fire no triggers.
        for table, key in (("relay_lanes", "lane"), ("relay_log", "messages")):
            yield Sql(
                f"with lost as materialized (select {key}, relay from {self._s}.{table} l where relay is not null and not "
                f"exists (select from {self._s}.relays r where r.id = l.relay)) update {self._s}.{table} l set relay = null "
                f"from lost where l.{key} = lost.{key} and l.relay = lost.relay", rows=False)
        made = yield Sql(
            f"insert into {self._s}.relays (name, pid, host, process, wants, source, lease_s, lease_until) values "
            "(:name, :pid, :host, :process, :wants, :source, :lease_s::float8, "
            "clock_timestamp() + make_interval(secs => :lease_s::float8)) returning id",
            {"name": name, "pid": pid, "host": host, "process": process, "wants": wants,
             "source": source, "lease_s": lease_s},
        )
        return int(made.rows[0][0])

    def others(self, me: int) -> Steps[list[tuple[int, str]]]:
        """The other registrations: id, and the name of the process."""
        found = yield Sql(
            f"select id, process from {self._s}.relays where id <> :me and process <> '' order by id limit {_OTHERS_MAX}",
            {"me": me})
        return [(int(id), str(process)) for id, process in found.rows]

    def renew(
        self, me: int, *, lease_s: float, state: str, detail: str, now: float, boot: str, wants: str = "poll",
        source: str = "poll", reason: str = "",
    ) -> Steps[bool]:
        """False: the registration is gone, and with it the lanes. ``wants`` is the source that it was told, ``source`` what
        it does (poll, wal, message or standby), ``reason`` why."""
        done = yield Sql(
            f"update {self._s}.relays set lease_until = clock_timestamp() + make_interval(secs => :lease_s::float8), "
            "state = :state, detail = :detail, wants = :wants, source = :source, reason = :reason where id = :me "
            "returning set_config('synchronous_commit', 'off', true)",  # a lease need not outlive a crash of the server
            {"me": me, "lease_s": lease_s, "state": state, "detail": detail, "wants": wants, "source": source,
             "reason": reason},
        )
        return done.count == 1

    def expire(self, *, now: float, boot: str) -> Steps[tuple[int, int]]:
        """Ends registrations whose lease is over, which frees their lanes. (live relays that want lanes, free lanes)."""
        yield Sql(
            f"delete from {self._s}.relays where id in (select id from {self._s}.relays where lease_until < "
            "clock_timestamp() or lease_until > clock_timestamp() + make_interval(secs => lease_s + :margin::float8) "
            "for update skip locked)", {"margin": CLOCK_MARGIN_S}, rows=False,
        )
        found = yield Sql(
            f"select (select count(*) from {self._s}.relays where source <> 'standby'), "
            f"(select count(*) from {self._s}.relay_lanes where relay is null)"
        )
        live, free = found.rows[0]
        return int(live), int(free)

    def take(self, me: int, lanes: int) -> Steps[list[int]]:
        """Takes at most ``lanes`` free lanes; which ones. Their cursors are read after this, not within."""
        taken = yield Sql(
            f"with me as materialized (select id from {self._s}.relays where id = :me for key share), "
            f"free as materialized (select lane from {self._s}.relay_lanes where relay is null order by lane "
            "limit :lanes for update skip locked) "
            f"update {self._s}.relay_lanes l set relay = me.id from me, free "
            "where l.lane = free.lane and l.relay is null returning l.lane",
            {"me": me, "lanes": lanes},
        )
        return [row[0] for row in taken.rows]

    def give_up(self, me: int, lanes: Sequence[int]) -> Steps[None]:
        yield Sql(
            f"update {self._s}.relay_lanes set relay = null where relay = :me and lane = any(:lanes)",
            {"me": me, "lanes": list(lanes)}, rows=False,
        )

    def leave(self, me: int) -> Steps[None]:
        """Ends a registration; its lanes are free at once."""
        yield Sql(f"delete from {self._s}.relays where id = :me", {"me": me}, rows=False)

    def cursors(self, lanes: int) -> Steps[dict[int, Cursor]]:
        """The stored cursor of each lane of the mask; a lane that never had one begins at 0, where nothing is late."""
        found: dict[int, Cursor] = {}
        missing, before = lanes, 1 << 62
        while missing:
            page = yield Sql(
                f"select id, lanes, hwm, snapshot::text from {self._s}.relay_progress "
                f"where id < :before::bigint order by id desc limit {_PAGE}", {"before": before},
            )
            for _, mask, hwm, snapshot in page.rows:
                for lane in lanes_of(mask & missing):
                    found[lane] = Cursor(hwm, snapshot)
                missing &= ~mask
            if len(page.rows) < _PAGE:
                break
            before = page.rows[-1][0]
        if missing:
            now = yield Sql("select pg_current_snapshot()::text")
            found.update((lane, Cursor(0, now.rows[0][0])) for lane in lanes_of(missing))
        return found

    def identity(self) -> Steps[str]:
        """The database that the cursors belong to: another one (restored, failed over) has other sequences and
        transaction ids."""
        found = yield Sql(
            "select (select system_identifier from pg_control_system())::text, "
            "left(pg_walfile_name(pg_current_wal_lsn()), 8), oid::text from pg_database where datname = current_database()"
        )
        return "/".join(str(part) for part in found.rows[0])

    def stamp(self, name: str, value: str) -> Steps[str]:
        """Records ``value`` under ``name`` unless there is one; what is recorded."""
        yield Sql(
            f"insert into {self._s}.meta (name, value) values (:name, :value) on conflict (name) do nothing",
            {"name": name, "value": value}, rows=False,
        )
        found = yield Sql(f"select value from {self._s}.meta where name = :name", {"name": name})
        return str(found.rows[0][0])

    def restamp(self, name: str, value: str) -> Steps[None]:
        yield Sql(f"update {self._s}.meta set value = :value where name = :name", {"name": name, "value": value}, rows=False)

    def rewind_all(self, name: str, identity: str) -> Steps[bool]:
        """Within a transaction: this is another database than the cursors were made in. All registrations end, every
        visible row counts as unseen, and the sequences go on above everything that is stored. False: another relay
        has done it."""
        held = yield Sql(f"select value from {self._s}.meta where name = :name for update", {"name": name})
        if held.rows and held.rows[0][0] == identity:
            return False
        yield Sql(f"delete from {self._s}.relays", rows=False)
        yield Sql(
            f"select setval('{self._s}.outbox_seq', greatest((select last_value from {self._s}.outbox_seq), "
            f"(select max(seq) from {self._s}.outbox), (select max(seq) from {self._s}.held where seq < :messages), "
            f"(select max(seq) from {self._s}.delayed), (select max(hwm) from {self._s}.relay_progress)) + 1), "
            f"setval('{self._s}.relay_progress_seq', greatest((select last_value from {self._s}.relay_progress_seq), "
            f"(select max(id) from {self._s}.relay_progress)) + 1)", {"messages": MESSAGE_SEQ}
        )
        # Rows from a cluster that had spent more transaction ids than this one would look unfinished for years.
        yield Sql(
            f"update {self._s}.outbox set xid = pg_current_xact_id() "
            "where xid >= pg_snapshot_xmax(pg_current_snapshot()) and xid <> pg_current_xact_id()", rows=False,
        )
        yield Sql(
            f"insert into {self._s}.relay_progress (relay, lanes, hwm, snapshot) "
            "values (0, :every::bigint, 0, pg_current_snapshot())", {"every": signed((1 << 64) - 1)}, rows=False,
        )
        # Another cluster's places in its log mean nothing here; a stand-by that was promoted goes on in the same log.
        if not held.rows or str(held.rows[0][0]).partition("/")[0] != identity.partition("/")[0]:
            yield Sql(f"update {self._s}.relay_log set position = null", rows=False)
        yield from self.restamp(name, identity)
        return True


class PostgresqlRelay:
    """Step functions by subject, and the connection class they need."""

    connection_factory = RelayConnection
    has_log = True

    @staticmethod
    def executor(connection: Connection) -> Executor:
        return RelayExecutor(connection)

    def __init__(self, schema: str) -> None:
        name = quoted_schema(schema)
        self.leases = LeaseSteps(schema)
        self.rows = RowSteps(name)
        self.held = HeldSteps(name)
        self.storage = StorageSteps(name)
        self._schema = schema

    def log(self, *, messages: bool) -> LogSteps:
        """The steps of a relay that reads the log: rows of the outbox, or ``messages``."""
        return LogSteps(self._schema, messages=messages)
