"""Effects on SQLite. Leases go by the boot clock (a parameter): nobody can set it, and all processes share it."""

from __future__ import annotations

import time

from bothends.stores.postgresql.effects import EffectKey, EffectRow
from bothends.stores.steps import Sql, Steps

__all__ = ["SqliteEffects"]

_NOW = "(julianday('now') - 2440587.5) * 86400.0"
_ROW = "consumer = :consumer and message_id = :message_id and source = :source and name = :name"


def _boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SqliteEffects:
    """Step functions, as ``PostgresqlEffects``; each is one statement, and so one durable commit."""

    def __init__(self, schema: str) -> None:
        del schema  # tables have a prefix instead

    def start(self, effect: EffectKey, *, key: str, worker: str, lease_s: float) -> Steps[int | None]:
        result = yield Sql(
            "insert into bothends_effects (consumer, source, message_id, name, state, key, worker, lease_until) "
            "values (:consumer, :source, :message_id, :name, 'in_progress', :key, :worker, :until) "
            "on conflict do nothing returning runs",
            effect._asdict() | {"key": key, "worker": worker, "until": _boot_s() + lease_s},
        )
        return int(result.rows[0][0]) if result.rows else None

    def read(self, effect: EffectKey, *, worker: str, lease_s: float) -> Steps[EffectRow | None]:
        result = yield Sql(
            "select state, key, result, error, runs, state = 'in_progress' and worker <> :worker "
            f"and lease_until > :boot and lease_until <= :boot + :lease_s from bothends_effects where {_ROW}",
            effect._asdict() | {"worker": worker, "lease_s": lease_s, "boot": _boot_s()},
        )
        if not result.rows:
            return None
        state, key, value, error, runs, leased = result.rows[0]
        return EffectRow(state, key, value, error, runs, bool(leased))

    def claim(self, effect: EffectKey, *, worker: str, lease_s: float, runs: int) -> Steps[int | None]:
        result = yield Sql(
            "update bothends_effects set state = 'in_progress', worker = :worker, runs = runs + 1, lease_until = :until, "
            f"changed_at = {_NOW} where {_ROW} and runs = :runs and state <> 'completed' returning runs",
            effect._asdict() | {"worker": worker, "runs": runs, "until": _boot_s() + lease_s},
        )
        return int(result.rows[0][0]) if result.rows else None

    def renew(self, effect: EffectKey, *, worker: str, lease_s: float) -> Steps[None]:
        yield Sql(
            f"update bothends_effects set lease_until = :until where {_ROW} and worker = :worker and state = 'in_progress'",
            effect._asdict() | {"worker": worker, "until": _boot_s() + lease_s}, rows=False,
        )

    def complete(self, effect: EffectKey, *, result: bytes) -> Steps[bool]:
        done = yield Sql(
            "update bothends_effects set state = 'completed', result = :result, error = '', lease_until = null, "
            f"changed_at = {_NOW} where {_ROW} and state <> 'completed'",
            effect._asdict() | {"result": result},
        )
        return done.count == 1

    def fail(self, effect: EffectKey, *, worker: str, runs: int, state: str, error: str) -> Steps[None]:
        yield Sql(
            f"update bothends_effects set state = :state, error = :error, lease_until = null, changed_at = {_NOW} "
            f"where {_ROW} and worker = :worker and runs = :runs and state = 'in_progress'",
            effect._asdict() | {"worker": worker, "runs": runs, "state": state, "error": error}, rows=False,
        )
