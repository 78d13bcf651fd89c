"""Events that the broker refused, and their keys, in the outbox. Only the relay that owns a lane changes its rows, so
an operator leaves a request, which that relay carries out; it stays until a relay runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from bothends.admin.acts import Act, NotThere, Refused, audit, listed
from bothends.admin.keytext import shown
from bothends.core.hashing import content_hash
from bothends.stores.postgresql.admin import PostgresqlAdmin
from bothends.stores.steps import Steps

__all__ = ["dead", "keys", "replace", "request", "request_key"]

Request = Literal["retry", "skip", "discard"]
_NAMED_MAX = 10_000
_COLUMNS = ("seq", "id", "source", "type", "topic", "key", "state", "attempts", "reason", "error", "request", "at",
            "next_at")


def _rows(found: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    rows = [dict(zip(_COLUMNS, row, strict=True)) for row in found]
    for row in rows:
        row["key"] = shown(row["key"])
    return rows


def dead(admin: PostgresqlAdmin, *, seqs: Sequence[int] = (), limit: int = 100) -> Steps[list[dict[str, Any]]]:
    """Events given up on, in order. With ``seqs`` these alone, at most 10,000; NotThere for one that is none of them."""
    params: dict[str, Any] = {"limit": len(seqs) or limit}
    names = listed(params, "seq", seqs[:_NAMED_MAX])
    found = yield admin.sql(
        "select seq, id, source, type, topic, key, state, attempts, reason, error, owner_request, {at:held_at}, "
        f"{{at:next_at}} from {{s}}.held where state = 'dead' {f'and seq in ({names})' if names else ''} "
        "order by seq limit :limit", **params)
    rows = _rows(found.rows)
    if missing := sorted(set(seqs) - {row["seq"] for row in rows}):
        raise NotThere(f"no event {missing[0]} is dead in the outbox; `bothends dead list --outbox` shows them")
    return rows


def keys(admin: PostgresqlAdmin, *, limit: int = 100) -> Steps[list[dict[str, Any]]]:
    """The heads of keys, and of places, that wait."""
    found = yield admin.sql(
        "select seq, id, source, type, topic, key, state, attempts, reason, error, owner_request, {at:held_at}, "
        "{at:next_at} from {s}.held where state in ('retrying', 'place', 'dead') and not passed order by seq limit :limit",
        limit=limit)
    return _rows(found.rows)


def request(admin: PostgresqlAdmin, seq: int, what: Request, act: Act) -> Steps[bool]:
    """Leaves a request for one held event. False: it was asked before."""
    row = yield admin.sql("select id, state, owner_request from {s}.held where seq = :seq {lock}", seq=seq)
    if not row.rows:
        raise NotThere(f"no event {seq} is held in the outbox; `bothends dead list --outbox` shows them")
    id_, state, asked = row.rows[0]
    if state == "behind":
        raise Refused(f"event {seq} waits behind another of its key; act on that one: `bothends keys list --outbox`")
    if asked == what:
        return False
    yield admin.sql("update {s}.held set owner_request = :what where seq = :seq", what=what, seq=seq)
    yield from audit(admin, act, f"outbox {what}", f"event {seq}", {"id": id_, "state": state})
    return True


def request_key(
    admin: PostgresqlAdmin, key: bytes, what: Literal["retry", "skip"], act: Act, *, topic: str | None = None
) -> Steps[str]:
    """The same for the head of a key."""
    seq = yield from _head(admin, key, topic)
    new = yield from request(admin, seq, what, act)
    return f"event {seq}: {what} {'asked for' if new else 'was asked for before'}; a relay carries it out"


def _head(admin: PostgresqlAdmin, key: bytes, topic: str | None) -> Steps[int]:
    params: dict[str, Any] = {"key": key}
    if topic is not None:
        params["topic"] = topic
    found = yield admin.sql(
        f"select topic, min(seq) from {{s}}.held where key = :key and state <> 'behind' and not passed "
        f"{'and topic = :topic' if topic is not None else ''} group by topic order by topic", **params)
    if not found.rows:
        raise NotThere(f"no key {shown(key)!r} waits in the outbox; `bothends keys list --outbox` shows them")
    if len(found.rows) > 1:
        raise Refused(f"key {shown(key)!r} waits in {', '.join(r[0] for r in found.rows)}; say which with --topic")
    return int(found.rows[0][1])


def replace(
    admin: PostgresqlAdmin, key: bytes, body: bytes | None, act: Act, *, topic: str | None = None
) -> Steps[str]:
    """Gives a dead head another body, under its id, and asks for its retry. Only a dead one: a relay has no copy of it
    in hand."""
    seq = yield from _head(admin, key, topic)
    row = yield admin.sql("select id, body from {s}.held where seq = :seq and state = 'dead' {lock}", seq=seq)
    if not row.rows:
        raise Refused(f"event {seq} is still being tried; replace it once it is dead")
    id_, old = row.rows[0]
    yield admin.sql(
        "update {s}.held set body = :body, owner_request = 'retry' where seq = :seq and state = 'dead'",
        body=body, seq=seq)
    yield from audit(admin, act, "outbox replace", f"event {seq}", {
        "id": id_, "hash": content_hash(None if old is None else bytes(old)).hex(),
        "edited_hash": content_hash(body).hex()})
    return f"event {seq} has its new body; a relay publishes it"
