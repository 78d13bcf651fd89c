"""Held and delayed rows on SQLite: the rules of PostgreSQL's module, with statements in order instead of one with parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bothends.core.relaying import HeldWork, mask_of, signed
from bothends.stores.sqlite.relay_rows import FIELDS, NOW, columns_of, fenced
from bothends.stores.steps import Sql, Steps

__all__ = ["HeldSteps"]

Row = tuple[Any, ...]

_COLUMNS = f"0, h.seq, 0, {columns_of('h')}, h.attempts, h.state, h.lane"
_BLOCKER = "b.lane = h.lane and b.topic = h.topic and b.key = h.key and not b.passed and b.seq < h.seq"
_HELD_KEY = "h.lane = d.lane and h.topic = d.topic and h.key = d.key and not h.passed"
_MINE = "((:lanes >> h.lane) & 1) <> 0"
_DAY_S = 86_400.0
_KEYS = 200
"""Keys that one statement asks for."""


class HeldSteps:
    def work(self, lanes: int) -> Steps[HeldWork]:
        mine = {"lanes": signed(lanes)}
        held = yield Sql(
            f"select l.lane from bothends_relay_lanes l where {_MINE.replace('h.', 'l.')} and "
            "exists (select 1 from bothends_held h where h.lane = l.lane and not h.passed)", mine)
        delayed = yield Sql(
            f"select h.deliver_at - {NOW} from bothends_delayed h where {_MINE} and h.deliver_at < {NOW} + {_DAY_S} "
            "order by h.deliver_at limit 1", mine)
        asked = yield Sql(
            f"select exists (select 1 from bothends_held h where h.owner_request is not null and {_MINE})", mine)
        return HeldWork(
            mask_of(row[0] for row in held.rows), delayed.rows[0][0] if delayed.rows else None, bool(asked.rows[0][0]))

    def places(self, lanes: int, limit: int) -> Steps[list[str]]:
        found = yield Sql(
            f"select distinct h.topic from bothends_held h where h.state = 'place' and {_MINE} order by h.topic limit :limit",
            {"lanes": signed(lanes), "limit": limit})
        return [row[0] for row in found.rows]

    def blocked(self, keys: Sequence[tuple[int, str, bytes]]) -> Steps[set[tuple[str, bytes]]]:
        found: set[tuple[str, bytes]] = set()
        for begin in range(0, len(keys), _KEYS):
            some = keys[begin:begin + _KEYS]
            names = ", ".join(f"(:lane_{n}, :topic_{n}, :key_{n})" for n in range(len(some)))
            values: dict[str, Any] = {}
            for n, (lane, topic, key) in enumerate(some):
                values |= {f"lane_{n}": lane, f"topic_{n}": topic, f"key_{n}": key}
            rows = (yield Sql(
                f"select topic, key from bothends_held where not passed and (lane, topic, key) in (values {names})", values,
            )).rows
            found |= {(topic, bytes(key)) for topic, key in rows}
        return found

    def due(self, lanes: int, away: Sequence[str], limit: int) -> Steps[list[Row]]:
        topics = {f"away_{n}": topic for n, topic in enumerate(away)}
        found = yield Sql(
            f"select {_COLUMNS} from bothends_held h where h.next_at <= {NOW} and h.state in ('retrying', 'behind') and "
            f"{_MINE} and h.topic not in ({', '.join(':' + name for name in topics)}) order by h.next_at limit :limit",
            {"lanes": signed(lanes), "limit": limit} | topics)
        return found.rows

    def run(self, lane: int, topic: str, key: bytes, limit: int) -> Steps[list[Row]]:
        found = yield Sql(
            f"select {_COLUMNS} from bothends_held h where h.lane = :lane and h.topic = :topic and h.key = :key and "
            "not h.passed order by h.seq limit :limit", {"lane": lane, "topic": topic, "key": key, "limit": limit})
        return found.rows

    def waiting(self, lanes: int, topic: str, limit: int) -> Steps[list[tuple[Row, bool]]]:
        found = yield Sql(
            f"select {_COLUMNS}, exists (select 1 from bothends_held b where {_BLOCKER} and b.state <> 'place') from "
            f"bothends_held h where h.state = 'place' and h.topic = :topic and {_MINE} order by h.seq limit :limit",
            {"lanes": signed(lanes), "topic": topic, "limit": limit})
        return [(row[:-1], bool(row[-1])) for row in found.rows]

    def get_behind(self, me: int, seqs: Sequence[int]) -> Steps[bool]:
        return (yield from fenced(me, [
            Sql("update bothends_held set state = 'behind' where seq = :seq and state = 'place'",
                {"seq": seq}, rows=False) for seq in seqs
        ]))

    def release(self, me: int, seqs: Sequence[int]) -> Steps[bool]:
        return (yield from fenced(me, [
            Sql("delete from bothends_held where seq = :seq", {"seq": seq}, rows=False) for seq in seqs
        ]))

    def suspect(self, me: int, seqs: Sequence[int], reason: str, error: str) -> Steps[bool]:
        return (yield from fenced(me, [
            Sql("update bothends_held set state = 'retrying', reason = :reason, error = :error where seq = :seq",
                {"seq": seq, "reason": reason, "error": error}, rows=False) for seq in seqs
        ]))

    def retry(
        self, me: int, seq: int, *, attempts: int, delay_s: float | None, passed: bool, reason: str, error: str
    ) -> Steps[bool]:
        return (yield from fenced(me, [Sql(
            f"update bothends_held set attempts = :attempts, reason = :reason, error = :error, passed = :passed, state = "
            f"case when :delay is null then 'dead' else 'retrying' end, next_at = {NOW} + :delay where seq = :seq",
            {"seq": seq, "attempts": attempts, "reason": reason, "error": error, "passed": passed, "delay": delay_s},
            rows=False,
        )]))

    def requests(self, lanes: int, limit: int) -> Steps[list[tuple[int, str]]]:
        found = yield Sql(
            f"select h.seq, h.owner_request from bothends_held h where h.owner_request is not null and {_MINE} "
            "order by h.seq limit :limit", {"lanes": signed(lanes), "limit": limit})
        return [(row[0], row[1]) for row in found.rows]

    def grant(self, me: int, seq: int, request: str) -> Steps[bool]:
        if request == "discard":
            change = "delete from bothends_held where seq = :seq"
        elif request == "skip":
            change = (
                "update bothends_held set owner_request = null, state = 'dead', passed = 1, next_at = null where seq = :seq"
            )
        else:
            change = (
                "update bothends_held set owner_request = null, "
                f"next_at = case when state not in ('dead', 'retrying') then next_at else {NOW} end, "
                "attempts = case when state in ('dead', 'retrying') then 0 else attempts end, "
                "passed = case when state = 'dead' then 0 else passed end, "
                "state = case when state = 'dead' then 'retrying' else state end where seq = :seq"
            )
        return (yield from fenced(me, [Sql(change, {"seq": seq}, rows=False)]))

    def delayed_due(self, lanes: int, limit: int) -> Steps[list[Row]]:
        found = yield Sql(
            "select 0, d.seq, case when exists (select 1 from bothends_held h where "
            f"{_HELD_KEY}) then 2 else 0 end, {columns_of('d')} from bothends_delayed d "
            f"where d.deliver_at <= {NOW} and {_MINE.replace('h.', 'd.')} order by d.deliver_at, d.seq limit :limit",
            {"lanes": signed(lanes), "limit": limit})
        return found.rows

    def delayed_done(self, me: int, seqs: Sequence[int], holds: Sequence[tuple[int, str, str, str]]) -> Steps[bool]:
        statements = [
            Sql(f"insert or ignore into bothends_held (seq, lane, {FIELDS}, state, passed, reason, error) "
                f"select seq, lane, {FIELDS}, case :state when 'passed' then 'dead' else :state end, :state = 'passed', "
                ":reason, :error from bothends_delayed where seq = :seq",
                {"seq": seq, "state": state, "reason": reason, "error": error}, rows=False)
            for seq, state, reason, error in holds
        ]
        statements += [
            Sql("delete from bothends_delayed where seq = :seq", {"seq": seq}, rows=False)
            for seq in [*seqs, *(hold[0] for hold in holds)]
        ]
        return (yield from fenced(me, statements))


