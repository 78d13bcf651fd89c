"""Status: the first numbers [M1], read from the databases alone, so they are there when no relay and no worker is.

Every count stops at 10,000 (then ``at_least`` is true): a status must not cost more because more is wrong.
"""

from __future__ import annotations

import json
import time
from datetime import datetime
from typing import Any

from bothends.core.capacity import drain_s, rate_per_s
from bothends.stores.postgresql.admin import PostgresqlAdmin
from bothends.stores.steps import Steps

__all__ = ["COUNT_MAX", "consumer_status", "outbox_status"]

COUNT_MAX = 10_000
SCAN_MAX = 200_000
_RECENT_MAX = 1_000
_WINDOW_S = 60.0
_LOST_S = 7 * 86_400.0


def _age_s(rfc3339: str | None) -> float | None:
    """How old the event's own time is. It was written by the application's clock: shown, never decided upon."""
    if not rfc3339:
        return None
    try:
        return max(0.0, time.time() - datetime.fromisoformat(rfc3339).timestamp())
    except (ValueError, OverflowError, OSError):
        return None


def outbox_status(admin: PostgresqlAdmin) -> Steps[dict[str, Any]]:
    """What waits in one outbox, by topic, how fast it comes and goes, and the relays at work. ``in_log_bytes``: what a slot of
    messages holds back, where there is one; what waits in it nobody can count, nor say when it will be done."""
    topics: dict[str, dict[str, Any]] = {}
    scanned = True
    found = yield admin.waiting(COUNT_MAX, SCAN_MAX)
    for topic, count, oldest, whole in found.rows:
        topics[topic] = {"topic": topic, "waiting": count, "oldest_age_s": _age_s(oldest), "held": 0, "dead": 0}
        scanned = scanned and bool(whole)
    counted = sum(t["waiting"] for t in topics.values())
    at_least = counted >= COUNT_MAX or not scanned
    waiting = counted
    if at_least:
        about = yield admin.backlog()
        waiting = max(counted, int(about.rows[0][0]))
    held = yield admin.sql(
        """select topic, state, count(*), min(time) from
           (select topic, state, time from {s}.held order by seq limit :cap) counted
           group by topic, state""", cap=COUNT_MAX)
    for topic, state, count, oldest in held.rows:
        row = topics.setdefault(topic, {"topic": topic, "waiting": 0, "oldest_age_s": None, "held": 0, "dead": 0})
        row["dead" if state == "dead" else "held"] += count
        if state == "place":
            row["place_away"] = True
        if state != "dead":
            row["oldest_age_s"] = max(row["oldest_age_s"] or 0.0, _age_s(oldest) or 0.0)
    delayed = yield admin.sql(
        "select count(*) from (select 1 from {s}.delayed limit :cap) counted", cap=COUNT_MAX)
    rate_in, rate_out = yield from _rates(admin)
    slots = yield from _slots(admin)
    unread = [s["retained_bytes"] or 0 for s in slots if s["carries"] == "messages" and s["wal_status"] != "missing"]
    ages = [t["oldest_age_s"] for t in topics.values() if t["oldest_age_s"] is not None]
    return {
        "waiting": waiting, "at_least": at_least, "oldest_age_s": _rounded(max(ages, default=None)),
        "held": sum(t["held"] for t in topics.values()), "dead": sum(t["dead"] for t in topics.values()),
        "delayed": delayed.rows[0][0], "in_per_s": _rounded(rate_in), "out_per_s": _rounded(rate_out),
        "in_log_bytes": sum(unread) if unread else None,
        "drain_s": None if unread else _rounded(drain_s(waiting, rate_in, rate_out)),
        "topics": [{**t, "oldest_age_s": _rounded(t["oldest_age_s"])} for _, t in sorted(topics.items())],
        "relays": (yield from _relays(admin)), "slots": slots,
        "slots_lost": (yield from _slots_lost(admin)),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3 if value < 10 else 1)


