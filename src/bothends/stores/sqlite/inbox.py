"""Inbox on SQLite: the same steps as on PostgreSQL, one writer at a time.

A work transaction begins with BEGIN IMMEDIATE, so nothing can slip between admission and the look-up of blocked keys, and
no lock needs a timeout of its own. Leases go by the boot clock, which nobody can set; delays by the wall clock.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from bothends.letters import KeyOf
from bothends.processes import lives
from bothends.stores.inboxes import WAITING_MAX, Admitted, Consumed, Entry, Known, MarkGone, OpenRun, Registered
from bothends.stores.sqlite.parking import NOW, SqliteParking
from bothends.stores.steps import Sql, Steps

__all__ = ["SqliteInbox"]

_CONSUMERS_MAX = _OPEN_RUNS_MAX = 10_000
_CHUNK = 500


class SqliteInbox(SqliteParking):
    """Step functions; the consumer is given by its number, from ``register``."""

    gate_with_commit = False

    def register(self, *, name: str, service: str, owner: str, start_at: str, topics: Sequence[str]) -> Steps[Registered]:
        """The consumer's row, made at its first start; ``start_at`` stays as it was then [A7]."""
        before = yield Sql("select 1 from bothends_consumers where name = :name", {"name": name})
        result = yield Sql(
            "insert into bothends_consumers (name, service, owner, start_at, topics) "
            "values (:name, :service, :owner, :start_at, :topics) "
            "on conflict (name) do update set owner = excluded.owner, topics = excluded.topics "
            "returning id, start_at, paused, processed",
            {"name": name, "service": service, "owner": owner, "start_at": start_at, "topics": json.dumps(list(topics))},
        )
        id, start, paused, processed = result.rows[0]
        return Registered(id, start, bool(paused), not before.rows, processed)

    def rename(self, alias: str, name: str) -> Steps[bool]:
        """Takes over the inbox of a consumer that was called ``alias``, unless ``name`` has one already."""
        result = yield Sql(
            "update bothends_consumers set name = :name where name = :alias "
            "and not exists (select 1 from bothends_consumers where name = :name) returning id",
            {"alias": alias, "name": name},
        )
        return bool(result.rows)

    def recorded(self) -> Steps[list[tuple[str, str]]]:
        """(name, service) of the consumers that have run on this database."""
        result = yield Sql(f"select name, service from bothends_consumers order by name limit {_CONSUMERS_MAX}")
        return [(name, service) for name, service in result.rows]

    def consumed(self, consumer: int, processed: int) -> Steps[Consumed]:
        """Adds to the counter; whether an operator has paused the consumer, and the database's time."""
        if processed:
            yield Sql(
                "update bothends_consumers set processed = processed + :processed where id = :consumer",
                {"consumer": consumer, "processed": processed}, rows=False,
            )
        result = yield Sql(f"select paused, {NOW} from bothends_consumers where id = :consumer", {"consumer": consumer})
        paused, now = result.rows[0]
        return Consumed(bool(paused), now)

    def mark(
        self, consumer: int, worker: str, messages: str, *, alone: bool = False, crashes: int = 0, replaces: Sequence[int] = (),
    ) -> Steps[int]:
        """Commits a start mark. It guards against the death of a process, not of the machine: no flush to disk."""
        yield Sql("pragma synchronous = normal", rows=False)
        try:
            result = yield Sql(
                "insert into bothends_runs (consumer, worker, backend_pid, messages, alone, crashes) "
                "values (:consumer, :worker, :pid, :messages, :alone, :crashes) returning id",
                {"consumer": consumer, "worker": worker, "pid": os.getpid(), "messages": messages, "alone": int(alone),
                 "crashes": crashes},
            )
            if replaces:
                yield from self.unmark(replaces)
        except Exception:
            yield Sql("pragma synchronous = full", rows=False)
            raise
        yield Sql("pragma synchronous = full", rows=False)
        return int(result.rows[0][0])

    def unmark(self, runs: Sequence[int]) -> Steps[None]:
        yield Sql(
            "delete from bothends_runs where id in (select value from json_each(:runs))",
            {"runs": json.dumps(list(runs))}, rows=False,
        )

    def void(self, worker: str, runs: Sequence[int]) -> Steps[None]:
        """These marks of a live worker say nothing about their messages."""
        yield Sql(
            "update bothends_runs set voided = 1 where worker = :worker and id in (select value from json_each(:runs))",
            {"worker": worker, "runs": json.dumps(list(runs))}, rows=False,
        )

    def open_runs(self, consumer: int, worker: str) -> Steps[list[OpenRun]]:
        """Marks of other workers that were never closed: their messages run alone."""
        yield Sql(
            f"""delete from bothends_runs as r where r.consumer = :consumer and r.worker <> :worker
            and (r.opened < {NOW} - 7 * 86400.0 or (r.alone = 0 or r.voided) and not exists (
                select 1 from json_each(r.messages) m where not exists (
                    select 1 from bothends_inbox i where i.consumer = r.consumer
                    and i.source = m.value ->> 0 and i.id = m.value ->> 1)))""",
            {"consumer": consumer, "worker": worker}, rows=False,
        )
        result = yield Sql(
            "select id, worker, messages, alone, crashes from bothends_runs where consumer = :consumer "
            f"and worker <> :worker and voided = 0 order by id limit {_OPEN_RUNS_MAX}",
            {"consumer": consumer, "worker": worker},
        )
        return [
            OpenRun(id, name, messages, bool(alone), crashes, bool(lives(name)))
            for id, name, messages, alone, crashes in result.rows
        ]

    def admit(self, consumer: int, entries: Sequence[Entry], *, lock_timeout_ms: int | None, lease_s: float) -> Steps[Admitted]:
        """The first statement of a work transaction: inbox rows, and the keys that wait. The transaction has the file's
        write lock already."""
        fresh: set[tuple[str, str]] = set()
        ordered = sorted(entries, key=lambda e: (e.id, e.source))
        for begin in range(0, len(ordered), _CHUNK):
            part = ordered[begin:begin + _CHUNK]
            values = ", ".join(f"(:consumer, :s{n}, :i{n}, :h{n})" for n in range(len(part)))
            params: dict[str, Any] = {"consumer": consumer}
            for n, entry in enumerate(part):
                params[f"s{n}"], params[f"i{n}"], params[f"h{n}"] = entry
            result = yield Sql(
                f"insert into bothends_inbox (consumer, source, id, hash) values {values} "
                "on conflict do nothing returning source, id", params,
            )
            fresh.update((source, id) for source, id in result.rows)
        result = yield Sql(
            "select topic, keyed, key from bothends_blocked_keys where consumer = :consumer limit :most",
            {"consumer": consumer, "most": WAITING_MAX + 1},
        )
        waiting = frozenset(KeyOf(topic, bool(keyed), key) for topic, keyed, key in result.rows)
        return Admitted(fresh, "", waiting if len(result.rows) <= WAITING_MAX else None)

    def known(self, consumer: int, names: Sequence[tuple[str, str]]) -> Steps[dict[tuple[str, str], Known]]:
        """What the inbox says of these (source, id)."""
        result = yield Sql(
            "select i.source, i.id, i.state, i.hash from json_each(:names) n cross join bothends_inbox i "
            "where i.consumer = :consumer and i.id = n.value ->> 1 and i.source = n.value ->> 0",  # n first: the inbox is long
            {"consumer": consumer, "names": json.dumps(list(names))},
        )
        return {(source, id): Known(state, hash) for source, id, state, hash in result.rows}

    def blocked(self, consumer: int, keys: Sequence[KeyOf]) -> Steps[dict[KeyOf, str]]:
        """The state of those keys that wait. The write lock keeps it so until the end of the transaction."""
        found: dict[KeyOf, str] = {}
        for begin in range(0, len(keys), _CHUNK):
            part = keys[begin:begin + _CHUNK]
            params: dict[str, Any] = {"consumer": consumer}
            for n, key in enumerate(part):
                params[f"t{n}"], params[f"w{n}"], params[f"k{n}"] = key.topic, int(key.keyed), key.key
            values = ", ".join(f"(:t{n}, :w{n}, :k{n})" for n in range(len(part)))
            result = yield Sql(
                f"with n (topic, keyed, key) as (values {values}) "
                "select b.topic, b.keyed, b.key, b.state from n join bothends_blocked_keys b "
                "on b.consumer = :consumer and b.topic = n.topic and b.keyed = n.keyed and b.key = n.key", params,
            )
            found.update((KeyOf(topic, bool(keyed), key), state) for topic, keyed, key, state in result.rows)
        return found

    def gate(self, run: int | None, transaction: str, *, last: bool) -> Steps[None]:
        """Just before COMMIT: closes the start mark with the ``last`` transaction. Raises MarkGone."""
        if run is None:
            return
        if last:
            result = yield Sql("delete from bothends_runs where id = :run and voided = 0 returning id", {"run": run})
        else:
            result = yield Sql("select id from bothends_runs where id = :run and voided = 0", {"run": run})
        if not result.rows:
            raise MarkGone(f"start mark {run} is gone: somebody took this worker for dead")

    def end_frozen(self, waiting: Sequence[int], worker: str, lease_s: float) -> Steps[int]:
        """A frozen writer holds the whole file; only the supervisor that watches its process can end it."""
        yield from ()
        return 0
