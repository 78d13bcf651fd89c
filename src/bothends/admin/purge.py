"""Purge: takes away what is older than its retention, in batches small enough to disturb nobody [C11].

Only processed inbox rows go: a parked, dead or discarded message pins its own. A row's age is counted against the
consumer's last activity before the grace period, not against now, so that a time out of service cannot eat the window:
what the broker delivers again after the restart is still recognised. Any number may purge at once: rows that another
one has locked are passed over.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bothends.admin.acts import in_transaction
from bothends.stores.connection import Connection
from bothends.stores.postgresql.admin import PostgresqlAdmin
from bothends.stores.steps import Steps, run

__all__ = [
    "BATCH_MAX", "Purged", "consumers", "inbox_batch", "inbox_cutoff_s", "purge_history", "purge_inbox", "report",
]

BATCH_MAX = 2_000
_BATCH_FIRST, _BATCH_MIN = 200, 20
_SLOW_S, _QUICK_S = 0.25, 0.05


@dataclass(slots=True)
class Purged:
    """What was removed, and the longest transaction, in seconds."""

    rows: dict[str, int] = field(default_factory=dict)
    longest_s: float = 0.0

    def add(self, what: str, count: int) -> None:
        self.rows[what] = self.rows.get(what, 0) + count


def inbox_batch(admin: PostgresqlAdmin, consumer: int, cutoff_s: float, limit: int) -> Steps[int]:
    """Deletes at most ``limit`` processed rows of a consumer that last changed more than ``cutoff_s`` ago."""
    done = yield admin.sql(
        """delete from {s}.inbox where (consumer, id, source) in (
               select consumer, id, source from {s}.inbox
               where consumer = :consumer and state = 'p' and changed_at < {ago:cutoff_s}
               order by changed_at limit :limit {skip})""", consumer=consumer, cutoff_s=cutoff_s, limit=limit)
    return done.count


def inbox_cutoff_s(admin: PostgresqlAdmin, consumer: int, keep_s: float, grace_s: float) -> Steps[float | None]:
    """How old a row must be to go, in seconds; None: none may. Counted from the newest activity that is older than
    ``grace_s``."""
    last = yield admin.sql(
        "select {age:changed_at} from {s}.inbox where consumer = :consumer and state = 'p' "
        "and changed_at < {ago:grace_s} order by changed_at desc limit 1", consumer=consumer, grace_s=grace_s)
    return float(last.rows[0][0]) + keep_s if last.rows else None


def purge_inbox(
    connection: Connection, admin: PostgresqlAdmin, consumer: int, name: str, keep_s: float, *, grace_s: float,
    purged: Purged, keep_going: Callable[[], bool] = lambda: True,
) -> None:
    """Removes a consumer's processed rows older than ``keep_s`` until none is left or ``keep_going()`` says no."""
    cutoff_s = run(inbox_cutoff_s(admin, consumer, keep_s, grace_s), connection)
    if cutoff_s is not None:
        _batches(connection, f"inbox {name}", purged, keep_going, partial(inbox_batch, admin, consumer, cutoff_s))


def purge_history(
    connection: Connection, admin: PostgresqlAdmin, keep_s: float, *, purged: Purged,
    keep_going: Callable[[], bool] = lambda: True,
) -> None:
    """Removes closed dead letters (with the inbox rows of discarded ones), settled effects whose inbox row is gone, and
    audit rows, all older than ``keep_s``."""
    for what, batch in (("dead letters", _letters), ("effects", _effects), ("audit", _audit)):
        _batches(connection, what, purged, keep_going, partial(batch, admin, keep_s))


def _batches(
    connection: Connection, what: str, purged: Purged, keep_going: Callable[[], bool], make: Callable[[int], Steps[int]]
) -> None:
    limit = _BATCH_FIRST
    while keep_going():
        began = time.monotonic()
        count = in_transaction(connection, partial(make, limit))
        took_s = time.monotonic() - began
        purged.add(what, count)
        purged.longest_s = max(purged.longest_s, took_s)
        if count < limit:
            return
        if took_s > _SLOW_S:
            limit = max(_BATCH_MIN, limit // 2)
        elif took_s < _QUICK_S:
            limit = min(BATCH_MAX, limit * 2)


def _letters(admin: PostgresqlAdmin, keep_s: float, limit: int) -> Steps[int]:
    found = yield admin.sql(
        "select id, state, consumer, source, message_id from {s}.dead_letters where state in ('done', 'discarded') "
        "and changed_at < {ago:keep_s} order by changed_at limit :limit {skip}", keep_s=keep_s, limit=limit)
    for id_, state, consumer, source, message_id in found.rows:
        if state == "discarded" and message_id:
            yield admin.sql(
                "delete from {s}.inbox where consumer = :consumer and id = :id and source = :source and state = 'x'",
                consumer=consumer, id=message_id, source=source)._replace(rows=False)
        yield admin.sql("delete from {s}.dead_letters where id = :id", id=id_)._replace(rows=False)
    return len(found.rows)


def _effects(admin: PostgresqlAdmin, keep_s: float, limit: int) -> Steps[int]:
    # The record of an effect must outlive its message: a copy that came after it would do the effect again.
    done = yield admin.sql(
        """delete from {s}.effects where (consumer, message_id, source, name) in (
               select e.consumer, e.message_id, e.source, e.name from {s}.effects e
               where e.changed_at < {ago:keep_s} and e.state in ('completed', 'refused', 'not_sent')
                   and not exists (select 1 from {s}.inbox i where i.consumer = e.consumer and i.id = e.message_id
                                   and i.source = e.source)
                   and not exists (select 1 from {s}.dead_letters d where d.consumer = e.consumer
                                   and d.message_id = e.message_id and d.state in ('open', 'redriven'))
               order by e.changed_at limit :limit {skip:e})""", keep_s=keep_s, limit=limit)
    return done.count


def _audit(admin: PostgresqlAdmin, keep_s: float, limit: int) -> Steps[int]:
    # Ids grow with time: only the oldest few are looked at, and no index on the time is needed.
    done = yield admin.sql(
        """delete from {s}.audit where id in (
               select id from (select id, at from {s}.audit order by id limit :limit) oldest
               where at < {ago:keep_s})""",
        keep_s=keep_s, limit=limit)
    return done.count


def consumers(admin: PostgresqlAdmin) -> Steps[list[tuple[int, str]]]:
    """(id, name) of the consumers that have run on this database."""
    found = yield admin.sql("select id, name from {s}.consumers order by id limit 1000")
    return [(int(row[0]), str(row[1])) for row in found.rows]


def report(purged: Purged) -> dict[str, Any]:
    """As JSON: rows per kind, and the longest transaction in seconds."""
    return {"removed": dict(sorted(purged.rows.items())), "longest_transaction_s": round(purged.longest_s, 4)}
