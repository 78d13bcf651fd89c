"""What operators ask of PostgreSQL: the dialect in which ``bothends.admin`` writes its statements, and the look at the
outbox, whose cursor is PostgreSQL's own."""

from __future__ import annotations

import re
from typing import Any

from bothends.stores.postgresql.slots import SlotSteps
from bothends.stores.steps import Result, Sql, Steps

__all__ = ["PostgresqlAdmin"]

_TOKEN = re.compile(r"\{(s\}\.\w+|[a-z]+(?::[^}]*)?\})")


class PostgresqlAdmin:
    """``sql(text, **params)`` fills in what differs between databases:

    ``{s}.name`` our table; ``{now}`` the database's clock; ``{at:column}`` a time as RFC 3339 text; ``{age:column}``
    its age in seconds; ``{ago:param}`` the time that many seconds ago; ``{lock}``, ``{skip}`` and ``{skip:alias}`` row
    locks.
    """

    blob = "bytea"
    keeps_published = True
    """Whether rows stay in the outbox for a while after they were published."""
    has_log = True
    """Whether the database has a log that relays can read."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self._prefix = '"' + schema.replace('"', '""') + '".'

    def sql(self, text: str, **params: Any) -> Sql:
        return Sql(_TOKEN.sub(self._fill, text), params)

    def _fill(self, match: re.Match[str]) -> str:
        token = match[1]
        if token.startswith("s}."):
            return self.table(token[3:])
        name, _, rest = token[:-1].partition(":")
        return self.fragment(name, rest)

    def table(self, name: str) -> str:
        return self._prefix + name

    def fragment(self, name: str, rest: str) -> str:
        match name:
            case "now":
                return "clock_timestamp()"
            case "at":
                return f"""to_char({rest} at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""
            case "age":
                return f"extract(epoch from clock_timestamp() - {rest})::float8"
            case "ago":
                return f"(clock_timestamp() - make_interval(secs => cast(:{rest} as float8)))"
            case "lock":
                return "for update"
            case "skip":
                return f"for update of {rest} skip locked" if rest else "for update skip locked"
        raise KeyError(name)

    def exists(self) -> Sql:
        """One row with one value: whether our tables are there."""
        return Sql("select to_regclass(:name) is not null", {"name": self.table("meta")})

    def waiting(self, rows_max: int, scan_max: int) -> Sql:
        """Rows of the outbox that no cursor covers: (topic, count, oldest time, scanned whole). At most ``rows_max``
        rows are counted and ``scan_max`` looked at, both from the oldest on."""
        return self.sql(
            """
            with cursors as materialized (
                select g.lane, p.hwm, p.snapshot
                from generate_series(0, 63) g (lane) left join lateral (
                    select hwm, snapshot from {s}.relay_progress
                    where (lanes >> g.lane) & 1 = 1 order by id desc limit 1) p on true),
            edge as (
                select coalesce(min(coalesce(hwm, 0)), 0) as hwm,
                       coalesce(min(pg_snapshot_xmin(snapshot)::text::numeric), 0)::text::xid8 as xmin from cursors),
            fresh as (
                select o.seq, o.xid, {s}.lane(o.key, o.seq) as lane, o.topic, o.time, false as late from {s}.outbox o
                where o.seq > (select hwm from edge) order by o.seq limit :scan_max),
            late as (
                select o.seq, o.xid, {s}.lane(o.key, o.seq) as lane, o.topic, o.time, true as late from {s}.outbox o
                where o.xid >= (select xmin from edge) and o.seq <= (select hwm from edge)
                order by o.xid limit :scan_max),
            found as (
                select r.topic, r.time
                from (select * from late union all select * from fresh) r join cursors c using (lane)
                where c.hwm is null or r.seq > c.hwm or not pg_visible_in_snapshot(r.xid, c.snapshot) limit :rows_max)
            select topic, count(*), min(time), (select count(*) from fresh) < :scan_max from found group by topic
            """, rows_max=rows_max, scan_max=scan_max)

    def backlog(self) -> Sql:
        """About how many rows wait, from the sequence and the cursors alone: for backlogs too large to count."""
        return self.sql(
            """
            select coalesce(sum(greatest(q.last_value - coalesce(p.hwm, 0), 0)) / 64, 0)::bigint
            from {s}.outbox_seq q, generate_series(0, 63) g (lane) left join lateral (
                select hwm from {s}.relay_progress where (lanes >> g.lane) & 1 = 1 order by id desc limit 1) p on true
            where q.is_called
            """)

    def recent_times(self, rows_max: int) -> Sql:
        """The times of the newest events in the outbox: how fast they come."""
        return self.sql("select time from {s}.outbox order by seq desc limit :rows_max", rows_max=rows_max)

    def slots(self) -> Steps[Result]:
        """The slots on record, and the temporary one that the reader of rows has instead: (name, carries messages, done up to,
        in use, wal_status, bytes of log that it holds back, temporary). What the server does not know is null."""
        kept = yield from SlotSteps(self.schema).name()
        return (yield self.sql(
            """
            with ours as (
                select slot, messages, position, false as temporary from {s}.relay_log where slot <> '' union all
                select s.slot_name, false, s.confirmed_flush_lsn, true from {s}.relay_log l
                join pg_replication_slots s on s.slot_name = :kept || '_' || l.relay and s.temporary where not l.messages)
            select o.slot, o.messages, o.position::text, s.active, s.wal_status, pg_wal_lsn_diff(
                case when pg_is_in_recovery() then pg_last_wal_receive_lsn() else pg_current_wal_insert_lsn() end,
                s.restart_lsn)::bigint, o.temporary
            from ours o left join pg_replication_slots s on s.slot_name = o.slot
            order by o.messages, o.temporary
            """, kept=kept))
