"""Trace: the life of one event, as far as one database knows it [M4]: outbox, inboxes, retries, dead letters, effects,
and the events it caused (whose ids can be derived from it)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from bothends.admin.acts import listed
from bothends.admin.keytext import shown
from bothends.ids import derived_id
from bothends.stores.postgresql.admin import PostgresqlAdmin
from bothends.stores.steps import Steps

__all__ = ["in_order", "trace"]

CAUSED_MAX = 50
"""Events per handler run that are looked for."""
_INBOX = {"p": "processed", "k": "parked", "d": "dead", "x": "discarded"}


def trace(admin: PostgresqlAdmin, event_id: str) -> Steps[list[dict[str, Any]]]:
    """What is known of ``event_id``: one entry per place, in order of time."""
    found: list[dict[str, Any]] = []
    for table, place in (("outbox", "outbox"), ("held", "outbox (held)"), ("delayed", "outbox (delayed)")):
        rows = yield admin.sql(
            f"select source, type, topic, key, time from {{s}}.{table} where id = :id limit 10", id=event_id)
        found += [
            {"place": place, "source": source, "type": type_, "topic": topic, "key": shown(key), "at": at}
            for source, type_, topic, key, at in rows.rows
        ]
    consumers = yield admin.sql("select id, name, service from {s}.consumers order by name limit 1000")
    sources: set[str] = {str(entry["source"]) for entry in found}
    for number, name, _ in consumers.rows:
        entries = yield from _at_consumer(admin, number, name, event_id)
        sources.update(str(e["source"]) for e in entries)
        found += entries
    found += yield from _caused(admin, event_id, sources, [(name, service) for _, name, service in consumers.rows])
    return in_order(found)


def in_order(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """By time, which applications wrote for outboxes and databases for the rest; one without a time comes last."""
    return sorted(entries, key=_when)


def _when(entry: dict[str, Any]) -> float:
    try:
        return datetime.fromisoformat(entry["at"]).timestamp()
    except (TypeError, ValueError, OverflowError, OSError):
        return math.inf


def _known_as(name: str, service: str) -> list[str]:
    """What a consumer of that full name may be called without its prefix, of which ids are derived."""
    return [name[n:] for n in range(len(name)) if name.startswith(f"{service}.", n)] or [name]


def _at_consumer(admin: PostgresqlAdmin, number: int, name: str, event_id: str) -> Steps[list[dict[str, Any]]]:
    found: list[dict[str, Any]] = []
    here = {"consumer": number, "id": event_id}
    rows = yield admin.sql(
        "select source, state, {at:changed_at} from {s}.inbox where consumer = :consumer and id = :id limit 10", **here)
    found += [{"place": "inbox", "consumer": name, "source": s, "state": _INBOX.get(state, state), "at": at}
              for s, state, at in rows.rows]
    rows = yield admin.sql(
        "select source, topic, record_partition, record_offset, attempts, reason, error, {at:parked_at} "
        "from {s}.parked where consumer = :consumer and id = :id limit 10", **here)
    found += [{"place": "parked", "consumer": name, "source": s, "topic": topic, "partition": p, "offset": o,
               "attempts": attempts, "reason": reason, "error": error, "at": at}
              for s, topic, p, o, attempts, reason, error, at in rows.rows]
    rows = yield admin.sql(
        "select id, source, state, topic, record_partition, record_offset, attempts, redrives, reason, error, {at:at} "
        "from {s}.dead_letters where consumer = :consumer and message_id = :id order by id limit 10", **here)
    found += [{"place": "dead letter", "consumer": name, "dead_letter": i, "source": s, "state": state, "topic": topic,
               "partition": p, "offset": o, "attempts": attempts, "redrives": redrives, "reason": reason,
               "error": error, "at": at}
              for i, s, state, topic, p, o, attempts, redrives, reason, error, at in rows.rows]
    rows = yield admin.sql(
        "select name, source, state, key, runs, {at:changed_at} from {s}.effects "
        "where consumer = :consumer and message_id = :id order by started_at limit 100", **here)
    found += [{"place": "effect", "consumer": name, "source": s, "effect": effect, "state": state, "key": key,
               "runs": runs, "at": at} for effect, s, state, key, runs, at in rows.rows]
    return found


def _caused(
    admin: PostgresqlAdmin, event_id: str, sources: set[str], consumers: list[tuple[str, str]]
) -> Steps[list[dict[str, Any]]]:
    found: list[dict[str, Any]] = []
    for source in sorted(sources)[:10]:
        for consumer, service in consumers:
            ids = [derived_id(source, event_id, known, n) for known in _known_as(consumer, service) for n in range(CAUSED_MAX)]
            params: dict[str, Any] = {}
            rows = yield admin.sql(
                f"select id, source, type, topic, key, time from {{s}}.outbox "
                f"where id in ({listed(params, 'id', ids)})", **params)
            found += [{"place": "caused", "consumer": consumer, "id": i, "source": s, "type": type_, "topic": topic,
                       "key": shown(key), "at": at} for i, s, type_, topic, key, at in rows.rows]
    return found
