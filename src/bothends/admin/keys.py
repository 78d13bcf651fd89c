"""Held and retrying keys of a consumer: list, show, retry, skip, replace. Those of the outbox are in ``outbox.py``."""

from __future__ import annotations

from typing import Any

from bothends.admin.acts import Act, NotThere, Refused, audit, consumer_id, listed
from bothends.admin.keytext import shown
from bothends.admin.redrive import redrive
from bothends.core.hashing import content_hash
from bothends.stores.postgresql.admin import PostgresqlAdmin
from bothends.stores.steps import Steps

__all__ = ["keys", "replace", "retry", "show", "skip"]

COUNT_MAX = 10_000
_WHERE = "consumer = :consumer and topic = :topic and keyed = :keyed and key = :key"


def keys(
    admin: PostgresqlAdmin, consumer: str, *, state: str | None = None, limit: int = 100
) -> Steps[list[dict[str, Any]]]:
    """Keys that wait, the longest waiting first: state, age, next try, how many wait (counted to 10,000)."""
    number = yield from consumer_id(admin, consumer)
    params: dict[str, Any] = {"consumer": number, "limit": limit, "cap": COUNT_MAX}
    narrowed = ""
    if state is not None:
        narrowed, params["state"] = "and k.state = :state", state
    found = yield admin.sql(
        f"""select k.topic, k.keyed, k.key, k.state, {{age:k.since}}, {{at:k.next_at}},
               (select count(*) from (select 1 from {{s}}.parked p where p.consumer = k.consumer and p.topic = k.topic
                    and p.keyed = k.keyed and p.key = k.key limit :cap) counted)
            from {{s}}.blocked_keys k where k.consumer = :consumer {narrowed} order by k.since limit :limit""",
        **params)
    rows = []
    for topic, keyed, key, key_state, age_s, next_at, waiting in found.rows:
        rows.append({
            "consumer": consumer, "topic": topic, "key": shown(key) if keyed else None,
            "message_id": None if keyed else shown(key), "state": _state(key_state), "age_s": round(age_s, 1),
            "next_at": None if key_state == "held" else next_at, "waiting": waiting,
        })
    return rows


def _state(stored: str) -> str:
    return {"retrying": "parked"}.get(stored, stored)


def _find(
    admin: PostgresqlAdmin, consumer: str, key: bytes, topic: str | None, lock: str = "{lock}"
) -> Steps[dict[str, Any]]:
    """The place of one waiting key, its row locked."""
    number = yield from consumer_id(admin, consumer)
    params: dict[str, Any] = {"consumer": number, "key": key}
    if topic is not None:
        params["topic"] = topic
    found = yield admin.sql(
        f"select topic, keyed, state from {{s}}.blocked_keys where consumer = :consumer and key = :key "
        f"{'and topic = :topic' if topic is not None else ''} order by topic, keyed {lock}", **params)
    if not found.rows:
        raise NotThere(
            f"no key {shown(key)!r} waits at {consumer}; `bothends keys list --consumer {consumer}` shows them")
    if len(found.rows) > 1:
        topics = ", ".join(sorted({row[0] for row in found.rows}))
        raise Refused(f"key {shown(key)!r} waits in several topics ({topics}); say which with --topic")
    topic_, keyed, state = found.rows[0]
    return {"consumer": number, "topic": topic_, "keyed": keyed, "key": key, "state": state}


def _place(found: dict[str, Any]) -> dict[str, Any]:
    return {name: found[name] for name in ("consumer", "topic", "keyed", "key")}


def show(
    admin: PostgresqlAdmin, consumer: str, key: bytes, *, topic: str | None = None, limit: int = 100
) -> Steps[dict[str, Any]]:
    """One key: its head, what waits behind it in order, and the open dead letters that hold it."""
    found = yield from _find(admin, consumer, key, topic, lock="")
    parked = yield admin.sql(
        f"""select position, id, source, type, record_partition, record_offset, attempts, crashes, redrives, reason,
               error, {{at:parked_at}} from {{s}}.parked where {_WHERE} order by position limit :limit""",
        **_place(found), limit=limit)
    names = ("position", "id", "source", "type", "partition", "offset", "attempts", "crashes", "redrives", "reason",
             "error", "parked_at")
    dead = yield from _holding(admin, found)
    return {
        "consumer": consumer, "topic": found["topic"], "key": shown(key), "state": _state(found["state"]),
        "waiting": [dict(zip(names, row, strict=True)) for row in parked.rows], "dead_letters": dead,
    }


def _holding(admin: PostgresqlAdmin, found: dict[str, Any]) -> Steps[list[int]]:
    """Open letters that are a reason to hold the key, the earliest first."""
    rows = yield admin.sql(
        f"select id from {{s}}.dead_letters where {_WHERE} and state = 'open' "
        f"and reason not in ('conflict', 'skipped') order by position limit 100", **_place(found))
    return [int(row[0]) for row in rows.rows]


def retry(admin: PostgresqlAdmin, consumer: str, key: bytes, act: Act, *, topic: str | None = None) -> Steps[str]:
    """The key's head runs now. A key that is held behind a dead letter has that letter redriven."""
    found = yield from _find(admin, consumer, key, topic)
    redriven = None
    if found["state"] == "held":
        holding = yield from _holding(admin, found)
        if holding:
            redriven = holding[0]
            yield from redrive(admin, redriven, act)
    yield from _go(admin, found)
    yield from audit(admin, act, "keys retry", f"key {shown(key)} of {consumer}", {
        "topic": found["topic"], "redriven": redriven})
    return "due now" if redriven is None else f"dead letter {redriven} redriven, due now"


