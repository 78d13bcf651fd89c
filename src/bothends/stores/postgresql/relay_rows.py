"""Reading the outbox from a cursor, and storing how far it is done. One statement each, at most a few per page."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from bothends.core.relaying import (
    DELAYED,
    EVERY_LANE,
    PAGE_BYTES,
    Hold,
    Page,
    Segment,
    Stream,
    advance,
    is_full,
    signed,
)
from bothends.stores.steps import Sql, Steps

__all__ = ["FIELDS", "RowSteps", "columns_of"]

FIELDS = "id, source, type, topic, key, body, content_type, time, version, attributes, headers"
"""What is copied from the outbox to ``held`` and ``delayed``."""

UNREAD_MS = 10_000
"""How long the server waits for a client that does not read a page; then it ends the connection. Longer than a relay that
lives waits for anything before it reads: for room in the broker's client, 5 s."""
_BYTES = frozenset({"id", "time"})
_SEQ, _BODY = 1, 8


def columns_of(table: str) -> str:
    """The fields as a row has them. What never repeats is asked for as varchar, which our connection hands over as bytes:
    it goes on the wire as it is."""
    return ", ".join(f"{table}.{name}{'::varchar' if name in _BYTES else ''}" for name in FIELDS.split(", "))


class RowSteps:
    def __init__(self, quoted: str) -> None:
        self._s = quoted

    def fetch(self, streams: Sequence[Stream], *, limit: int) -> Steps[Page]:
        """One page: of each stream late rows, then new ones, of both kinds at most ``limit`` and PAGE_BYTES. One
        statement has one snapshot, so nothing is between the streams. Rows are
        (part, seq, flag, id, source, type, topic, key, body, content_type, time, version, attributes, headers)."""
        shape = tuple((s.hwm > 0, s.lanes != EVERY_LANE, s.target is not None) for s in streams)
        params: dict[str, Any] = {"rows": limit, "bytes": PAGE_BYTES}
        for n, stream in enumerate(streams):
            params[f"lanes_{n}"], params[f"hwm_{n}"] = signed(stream.lanes), stream.hwm
            if stream.hwm:
                _, xmax, running = stream.snapshot.split(":")
                params[f"xmax_{n}"], params[f"after_{n}"] = xmax, stream.after
                params[f"running_{n}"] = "{" + running + "}"
                params[f"target_{n}"] = stream.target
            elif stream.target is not None:
                params[f"target_{n}"] = stream.target
        found = (yield Sql(_fetch_text(self._s, shape), params)).rows
        head, rows = found[0], found[1:]
        last, now = head[1], head[4]
        if len(streams) == 1 and (not rows or rows[0][0] == 1):  # no late rows: nearly always
            cut = is_full(rows, limit, _BODY)
            after, _ = advance(streams[0], (), rows, late_full=False, new_full=cut, now=now, last=last, seq=_SEQ)
            return Page(rows, [after], cut)
        parts: list[list[tuple[Any, ...]]] = [[] for _ in range(2 * len(streams))]
        for row in rows:
            parts[row[0]].append(row)
        kept: list[tuple[Any, ...]] = []
        moved = []
        full = False
        for n, stream in enumerate(streams):
            late, new = parts[2 * n], parts[2 * n + 1]
            late_full, new_full = is_full(late, limit, _BODY), is_full(new, limit, _BODY)
            after, with_new = advance(
                stream, late, new, late_full=late_full, new_full=new_full, now=now, last=last, seq=_SEQ)
            moved.append(after)
            kept += late
            if with_new:
                kept += new
            full = full or late_full or new_full
        return Page(kept, moved, full)

    def settle(
        self, me: int, segments: Sequence[Segment], holds: Sequence[Hold], delays: Sequence[int]
    ) -> Steps[bool]:
        """Stores cursors, and copies what they pass without publishing, in one fenced statement. False: fenced off."""
        text = _settle_text(self._s, bool(holds), bool(delays))
        params: dict[str, Any] = {
            "me": me, "lanes": [signed(s.lanes) for s in segments], "hwms": [s.hwm for s in segments],
            "snapshots": [s.snapshot for s in segments], "published": [s.published for s in segments],
        }
        if holds:
            params |= {
                "hold_seqs": [h.seq for h in holds], "states": [h.state for h in holds],
                "reasons": [h.reason for h in holds], "errors": [h.error for h in holds],
            }
        if delays:
            params["delay_seqs"] = list(delays)
        found = yield Sql(text, params)
        return bool(found.rows[0][0])


def _lane(s: str) -> str:
    """The lane of the row ``o``: computed where it is needed, see ADR 5."""
    return f"{s}.lane(o.key, o.seq)"


