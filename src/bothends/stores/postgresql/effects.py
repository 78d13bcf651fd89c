"""Effects on PostgreSQL: one row per (consumer, source, message, name). Every statement stands alone (autocommit), so
that what was written before an outside call is durable before the call."""

from __future__ import annotations

from typing import NamedTuple

from bothends.stores.schema import quoted_schema
from bothends.stores.steps import Sql, Steps

__all__ = ["EffectKey", "EffectRow", "PostgresqlEffects"]


class EffectKey(NamedTuple):
    consumer: int
    source: str
    message_id: str
    name: str


class EffectRow(NamedTuple):
    state: str
    key: str
    """The idempotency key of the first run."""
    result: bytes | None
    error: str
    runs: int
    """Grows with every claim: what a claim compares and swaps."""
    leased: bool
    """In progress, and its worker's lease has not run out."""


class PostgresqlEffects:
    """Step functions. ``lease_s`` is judged by the database's clock alone."""

    def __init__(self, schema: str) -> None:
        s = quoted_schema(schema)
        row = """consumer = :consumer and message_id = :message_id and source = :source and name = :name"""
        lease = "clock_timestamp() + make_interval(secs => :lease_s)"
        self._start = f"""
            insert into {s}.effects (consumer, source, message_id, name, state, key, worker, lease_until)
            values (:consumer, :source, :message_id, :name, 'in_progress', :key, :worker, {lease})
            on conflict do nothing returning runs"""
        # A lease that ends later than now + lease was written before the clock stepped back: expired.
        self._read = f"""
            select state, key, result, error, runs, state = 'in_progress' and worker <> :worker
                and lease_until > clock_timestamp() and lease_until <= {lease}
            from {s}.effects where {row}"""
        self._claim = f"""
            update {s}.effects set state = 'in_progress', worker = :worker, runs = runs + 1, lease_until = {lease},
                changed_at = clock_timestamp()
            where {row} and runs = :runs and state <> 'completed' returning runs"""
        self._renew = f"""
            update {s}.effects set lease_until = {lease} where {row} and worker = :worker and state = 'in_progress'"""
        self._complete = f"""
            update {s}.effects set state = 'completed', result = :result, error = '', lease_until = null,
                changed_at = clock_timestamp()
            where {row} and state <> 'completed'"""
        self._fail = f"""
            update {s}.effects set state = :state, error = :error, lease_until = null, changed_at = clock_timestamp()
            where {row} and worker = :worker and runs = :runs and state = 'in_progress'"""

    def start(self, effect: EffectKey, *, key: str, worker: str, lease_s: float) -> Steps[int | None]:
        """Writes "in progress"; the number of this run (1), or None where the effect is known already."""
        result = yield Sql(self._start, effect._asdict() | {"key": key, "worker": worker, "lease_s": lease_s})
        return int(result.rows[0][0]) if result.rows else None

    def read(self, effect: EffectKey, *, worker: str, lease_s: float) -> Steps[EffectRow | None]:
        result = yield Sql(self._read, effect._asdict() | {"worker": worker, "lease_s": lease_s})
        return EffectRow(*result.rows[0]) if result.rows else None

    def claim(self, effect: EffectKey, *, worker: str, lease_s: float, runs: int) -> Steps[int | None]:
        """Takes the effect over as it was read (``runs``); None where somebody else was faster."""
        result = yield Sql(self._claim, effect._asdict() | {"worker": worker, "lease_s": lease_s, "runs": runs})
        return int(result.rows[0][0]) if result.rows else None

    def renew(self, effect: EffectKey, *, worker: str, lease_s: float) -> Steps[None]:
        """A worker that is alive says so, each third of the lease."""
        yield Sql(self._renew, effect._asdict() | {"worker": worker, "lease_s": lease_s}, rows=False)

    def complete(self, effect: EffectKey, *, result: bytes) -> Steps[bool]:
        """The call has happened, whoever made it; the first result that is written stays. False: there is one already."""
        done = yield Sql(self._complete, effect._asdict() | {"result": result})
        return done.count == 1

    def fail(self, effect: EffectKey, *, worker: str, runs: int, state: str, error: str) -> Steps[None]:
        """How this run's call ended: refused, not_sent or unknown. A later run's own state is left alone."""
        yield Sql(
            self._fail, effect._asdict() | {"worker": worker, "runs": runs, "state": state, "error": error}, rows=False
        )