def _rates(admin: PostgresqlAdmin) -> Steps[tuple[float, float]]:
    out = yield admin.sql(
        "select {age:at}, published from {s}.relay_progress order by id desc limit :cap", cap=_RECENT_MAX)
    rate_out = rate_per_s([r[0] for r in out.rows], [r[1] for r in out.rows], window_s=_WINDOW_S)
    came = yield admin.recent_times(_RECENT_MAX)
    ages = sorted(age for age in (_age_s(row[0]) for row in came.rows) if age is not None)
    rate_in = rate_per_s(ages, window_s=_WINDOW_S)
    if not admin.keeps_published and len(came.rows) < _RECENT_MAX:
        rate_in = max(rate_in, rate_out)  # what was published is gone: at least as much has come
    return rate_in, rate_out


def _relays(admin: PostgresqlAdmin) -> Steps[list[dict[str, Any]]]:
    found = yield admin.sql(
        """select r.name, r.host, r.pid, r.state, r.detail, r.wants, r.source, r.reason, {age:r.started_at},
               (select count(*) from {s}.relay_lanes l where l.relay = r.id)
           from {s}.relays r where r.lease_until > {now} order by r.id limit 100""")
    names = ("name", "host", "pid", "state", "detail", "wants", "source", "reason", "up_s", "lanes")
    return [{**dict(zip(names, row, strict=True)), "up_s": round(row[8], 1)} for row in found.rows]


def _slots(admin: PostgresqlAdmin) -> Steps[list[dict[str, Any]]]:
    """Where relays read the log: their slots, and what each holds back."""
    if not admin.has_log:
        return []
    found = yield from admin.slots()
    return [
        {"slot": slot, "carries": "messages" if messages else "rows", "position": position, "active": bool(active),
         "wal_status": wal_status or "missing", "retained_bytes": retained, "temporary": temporary}
        for slot, messages, position, active, wal_status, retained, temporary in found.rows
    ]


def _slots_lost(admin: PostgresqlAdmin) -> Steps[list[dict[str, Any]]]:
    """Slots of messages that relays found gone in the last days, and the range of the log in which what was added is lost."""
    if not admin.has_log:
        return []
    found = yield admin.sql(
        """select {at:at}, target, reason, detail from
           (select * from {s}.audit order by id desc limit :cap) recent
           where verb = 'lost the slot' and at > {ago:since_s} limit 10""", cap=_RECENT_MAX, since_s=_LOST_S)
    return [{"at": at, "slot": slot, "why": why, **json.loads(detail)} for at, slot, why, detail in found.rows]


def consumer_status(admin: PostgresqlAdmin) -> Steps[list[dict[str, Any]]]:
    """Each consumer that has ever run on this database: what waits and what was given up on. Its lag is the broker's to
    say and is added by the caller."""
    found = yield admin.sql("select id, name, owner, paused, topics from {s}.consumers order by name limit 1000")
    rows = []
    for number, name, owner, paused, topics in found.rows:
        keys = yield admin.sql(
            """select state, count(*), max({age:since}) from
               (select state, since from {s}.blocked_keys where consumer = :consumer limit :cap) counted group by state
            """, consumer=number, cap=COUNT_MAX)
        parked = yield admin.sql(
            "select count(*) from (select 1 from {s}.parked where consumer = :consumer limit :cap) counted",
            consumer=number, cap=COUNT_MAX)
        dead = yield admin.sql(
            """select count(*), max({age:at}), count(distinct fingerprint) from
               (select at, fingerprint from {s}.dead_letters
                where consumer = :consumer and state = 'open' limit :cap) counted
            """, consumer=number, cap=COUNT_MAX)
        recent = yield admin.sql(
            "select {age:changed_at} from {s}.inbox where consumer = :consumer and state = 'p' "
            "order by changed_at desc limit :cap", consumer=number, cap=_RECENT_MAX)
        states = {state: count for state, count, _ in keys.rows}
        rows.append({
            "consumer": name, "owner": owner, "paused": bool(paused), "declared_topics": topics,
            "parked_keys": sum(states.values()), "held_keys": states.get("held", 0),
            "schema_keys": states.get("schema", 0),
            "oldest_parked_age_s": _rounded(max((age for _, _, age in keys.rows), default=None)),
            "parked": parked.rows[0][0], "dead": dead.rows[0][0], "fingerprints": dead.rows[0][2],
            "oldest_dead_age_s": _rounded(dead.rows[0][1]),
            "processed_per_s": _rounded(rate_per_s([r[0] for r in recent.rows], window_s=_WINDOW_S)),
            "lag": None, "drain_s": None,
        })
    return rows