@lru_cache(maxsize=256)
def _fetch_text(s: str, shape: tuple[tuple[bool, bool, bool], ...]) -> str:
    # set_config is parallel-unsafe: so no part of the statement runs in parallel workers, and rows keep their order. What it
    # sets is for this statement: a relay that is frozen before it has read its page must not pin the database's horizon.
    parts = [
        "select -1, last_value, 0, null::varchar, pg_current_snapshot()::text, "
        f"set_config('tcp_user_timeout', '{UNREAD_MS}', true), null::text, null::bytea, null::bytea, null::text, "
        "null::varchar, 0, null::text, null::bytea "
        f"from {s}.outbox_seq"
    ]
    lane = _lane(s)
    flag = f"case when o.deliver_at is not null and o.deliver_at > clock_timestamp() then {DELAYED} else 0 end"
    columns = f"o.seq, {flag}, {columns_of('o')}"
    for n, (late, some_lanes, target) in enumerate(shape):
        if late:
            parts.append(_cut(
                f"select {2 * n}, {columns}", f"select * from {s}.outbox_late(:lanes_{n}::bigint, "
                f":running_{n}::text::xid8[], :xmax_{n}::text::xid8, :target_{n}::text::pg_snapshot, :hwm_{n}::bigint, "
                f":after_{n}::bigint, :rows::int)"))
        # `<> 0`, not `= 1`: the planner takes an inequality to hold for nearly all rows, and keeps to the index on seq.
        lanes = f" and ((:lanes_{n}::bigint >> {lane}) & 1) <> 0" if some_lanes else ""
        seen = f" and pg_visible_in_snapshot(o.xid, :target_{n}::text::pg_snapshot)" if target else ""
        # A limit that is a query says nothing to the planner: it expects a tenth of the table, and where millions wait the
        # server compiles each page (JIT). So there is one that it can read.
        fit = (
            f"{s}.outbox_fit(:lanes_{n}::bigint, {f':target_{n}::text::pg_snapshot' if target else 'null'}, :hwm_{n}::bigint, "
            ":rows::int, :bytes::bigint)"
        )
        parts.append(
            f"(select {2 * n + 1}, {columns} from (select * from {s}.outbox o where o.seq > :hwm_{n}::bigint{lanes}{seen} "
            f"order by o.seq limit :rows::int) o order by o.seq limit (select {fit}))"
        )
    return " union all ".join(parts)


def _cut(select: str, rows: str) -> str:
    """The late rows of a page, which nearly never exist, up to the one with which their bodies go beyond the bytes."""
    return (
        f"({select} from (select r.*, sum(octet_length(r.body)) over (order by r.seq rows unbounded preceding) as upto "
        f"from ({rows}) r) o where coalesce(o.upto, 0) - coalesce(octet_length(o.body), 0) < :bytes::bigint order by o.seq)"
    )


@lru_cache(maxsize=16)
def _settle_text(s: str, holds: bool, delays: bool) -> str:
    ctes = [f"me as materialized (select id from {s}.relays where id = :me for key share)"]
    lane = _lane(s)
    copied = ", ".join(f"o.{name}" for name in FIELDS.split(", "))
    if holds:
        ctes.append(
            f"held as (insert into {s}.held (seq, lane, {FIELDS}, state, passed, reason, error) "
            f"select o.seq, {lane}, {copied}, case g.state when 'passed' then 'dead' else g.state end, g.state = 'passed', "
            "g.reason, g.error from me, unnest(:hold_seqs::bigint[], :states::text[], :reasons::text[], :errors::text[]) "
            f"g (seq, state, reason, error) join {s}.outbox o on o.seq = g.seq "
            "where o.seq = any(:hold_seqs::bigint[]) on conflict (seq) do nothing)"
        )
    if delays:
        ctes.append(
            f"delayed as (insert into {s}.delayed (seq, lane, {FIELDS}, deliver_at) select o.seq, {lane}, {copied}, "
            f"o.deliver_at from me, {s}.outbox o where o.seq = any(:delay_seqs::bigint[]) on conflict (seq) do nothing)"
        )
    ctes.append(
        f"stored as (insert into {s}.relay_progress (relay, lanes, hwm, snapshot, published) "
        "select me.id, p.lanes, p.hwm, p.snapshot::pg_snapshot, p.published from me, unnest(:lanes::bigint[], "
        ":hwms::bigint[], :snapshots::text[], :published::bigint[]) p (lanes, hwm, snapshot, published))"
    )
    # Not waited for on disk: a server that crashes may forget the last of it, and those events are published again. The
    # consumers' inbox knows them; the relay's page every few milliseconds would cost the business its own commits.
    return f"with {', '.join(ctes)} select exists (select from me), set_config('synchronous_commit', 'off', true)"
