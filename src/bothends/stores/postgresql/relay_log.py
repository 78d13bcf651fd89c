"""The log's side of a relay: who reads, how far it is done, and rows that go beside the stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from bothends.core.relaying import EVERY_LANE, Cursor, Hold, signed
from bothends.stores.postgresql.relay_rows import FIELDS
from bothends.stores.postgresql.slots import SlotSteps, lsn_text
from bothends.stores.schema import quoted_schema
from bothends.stores.steps import Sql, Steps

__all__ = ["LogSteps", "Reader", "Stored"]

Row = tuple[Any, ...]

_FIELDS = tuple(FIELDS.split(", "))
_FIRST = 3
"""Where the fields begin in a row."""
_DELIVER_AT = 14
_DURABLE = (
    "set_config('synchronous_commit', case current_setting('synchronous_commit') when 'off' then 'local' else "
    "current_setting('synchronous_commit') end, true)"
)
"""A role may be told not to wait for the disk; what is behind these statements may be in the log alone."""
_DUE = (  # microseconds since 2000, as the log has a time; days apart, since so many microseconds are no interval
    "case when r.due = 9223372036854775807 then 'infinity' else (timestamp '2000-01-01' + r.due / 86400000000 * interval "
    "'1 day' + r.due % 86400000000 * interval '1 microsecond') at time zone 'UTC' end"
)
_TYPES = {"key": "bytea", "body": "bytea", "headers": "bytea", "version": "int"}


class Reader(NamedTuple):
    """Who reads the log."""

    relay: int | None
    ready: bool
    """It has a slot: those who would read too stand by."""
    slot: str
    pollers: int
    """Live relays of the outbox that were told to read elsewhere: they keep their lanes."""


class Stored(NamedTuple):
    mine: bool
    """False: fenced off, nothing was stored."""
    done: bool
    """False, though it is ours: the publication was changed, nothing was stored."""
    cursor: Cursor
    """What goes with the marker."""


class LogSteps:
    def __init__(self, schema: str, *, messages: bool = False) -> None:
        self._s = quoted_schema(schema)
        self._schema = schema
        self.messages = messages
        self.slots = SlotSteps(schema, messages=messages)
        self._log = f"{self._s}.relay_log where messages = {str(messages).lower()}"
        self._me = f"me as materialized (select id from {self._s}.relays where id = :me for key share)"

    @property
    def prefix(self) -> str:
        """What our messages in the log begin with."""
        return f"bothends.{self._schema}"

    def reader(self, family: Sequence[str]) -> Steps[Reader]:
        """``family``: the wants of relays that read the same log."""
        found = yield Sql(
            "select relay, ready, slot, (select count(*) from "
            f"{self._s}.relays where wants <> all(:family))::int from {self._log}", {"family": list(family)})
        return Reader(*found.rows[0])

    def take(self, me: int) -> Steps[bool]:
        """Makes this relay the reader, if nobody is."""
        done = yield Sql(
            f"with {self._me} update {self._s}.relay_log l set relay = me.id from me where l.relay is null and "
            "l.messages = :messages", {"me": me, "messages": self.messages})
        return done.count == 1

    def announce(self, me: int, ready: bool, slot: str) -> Steps[bool]:
        """What others see of the reader. False: it is not us."""
        done = yield Sql(
            f"update {self._s}.relay_log set ready = :ready, slot = :slot where relay = :me and messages = :messages",
            {"me": me, "ready": ready, "slot": slot, "messages": self.messages})
        return done.count == 1

    def leave(self, me: int) -> Steps[None]:
        yield Sql(f"update {self._s}.relay_log set relay = null where relay = :me", {"me": me}, rows=False)

    def unwanted(self) -> Steps[tuple[str, int]]:
        """The slot of rows on record, which is one of ``wal``, and the bytes of log that it keeps, if no live relay wants it
        (``auto`` has its own); else ("", 0). The record may be a copy, made with its database: then the slot is not its own."""
        found = yield Sql(
            "select l.slot, (select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), s.restart_lsn)::bigint from "
            "pg_replication_slots s where s.slot_name = l.slot and s.database = current_database()) "
            f"from {self._s}.relay_log l where not l.messages and l.slot <> '' and not pg_is_in_recovery() and not exists ("
            f"select from {self._s}.relays where wants = 'wal' and lease_until > clock_timestamp())")
        return (str(found.rows[0][0]), int(found.rows[0][1] or 0)) if found.rows else ("", 0)

    def forget(self, slot: str) -> Steps[None]:
        """Takes a slot that was dropped from the record, unless somebody has made it again by now."""
        yield Sql(
            f"update {self._s}.relay_log set ready = ready and relay is not null, slot = '' where slot = :slot and not exists ("
            f"select from {self._s}.relays where wants = 'wal' and lease_until > clock_timestamp())", {"slot": slot},
            rows=False)

    def store(
        self, me: int, position: int, cursor: Cursor | None, published: int, marker: str | None, *, under: str
    ) -> Steps[Stored]:
        """Stores how far the log is done (0: as it was; what is beyond the log's end is of another one, and goes), if the
        publication is still the one that it was read ``under``, and emits a marker if one is given. Waited for on disk,
        whatever the role says: afterwards the server may be told."""
        text = (
            f"with {self._me}, log as (update {self._s}.relay_log l set position = greatest(case when l.position <= "
            "pg_current_wal_insert_lsn() then l.position end, :position::pg_lsn), published = :under from me "
            f"where l.relay = me.id and l.messages = :messages and {self.slots.mark} = :under returning l.relay)"
        )
        params: dict[str, Any] = {
            "me": me, "position": lsn_text(position), "messages": self.messages, "under": under}
        if cursor is not None or published:
            # Without a cursor the row only counts: it is no lane's.
            text += (
                f", stored as (insert into {self._s}.relay_progress (relay, lanes, hwm, snapshot, published) "
                "select relay, :lanes::bigint, :hwm::bigint, coalesce(:snapshot::text::pg_snapshot, pg_current_snapshot()), "
                ":published::bigint from log)"
            )
            params |= {
                "lanes": signed(EVERY_LANE) if cursor else 0, "hwm": cursor.hwm if cursor else 0,
                "snapshot": cursor.snapshot if cursor else None, "published": published,
            }
        mark = "null" if marker is None else "pg_logical_emit_message(false, :prefix::text, :marker::text)::text"
        if marker is not None:
            params |= {"prefix": f"{self.prefix}.marker", "marker": marker}
        text += (
            f" select exists (select from me), exists (select from log), s.last_value, pg_current_snapshot()::text, {mark}, "
            f"{_DURABLE} from {self._s}.outbox_seq s"
        )
        mine, done, last, snapshot, *_ = (yield Sql(text, params)).rows[0]
        return Stored(mine, done, Cursor(last, snapshot))

    def keep(self, me: int, holds: Sequence[tuple[Hold, Row]], delays: Sequence[Row]) -> Steps[bool]:
        """Copies rows that the stream passes without publishing them, from memory. False: fenced off."""
        ctes = [self._me]
        params: dict[str, Any] = {"me": me}
        if holds:
            params |= _columns("h", [row for _, row in holds]) | {
                "states": [h.state for h, _ in holds], "reasons": [h.reason for h, _ in holds],
                "errors": [h.error for h, _ in holds],
            }
            ctes.append(
                f"held as (insert into {self._s}.held (seq, lane, {FIELDS}, state, passed, reason, error) "
                f"select r.seq, {self._s}.lane(r.key, r.seq), {_listed('r')}, case r.state when 'passed' then 'dead' else "
                "r.state end, r.state = 'passed', r.reason, r.error from me, "
                f"unnest({_arrays('h')}, :states::text[], :reasons::text[], :errors::text[]) "
                f"r (seq, {FIELDS}, state, reason, error) on conflict (seq) do nothing)"
            )
        if delays:
            params |= _columns("d", delays) | {"dues": [row[_DELIVER_AT] for row in delays]}
            ctes.append(
                f"delayed as (insert into {self._s}.delayed (seq, lane, {FIELDS}, deliver_at) select r.seq, "
                f"{self._s}.lane(r.key, r.seq), {_listed('r')}, {_DUE} from me, unnest({_arrays('d')}, :dues::bigint[]) "
                f"r (seq, {FIELDS}, due) on conflict (seq) do nothing)"
            )
        found = yield Sql(f"with {', '.join(ctes)} select exists (select from me), {_DURABLE}", params)
        return bool(found.rows[0][0])

    def stow(self, me: int, rows: Sequence[Row]) -> Steps[bool]:
        """Puts messages into the table, where polling finds them. What is there already stays. False: fenced off."""
        found = yield Sql(
            f"with {self._me}, stowed as (insert into {self._s}.outbox ({FIELDS}) select {_listed('r')} from me, "
            f"unnest({_arrays('h')}) with ordinality r (seq, {FIELDS}, place) order by r.place on conflict do nothing) "
            f"select exists (select from me), {_DURABLE}", {"me": me} | _columns("h", rows),
        )
        return bool(found.rows[0][0])

    def confess(self, slot: str, after: int, until: int, why: str) -> Steps[None]:
        """Puts on record that messages between two places of the log may be lost."""
        yield Sql(
            f"insert into {self._s}.audit (by, reason, verb, target, detail) values ('relay', :why, 'lost the slot', :slot, "
            "json_build_object('after', :after::text, 'until', :until::text)::text)",
            {"why": why, "slot": slot, "after": lsn_text(after), "until": lsn_text(until)}, rows=False,
        )


def _listed(table: str) -> str:
    return ", ".join(f"{table}.{name}" for name in _FIELDS)


def _arrays(sign: str) -> str:
    named = ", ".join(f":{sign}_{name}::{_TYPES.get(name, 'text')}[]" for name in _FIELDS)
    return f":{sign}_seqs::bigint[], {named}"


def _columns(sign: str, rows: Sequence[Row]) -> dict[str, Any]:
    """The parameters of ``_arrays``: one list per column."""
    columns: dict[str, Any] = {f"{sign}_seqs": [row[1] for row in rows]}
    for place, name in enumerate(_FIELDS, _FIRST):
        values = [row[place] for row in rows]
        if name in ("id", "time"):
            values = [value.decode() for value in values]
        columns[f"{sign}_{name}"] = values
    return columns
