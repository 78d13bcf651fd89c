"""Rows that the cursor has passed: held ones (of a rejected head, of a place that is away) and delayed ones.

Only the owner of a lane changes its held rows, and each change is fenced. Which row of a key has its turn is kept by the
table itself (``held_heads``, see ADR 18): a statement says what becomes of its own rows, and who waits for them is woken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bothends.core.relaying import HeldWork, lanes_of, mask_of, signed
from bothends.stores.postgresql.relay_rows import FIELDS, columns_of
from bothends.stores.steps import Sql, Steps

__all__ = ["HeldSteps"]

Row = tuple[Any, ...]

_BLOCKER = "b.lane = h.lane and b.topic = h.topic and b.key = h.key and not b.passed and b.seq < h.seq"


class HeldSteps:
    """Rows are (part, seq, flag, ...fields, attempts, state, lane), the fields as in ``RowSteps.fetch``."""

    def __init__(self, quoted: str) -> None:
        self._s = quoted
        self._columns = f"0, h.seq, 0, {columns_of('h')}, h.attempts, h.state, h.lane"
        self._me = f"me as materialized (select id from {quoted}.relays where id = :me for key share)"

    def work(self, lanes: int) -> Steps[HeldWork]:
        found = yield Sql(
            f"select array(select l::int from unnest(:lanes::smallint[]) l where exists (select from {self._s}.held h "
            "where h.lane = l and not h.passed)), "
            f"(select extract(epoch from deliver_at - clock_timestamp())::float8 from {self._s}.delayed "
            "where deliver_at < clock_timestamp() + interval '1 day' and lane = any(:lanes::smallint[]) "
            f"order by deliver_at limit 1), exists (select from {self._s}.held where owner_request is not null "
            "and lane = any(:lanes::smallint[]))", {"lanes": list(lanes_of(lanes))},
        )
        blocked, delayed_in_s, requests = found.rows[0]
        return HeldWork(mask_of(blocked), delayed_in_s, requests)

    def places(self, lanes: int, limit: int) -> Steps[list[str]]:
        """Topics that have rows waiting for their place, in alphabetical order."""
        found = yield Sql(
            "with recursive t (topic) as ("
            f"(select topic from {self._s}.held where state = 'place' order by topic limit 1) union all "
            f"select (select h.topic from {self._s}.held h where h.state = 'place' and h.topic > t.topic "
            "order by h.topic limit 1) from t where t.topic is not null) "
            f"select topic from t where topic is not null and exists (select from {self._s}.held h where "
            "h.state = 'place' and h.topic = t.topic and h.lane = any(:lanes::smallint[])) limit :limit",
            {"lanes": list(lanes_of(lanes)), "limit": limit},
        )
        return [row[0] for row in found.rows]

    def blocked(self, keys: Sequence[tuple[int, str, bytes]]) -> Steps[set[tuple[str, bytes]]]:
        """Which of these keys (lane, topic, key) have rows that others wait behind."""
        # Not EXISTS: where many are asked for, that is answered from a table of all keys that are held, made for each page.
        found = yield Sql(
            "select k.topic, k.key from unnest(:lanes::smallint[], :topics::text[], :keys::bytea[]) k (lane, topic, key) where "
            f"(select true from {self._s}.held h where h.lane = k.lane and h.topic = k.topic and h.key = k.key and "
            "not h.passed limit 1)",
            {"lanes": [k[0] for k in keys], "topics": [k[1] for k in keys], "keys": [k[2] for k in keys]},
        )
        return {(row[0], row[1]) for row in found.rows}

    def due(self, lanes: int, away: Sequence[str], limit: int) -> Steps[list[Row]]:
        """Heads that are due, longest first, those of places that are away excepted."""
        found = yield Sql(
            f"select {self._columns} from {self._s}.held h where h.next_at <= clock_timestamp() and "
            "h.state in ('retrying', 'behind') and ((:lanes::bigint >> h.lane) & 1) <> 0 and h.topic <> all(:away::text[]) "
            "order by h.next_at limit :limit", {"lanes": signed(lanes), "away": list(away), "limit": limit},
        )
        return found.rows

    def run(self, lane: int, topic: str, key: bytes, limit: int) -> Steps[list[Row]]:
        """The oldest held rows of one key, in order, whatever their state."""
        found = yield Sql(
            f"select {self._columns} from {self._s}.held h where h.lane = :lane and h.topic = :topic "
            "and h.key = :key and not h.passed order by h.seq limit :limit",
            {"lane": lane, "topic": topic, "key": key, "limit": limit},
        )
        return found.rows

    def waiting(self, lanes: int, topic: str, limit: int) -> Steps[list[tuple[Row, bool]]]:
        """The oldest rows that wait for a place, and whether an older held row of the same key, which does not wait for
        the place alone, is before them."""
        found = yield Sql(
            f"select {self._columns}, exists (select from {self._s}.held b where {_BLOCKER} and "
            f"b.state <> 'place') from {self._s}.held h where h.state = 'place' and h.topic = :topic and "
            "((:lanes::bigint >> h.lane) & 1) <> 0 order by h.seq limit :limit",
            {"lanes": signed(lanes), "topic": topic, "limit": limit},
        )
        return [(row[:-1], row[-1]) for row in found.rows]

    def get_behind(self, me: int, seqs: Sequence[int]) -> Steps[bool]:
        """Rows that waited for a place now wait for the head of their key."""
        found = yield Sql(
            f"with {self._me}, done as (update {self._s}.held h set state = 'behind' from me "
            "where h.seq = any(:seqs) and h.state = 'place') select exists (select from me)",
            {"me": me, "seqs": list(seqs)},
        )
        return bool(found.rows[0][0])

    def release(self, me: int, seqs: Sequence[int]) -> Steps[bool]:
        """These are published: they go."""
        found = yield Sql(
            f"with {self._me}, gone as (delete from {self._s}.held h using me where h.seq = any(:seqs)) "
            "select exists (select from me)",
            {"me": me, "seqs": list(seqs)},
        )
        return bool(found.rows[0][0])

    def suspect(self, me: int, seqs: Sequence[int], reason: str, error: str) -> Steps[bool]:
        """Rejected among others: to be tried alone, when everything before them of their key is done."""
        found = yield Sql(
            f"with {self._me}, done as (update {self._s}.held h set state = 'retrying', reason = :reason, error = :error "
            "from me where h.seq = any(:seqs)) select exists (select from me)",
            {"me": me, "seqs": list(seqs), "reason": reason, "error": error},
        )
        return bool(found.rows[0][0])

    def retry(
        self, me: int, seq: int, *, attempts: int, delay_s: float | None, passed: bool, reason: str, error: str
    ) -> Steps[bool]:
        """Rejected alone, or to be tried alone: again after ``delay_s`` seconds, or dead (None), and its key goes on without
        it (``passed``) or waits."""
        found = yield Sql(
            f"with {self._me}, done as (update {self._s}.held h set attempts = :attempts, reason = :reason, "
            "error = :error, state = case when :delay::float8 is null then 'dead' else 'retrying' end, "
            "passed = :passed, next_at = clock_timestamp() + make_interval(secs => :delay::float8) from me "
            "where h.seq = :seq) select exists (select from me)",
            {"me": me, "seq": seq, "attempts": attempts, "delay": delay_s, "passed": passed, "reason": reason,
             "error": error},
        )
        return bool(found.rows[0][0])

    def requests(self, lanes: int, limit: int) -> Steps[list[tuple[int, str]]]:
        """What operators have asked for: (seq, ``retry``, ``skip`` or ``discard``)."""
        found = yield Sql(
            f"select seq, owner_request from {self._s}.held where owner_request is not null and "
            "((:lanes::bigint >> lane) & 1) <> 0 order by seq limit :limit", {"lanes": signed(lanes), "limit": limit},
        )
        return [(row[0], row[1]) for row in found.rows]

    def grant(self, me: int, seq: int, request: str) -> Steps[bool]:
        """Carries out one request. ``retry``: tried alone, with all its attempts, once nothing of its key is before it;
        ``skip``: dead, and its key goes on; ``discard``: gone. What is neither dead nor retrying is left as it is."""
        if request == "discard":
            change = f"delete from {self._s}.held h using me where h.seq = :seq"
        elif request == "skip":
            change = (
                f"update {self._s}.held h set owner_request = null, state = 'dead', passed = true, next_at = null from me "
                "where h.seq = :seq"
            )
        else:
            change = (
                f"update {self._s}.held h set owner_request = null, "
                "state = case when h.state = 'dead' then 'retrying' else h.state end, "
                "attempts = case when h.state in ('dead', 'retrying') then 0 else h.attempts end, "
                "passed = h.passed and h.state <> 'dead', "
                "next_at = case when h.state not in ('dead', 'retrying') then h.next_at else clock_timestamp() end "
                "from me where h.seq = :seq"
            )
        found = yield Sql(f"with {self._me}, done as ({change}) select exists (select from me)", {"me": me, "seq": seq})
        return bool(found.rows[0][0])

    def delayed_due(self, lanes: int, limit: int) -> Steps[list[Row]]:
        """Delayed rows that are due, oldest date first, as rows of a page: flag 2 where their key is held."""
        found = yield Sql(
            "select 0, h.seq, case when exists (select from {s}.held b where b.lane = h.lane and b.topic = h.topic "
            "and b.key = h.key and not b.passed) then 2 else 0 end, {columns} from {s}.delayed h where h.deliver_at <= "
            "clock_timestamp() and ((:lanes::bigint >> h.lane) & 1) <> 0 order by h.deliver_at, h.seq limit :limit"
            .format(s=self._s, columns=columns_of("h")),
            {"lanes": signed(lanes), "limit": limit},
        )
        return found.rows

    def delayed_done(self, me: int, seqs: Sequence[int], holds: Sequence[tuple[int, str, str, str]]) -> Steps[bool]:
        """Delayed rows that are published (``seqs``) or go to held: (seq, state, reason, error)."""
        found = yield Sql(
            f"with {self._me}, gone as (delete from {self._s}.delayed d using me where d.seq = any(:seqs) or "
            f"d.seq = any(:hold_seqs::bigint[]) returning d.*), held as (insert into {self._s}.held (seq, lane, {FIELDS}, "
            f"state, passed, reason, error) select o.seq, o.lane, {', '.join('o.' + f for f in FIELDS.split(', '))}, "
            "case g.state when 'passed' then 'dead' else g.state end, g.state = 'passed', g.reason, g.error from "
            "unnest(:hold_seqs::bigint[], :states::text[], :reasons::text[], :errors::text[]) g (seq, state, reason, error) "
            "join gone o on o.seq = g.seq on conflict (seq) do nothing) "  # read again by polling, it was due and held already
            "select exists (select from me)",
            {"me": me, "seqs": list(seqs), "hold_seqs": [h[0] for h in holds], "states": [h[1] for h in holds],
             "reasons": [h[2] for h in holds], "errors": [h[3] for h in holds]},
        )
        return bool(found.rows[0][0])
