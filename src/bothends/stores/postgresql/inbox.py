"""Inbox on PostgreSQL: admission, crash marks, and the gate before COMMIT. Parking and dead letters: ``parking.py``.

READ COMMITTED is assumed: each statement sees what was committed before it began. That is why admission and the look-up of
blocked keys are two statements, in this order (also within ``inbox_admit``): whoever waited for another transaction in the
first sees its parked key in the second.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from bothends.letters import KeyOf
from bothends.processes import lives
from bothends.stores.faults import sqlstate_of
from bothends.stores.inboxes import WAITING_MAX, Admitted, Consumed, Entry, Known, MarkGone, OpenRun, Registered
from bothends.stores.postgresql.arrays import booleans, byteas, texts
from bothends.stores.postgresql.parking import PostgresqlParking
from bothends.stores.schema import quoted_schema
from bothends.stores.steps import Sql, Steps

__all__ = ["PostgresqlInbox"]

_CONSUMERS_MAX = _OPEN_RUNS_MAX = 10_000
_MARK_GONE = "BE002"


class PostgresqlInbox(PostgresqlParking):
    """Step functions; the consumer is given by its number, from ``register``."""

    gate_with_commit = True
    """The gate fails where nothing may be committed, so COMMIT can be sent with it."""

    def __init__(self, schema: str) -> None:
        super().__init__(schema)
        s = quoted_schema(schema)
        self._register = f"""
            insert into {s}.consumers (name, service, owner, start_at, topics)
            values (:name, :service, :owner, :start_at, :topics)
            on conflict (name) do update set owner = excluded.owner, topics = excluded.topics
            returning id, start_at, paused, xmax = 0, processed"""
        self._rename = f"""
            update {s}.consumers set name = :name where name = :alias
            and not exists (select 1 from {s}.consumers where name = :name) returning id"""
        self._recorded = f"select name, service from {s}.consumers order by name limit {_CONSUMERS_MAX}"
        self._consumed = f"""
            update {s}.consumers set processed = processed + :processed where id = :consumer
            returning paused, extract(epoch from clock_timestamp())::float8"""
        self._mark = f"""
            with quick as materialized (select set_config('synchronous_commit', 'off', true)),
                 replaced as (delete from {s}.runs where id = any(:replaces::bigint[]))
            insert into {s}.runs (consumer, worker, backend_pid, messages, alone, crashes)
            select :consumer, :worker, pg_backend_pid(), :messages, :alone, :crashes from quick returning id"""
        self._unmark = f"delete from {s}.runs where id = any(:runs::bigint[])"
        self._void = f"update {s}.runs set voided = true where worker = :worker and id = any(:runs::bigint[])"
        self._open_runs = f"""
            select r.id, r.worker, r.messages, r.alone, r.crashes,
                   exists (select 1 from pg_stat_activity a where a.pid = r.backend_pid
                           and a.datname = current_database() and a.backend_start <= r.opened)
            from {s}.runs r where r.consumer = :consumer and r.worker <> :worker and not r.voided
            order by r.id limit {_OPEN_RUNS_MAX}"""
        self._sweep = f"""
            delete from {s}.runs r where r.consumer = :consumer and r.worker <> :worker
            and (r.opened < clock_timestamp() - interval '7 days' or (not r.alone or r.voided) and not exists (
                select 1 from jsonb_array_elements(r.messages::jsonb) m where not exists (
                    select 1 from {s}.inbox i where i.consumer = r.consumer and i.source = m ->> 0 and i.id = m ->> 1)))"""
        self._admit = f"""
            select transaction, sources, ids, topics, keyed, keys from {s}.inbox_admit(
                :consumer::int, :sources::text[], :ids::text[], :hashes::bytea[], :lock_timeout, :lease, {WAITING_MAX})"""
        self._known = f"""
            select source, id, state::text, hash from {s}.inbox where consumer = :consumer
            and (id, source) in (select * from unnest(:ids::text[], :sources::text[]))"""
        self._gate = f"select {s}.inbox_gate(:run::bigint, :last::boolean, :transaction)"
        self._end_frozen = f"""
            select pg_terminate_backend(a.pid)
            from unnest(:waiting::int[]) w (pid), unnest(pg_blocking_pids(w.pid)) b (pid)
            join pg_stat_activity a on a.pid = b.pid
            where exists (select 1 from {s}.runs r where r.backend_pid = a.pid and r.worker <> :worker)
            and a.state_change < clock_timestamp() - make_interval(secs => :lease_s)
            and (a.state like 'idle in transaction%' or a.wait_event in ('ClientRead', 'ClientWrite'))"""

    def register(self, *, name: str, service: str, owner: str, start_at: str, topics: Sequence[str]) -> Steps[Registered]:
        """The consumer's row, made at its first start; ``start_at`` stays as it was then [A7]."""
        result = yield Sql(self._register, {
            "name": name, "service": service, "owner": owner, "start_at": start_at, "topics": json.dumps(list(topics)),
        })
        return Registered(*result.rows[0])

    def rename(self, alias: str, name: str) -> Steps[bool]:
        """Takes over the inbox of a consumer that was called ``alias``, unless ``name`` has one already."""
        result = yield Sql(self._rename, {"alias": alias, "name": name})
        return bool(result.rows)

    def recorded(self) -> Steps[list[tuple[str, str]]]:
        """(name, service) of the consumers that have run on this database."""
        result = yield Sql(self._recorded)
        return [(name, service) for name, service in result.rows]

    def consumed(self, consumer: int, processed: int) -> Steps[Consumed]:
        """Adds to the counter; whether an operator has paused the consumer, and the database's time."""
        result = yield Sql(self._consumed, {"consumer": consumer, "processed": processed})
        return Consumed(*result.rows[0])

    def mark(
        self, consumer: int, worker: str, messages: str, *, alone: bool = False, crashes: int = 0, replaces: Sequence[int] = (),
    ) -> Steps[int]:
        """Commits a start mark: these messages are about to run on this connection."""
        result = yield Sql(self._mark, {
            "consumer": consumer, "worker": worker, "messages": messages, "alone": alone, "crashes": crashes,
            "replaces": list(replaces),
        })
        return int(result.rows[0][0])

    def unmark(self, runs: Sequence[int]) -> Steps[None]:
        yield Sql(self._unmark, {"runs": list(runs)}, rows=False)

    def void(self, worker: str, runs: Sequence[int]) -> Steps[None]:
        """These marks of a live worker say nothing about their messages."""
        yield Sql(self._void, {"worker": worker, "runs": list(runs)}, rows=False)

    def open_runs(self, consumer: int, worker: str) -> Steps[list[OpenRun]]:
        """Marks of other workers that were never closed: their messages run alone."""
        yield Sql(self._sweep, {"consumer": consumer, "worker": worker}, rows=False)
        result = yield Sql(self._open_runs, {"consumer": consumer, "worker": worker})
        return [
            OpenRun(id, worker_of, messages, alone, crashes, _alive(worker_of, connected))
            for id, worker_of, messages, alone, crashes, connected in result.rows
        ]

    def admit(self, consumer: int, entries: Sequence[Entry], *, lock_timeout_ms: int | None, lease_s: float) -> Steps[Admitted]:
        """The first statement of a work transaction: inbox rows (in the order of the key, so that two batches never wait
        for each other crosswise), the settings that end this transaction when the process freezes, and the keys that wait."""
        ordered = sorted(entries, key=_by_key)
        result = yield Sql(self._admit, {
            "consumer": consumer, "sources": texts(e.source for e in ordered), "ids": texts(e.id for e in ordered),
            "hashes": byteas(e.hash for e in ordered),
            "lock_timeout": None if lock_timeout_ms is None else f"{lock_timeout_ms}ms", "lease": f"{int(lease_s * 1000)}ms",
        })
        transaction, sources, ids, topics, keyed, keys = result.rows[0]
        fresh = zip(sources, ids, strict=True) if ids is not None else ((e.source, e.id) for e in ordered)
        waiting = frozenset(map(KeyOf, topics, keyed, keys)) if keys is not None else None
        return Admitted(set(fresh), transaction, waiting)

    def known(self, consumer: int, names: Sequence[tuple[str, str]]) -> Steps[dict[tuple[str, str], Known]]:
        """What the inbox says of these (source, id)."""
        result = yield Sql(self._known, {
            "consumer": consumer, "sources": texts(source for source, _ in names), "ids": texts(id for _, id in names),
        })
        return {(source, id): Known(state, bytes(hash)) for source, id, state, hash in result.rows}

    def blocked(self, consumer: int, keys: Sequence[KeyOf]) -> Steps[dict[KeyOf, str]]:
        """The state of those keys that wait, locked until the end of the transaction."""
        result = yield Sql(self._blocked, {
            "consumer": consumer, "topics": texts(k.topic for k in keys), "keyed": booleans(k.keyed for k in keys),
            "keys": byteas(k.key for k in keys),
        })
        return {KeyOf(topic, keyed, bytes(key)): state for topic, keyed, key, state in result.rows}

    def gate(self, run: int | None, transaction: str, *, last: bool) -> Steps[None]:
        """Just before COMMIT, or with it: opens the gate of the trigger, and closes the start mark with the ``last``
        transaction. Raises MarkGone; BE001 where this is not the ``transaction`` that the worker began."""
        try:
            yield Sql(self._gate, {"run": run, "last": str(last), "transaction": transaction})
        except Exception as error:
            if sqlstate_of(error) == _MARK_GONE:
                raise MarkGone(f"start mark {run} is gone: somebody took this worker for dead") from error
            raise

    def end_frozen(self, waiting: Sequence[int], worker: str, lease_s: float) -> Steps[int]:
        """Ends backends that hold what ``waiting`` backends wait for and whose worker was silent for a lease."""
        result = yield Sql(self._end_frozen, {"waiting": list(waiting), "worker": worker, "lease_s": float(lease_s)})
        return len(result.rows)


def _by_key(entry: Entry) -> tuple[str, str]:
    return entry.id, entry.source


def _alive(worker: str, connected: bool) -> bool:
    """A process of this host is asked for; of another host's only the connection is known, which may outlive it a little."""
    here = lives(worker)
    return connected if here is None else here