def _go(admin: PostgresqlAdmin, found: dict[str, Any]) -> Steps[None]:
    yield admin.sql(
        f"update {{s}}.blocked_keys set state = 'retrying', next_at = {{now}} where {_WHERE}", **_place(found))


def skip(admin: PostgresqlAdmin, consumer: str, key: bytes, act: Act, *, topic: str | None = None) -> Steps[str]:
    """The key's failed head becomes a dead letter (reason ``skipped``) and the key goes on. Where the head is a dead
    letter already, which holds the key, the key just goes on. A head that has not failed stays: so skipping twice skips
    once."""
    found = yield from _find(admin, consumer, key, topic)
    moved: int | None = None
    held_by = (yield from _holding(admin, found)) if found["state"] == "held" else []
    if held_by:
        names: dict[str, Any] = {}
        yield admin.sql(
            f"update {{s}}.dead_letters set reason = 'skipped', changed_at = {{now}} "
            f"where id in ({listed(names, 'id', held_by)})", **names)
    else:
        if found["state"] == "retrying" and not (yield from _head_has_failed(admin, found)):
            return "its head has not failed, so nothing was skipped"  # most often: somebody else skipped just now
        moved = yield from _bury_head(admin, found)
    yield from _go(admin, found)
    yield from audit(admin, act, "keys skip", f"key {shown(key)} of {consumer}", {
        "topic": found["topic"], "dead_letter": moved, "held_by": held_by})
    if moved is not None:
        return f"head moved to dead letter {moved}; the key goes on"
    return "the key goes on"


def _head(admin: PostgresqlAdmin, found: dict[str, Any]) -> Steps[tuple[int, str, str] | None]:
    row = yield admin.sql(
        f"select position, id, source from {{s}}.parked where {_WHERE} order by position limit 1 {{lock}}",
        **_place(found))
    return row.rows[0] if row.rows else None


def _head_has_failed(admin: PostgresqlAdmin, found: dict[str, Any]) -> Steps[bool]:
    row = yield admin.sql(
        f"select attempts + crashes from {{s}}.parked where {_WHERE} order by position limit 1", **_place(found))
    return bool(row.rows) and row.rows[0][0] > 0


def _bury_head(admin: PostgresqlAdmin, found: dict[str, Any]) -> Steps[int | None]:
    head = yield from _head(admin, found)
    if head is None:
        return None
    position, id_, source = head
    place = {**_place(found), "position": position}
    reused = yield admin.sql(
        f"select dead_letter from {{s}}.parked where {_WHERE} and position = :position", **place)
    letter = reused.rows[0][0]
    if letter is not None:  # a redrive that is skipped: the letter that it came from opens again
        yield admin.sql(
            "update {s}.dead_letters set state = 'open', reason = 'skipped', changed_at = {now} where id = :id",
            id=letter)
    else:
        made = yield admin.sql(
            f"""insert into {{s}}.dead_letters (consumer, owner, reason, fingerprint, error, source, message_id, type,
                   hash, topic, record_partition, record_offset, timestamp_ms, keyed, key, record_key, position, body,
                   headers, attempts, crashes, redrives, history)
                select consumer, coalesce((select owner from {{s}}.consumers c where c.id = :consumer), ''), 'skipped',
                   'skipped', error, source, id, type, hash, topic, record_partition, record_offset, timestamp_ms,
                   keyed, key, record_key, position, body, headers, attempts, crashes, redrives, history
                from {{s}}.parked where {_WHERE} and position = :position returning id""", **place)
        letter = made.rows[0][0]
    yield admin.sql(f"delete from {{s}}.parked where {_WHERE} and position = :position", **place)
    yield admin.sql(
        "update {s}.inbox set state = 'd', changed_at = {now} where consumer = :consumer and id = :id "
        "and source = :source and state = 'k'", consumer=found["consumer"], id=id_, source=source)
    return int(letter)


def replace(
    admin: PostgresqlAdmin, consumer: str, key: bytes, body: bytes | None, act: Act, *, topic: str | None = None
) -> Steps[str]:
    """The key's head gets another body and runs now, under its id; the audit row keeps both hashes. A key that is held
    behind a dead letter has that letter edited and redriven."""
    found = yield from _find(admin, consumer, key, topic)
    holding = (yield from _holding(admin, found)) if found["state"] == "held" else []
    if holding:
        from bothends.admin.dead import edit

        yield from edit(admin, holding[0], body, act)
        yield from redrive(admin, holding[0], act)
        return f"dead letter {holding[0]} edited and redriven"
    head = yield from _head(admin, found)
    if head is None:
        raise Refused(f"nothing waits behind key {shown(key)!r}; `bothends keys retry` lets it go on")
    position, id_, source = head
    old = yield admin.sql(
        f"select hash from {{s}}.parked where {_WHERE} and position = :position", **_place(found), position=position)
    yield admin.sql(
        f"update {{s}}.parked set body = :body where {_WHERE} and position = :position",
        **_place(found), position=position, body=body)
    yield from _go(admin, found)
    yield from audit(admin, act, "keys replace", f"key {shown(key)} of {consumer}", {
        "topic": found["topic"], "message_id": id_, "source": source, "hash": bytes(old.rows[0][0]).hex(),
        "edited_hash": content_hash(body).hex()})
    return f"{id_} has its new body, due now"
