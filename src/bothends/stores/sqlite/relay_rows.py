"""Reading the outbox, and deleting what is done. Fenced steps are short transactions with the write lock."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Sequence
from typing import Any

from bothends.core.relaying import (
    DELAYED,
    EVERY_LANE,
    PAGE_BYTES,
    Hold,
    Page,
    Segment,
    Stream,
    is_full,
    signed,
)
from bothends.stores.steps import Sql, Steps

__all__ = ["FIELDS", "NOW", "RowSteps", "columns_of", "fenced", "roll_back"]

FIELDS = "id, source, type, topic, key, body, content_type, time, version, attributes, headers"
NOW = "((julianday('now') - 2440587.5) * 86400.0)"
_BYTES = frozenset({"id", "time"})
_SEQ, _BODY = 1, 8


def columns_of(table: str) -> str:
    """The fields as a row has them: what never repeats as bytes, since it goes on the wire as it is."""
    return ", ".join(
        f"cast({table}.{name} as blob)" if name in _BYTES else f"{table}.{name}" for name in FIELDS.split(", "))


def fenced(me: int, statements: Sequence[Sql]) -> Steps[bool]:
    """Runs ``statements`` in one transaction if the registration ``me`` is still there."""
    yield Sql("begin immediate", rows=False)
    try:
        mine = yield Sql("select 1 from bothends_relays where id = :me", {"me": me})
        if mine.rows:
            for statement in statements:  # noqa: UP028 - a list cannot be sent results
                yield statement
        yield Sql("commit" if mine.rows else "rollback", rows=False)
    except BaseException:
        yield from roll_back()
        raise
    return bool(mine.rows)


def roll_back() -> Steps[None]:
    """After an error, which may have ended the transaction by itself (a full disk does): the error is what counts."""
    with contextlib.suppress(sqlite3.OperationalError):
        yield Sql("rollback", rows=False)


class RowSteps:
    def fetch(self, streams: Sequence[Stream], *, limit: int) -> Steps[Page]:
        """One page; rows as on PostgreSQL. Whatever is at or below the highest seq seen first is in the page, or was
        handed out before."""
        top = (yield Sql("select coalesce(max(seq), 0) from bothends_outbox")).rows[0][0]
        kept: list[tuple[Any, ...]] = []
        moved: list[Stream] = []
        full = False
        for n, stream in enumerate(streams):
            some = "" if stream.lanes == EVERY_LANE else "and ((:lanes >> o.lane) & 1) <> 0"
            params = {"hwm": stream.hwm, "lanes": signed(stream.lanes), "rows": limit, "bytes": PAGE_BYTES}
            rows = (yield Sql(
                f"select {n}, o.seq, case when o.deliver_at is not null and o.deliver_at > {NOW} then {DELAYED} "
                f"else 0 end, {columns_of('o')} from (select r.*, sum(length(r.body)) over (order by r.seq rows "
                f"unbounded preceding) as upto from (select * from bothends_outbox o where o.seq > :hwm {some} "
                "order by o.seq limit :rows) r) o where coalesce(o.upto, 0) - coalesce(length(o.body), 0) < :bytes "
                "order by o.seq", params,
            )).rows
            hwm = rows[-1][_SEQ] if rows else stream.hwm
            cut = is_full(rows, limit, _BODY)
            if not cut:
                hwm = max(hwm, top)
            full = full or cut
            kept += rows
            moved.append(Stream(stream.lanes, hwm, ""))
        return Page(kept, moved, full)

    def settle(
        self, me: int, segments: Sequence[Segment], holds: Sequence[Hold], delays: Sequence[int]
    ) -> Steps[bool]:
        statements = [_hold(hold) for hold in holds]
        statements += [
            Sql(f"insert or ignore into bothends_delayed (seq, lane, {FIELDS}, deliver_at) select seq, lane, {FIELDS}, "
                "deliver_at from bothends_outbox where seq = :seq", {"seq": seq}, rows=False)
            for seq in delays
        ]
        for segment in segments:
            place = {"lanes": signed(segment.lanes), "hwm": segment.hwm}
            some = "" if segment.lanes == EVERY_LANE else " and ((:lanes >> lane) & 1) <> 0"
            statements.append(Sql(f"delete from bothends_outbox where seq <= :hwm{some}", place, rows=False))
            statements.append(Sql(
                "insert into bothends_relay_progress (relay, lanes, hwm, published) values (:me, :lanes, :hwm, :published)",
                place | {"me": me, "published": segment.published}, rows=False))
        return (yield from fenced(me, statements))


def _hold(hold: Hold) -> Sql:
    state = "dead" if hold.state == "passed" else hold.state
    return Sql(
        f"insert or ignore into bothends_held (seq, lane, {FIELDS}, state, passed, reason, error) select seq, lane, "
        f"{FIELDS}, :state, :passed, :reason, :error from bothends_outbox where seq = :seq",
        {"seq": hold.seq, "state": state, "passed": hold.state == "passed", "reason": hold.reason, "error": hold.error},
        rows=False,
    )
