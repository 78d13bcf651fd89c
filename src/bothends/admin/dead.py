"""Dead letters: what was given up on, listed, shown, grouped, edited, discarded. Redrive is in ``redrive.py``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bothends.admin.acts import Act, NotThere, Refused, audit, consumer_id, listed
from bothends.admin.keytext import shown
from bothends.core.hashing import content_hash
from bothends.letters import unpack_headers
from bothends.stores.postgresql.admin import PostgresqlAdmin
from bothends.stores.steps import Steps

__all__ = [
    "LIST_MAX", "Filter", "Letter", "body_of", "discard", "edit", "expect", "groups", "let_key_go", "letters", "locked",
    "show",
]

LIST_MAX = 10_000
_COLUMNS = """d.id, c.name, d.owner, d.state, d.reason, d.fingerprint, d.error, d.source, d.message_id, d.type, d.topic,
    d.record_partition, d.record_offset, d.keyed, d.key, d.record_key, d.position, d.attempts, d.crashes, d.redrives,
    {at:d.at}, {age:d.at}, d.consumer"""


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter without its bytes."""

    id: int
    consumer: str
    owner: str
    state: str
    reason: str
    fingerprint: str
    error: str
    source: str
    message_id: str
    type: str
    topic: str
    partition: int
    offset: int
    keyed: bool
    key: bytes | None
    record_key: bytes | None
    position: int
    attempts: int
    crashes: int
    redrives: int
    at: str
    age_s: float
    consumer_id: int

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id, "consumer": self.consumer, "owner": self.owner, "state": self.state, "reason": self.reason,
            "fingerprint": self.fingerprint, "error": self.error, "source": self.source, "message_id": self.message_id,
            "type": self.type, "topic": self.topic, "partition": self.partition, "offset": self.offset,
            "key": shown(self.record_key), "attempts": self.attempts, "crashes": self.crashes,
            "redrives": self.redrives, "at": self.at, "age_s": round(self.age_s, 1),
        }


def _letter(row: tuple[Any, ...]) -> Letter:
    letter = Letter(*row)
    key, record_key = (None if k is None else bytes(k) for k in (letter.key, letter.record_key))
    return replace(letter, keyed=bool(letter.keyed), key=key, record_key=record_key)


@dataclass(frozen=True, slots=True)
class Filter:
    """Which dead letters: all that match every condition that is given."""

    ids: Sequence[int] = ()
    consumer: str | None = None
    fingerprint: str | None = None
    """Its beginning is enough."""
    reason: str | None = None
    older_than_s: float | None = None
    states: Sequence[str] = ("open",)

    def narrow(self) -> bool:
        """Whether it names anything: an act on all dead letters must say so in another way."""
        return bool(self.ids or self.consumer or self.fingerprint or self.reason or self.older_than_s)


def letters(admin: PostgresqlAdmin, wanted: Filter, *, limit: int = 100, after: int = 0) -> Steps[list[Letter]]:
    """At most ``limit`` (10,000) letters with ids above ``after``, in order of position (of first failure)."""
    where = ["d.id > :after"]
    params: dict[str, Any] = {"after": after, "limit": min(limit, LIST_MAX)}
    if wanted.consumer is not None:
        params["consumer"] = yield from consumer_id(admin, wanted.consumer)
        where.append("d.consumer = :consumer")
    names = listed(params, "id", wanted.ids)
    if names:
        where.append(f"d.id in ({names})")
    where.append(f"d.state in ({listed(params, 'state', wanted.states)})")
    if wanted.fingerprint:
        where.append("substr(d.fingerprint, 1, length(cast(:fingerprint as text))) = :fingerprint")
        params["fingerprint"] = wanted.fingerprint
    if wanted.reason:
        where.append("d.reason = :reason")
        params["reason"] = wanted.reason
    if wanted.older_than_s is not None:
        where.append("d.at < {ago:older}")
        params["older"] = wanted.older_than_s
    found = yield admin.sql(
        f"select {_COLUMNS} from {{s}}.dead_letters d join {{s}}.consumers c on c.id = d.consumer "
        f"where {' and '.join(where)} order by d.position, d.id limit :limit", **params)
    return [_letter(row) for row in found.rows]


def expect(admin: PostgresqlAdmin, ids: Sequence[int], consumer: str | None = None) -> Steps[None]:
    """Raises NotThere for the first number that is no dead letter, whatever its state, or that is another consumer's."""
    for start in range(0, len(ids), 500):
        part = ids[start:start + 500]
        params: dict[str, Any] = {}
        found = yield admin.sql(
            f"select d.id, c.name from {{s}}.dead_letters d join {{s}}.consumers c on c.id = d.consumer "
            f"where d.id in ({listed(params, 'id', part)})", **params)
        owners = dict(found.rows)
        for number in part:
            if number not in owners:
                raise NotThere(f"there is no dead letter {number}; `bothends dead list` shows them")
            if consumer is not None and owners[number] != consumer:
                raise NotThere(f"dead letter {number} is not of {consumer}; it is of {owners[number]}: name that one")


def groups(admin: PostgresqlAdmin, consumer: str | None = None, limit: int = 100) -> Steps[list[dict[str, Any]]]:
    """Open letters by fingerprint, the largest group first, with an example."""
    params: dict[str, Any] = {"limit": limit}
    narrowed = ""
    if consumer is not None:
        params["consumer"] = yield from consumer_id(admin, consumer)
        narrowed = "and d.consumer = :consumer"
    found = yield admin.sql(
        f"""select c.name, d.owner, d.fingerprint, d.reason, count(*), {{at:min(d.at)}}, {{at:max(d.at)}}, min(d.id)
            from {{s}}.dead_letters d join {{s}}.consumers c on c.id = d.consumer where d.state = 'open' {narrowed}
            group by c.name, d.owner, d.fingerprint, d.reason order by count(*) desc, d.fingerprint limit :limit""",
        **params)
    names = ("consumer", "owner", "fingerprint", "reason", "count", "oldest", "newest", "example")
    rows = [dict(zip(names, row, strict=True)) for row in found.rows]
    for row in rows:
        error = yield admin.sql("select error from {s}.dead_letters where id = :id", id=row["example"])
        row["error"] = str(error.rows[0][0]).strip().splitlines()[-1][:200] if error.rows and error.rows[0][0] else ""
    return rows


def locked(admin: PostgresqlAdmin, letter_id: int) -> Steps[Letter]:
    """The letter, locked until the transaction ends. NotThere where there is none of that number."""
    yield admin.sql("select id from {s}.dead_letters where id = :id {lock}", id=letter_id)
    return (yield from _one(admin, letter_id))


def _one(admin: PostgresqlAdmin, letter_id: int) -> Steps[Letter]:
    row = yield admin.sql(
        f"select {_COLUMNS} from {{s}}.dead_letters d join {{s}}.consumers c on c.id = d.consumer where d.id = :id",
        id=letter_id)
    if not row.rows:
        raise NotThere(f"there is no dead letter {letter_id}; `bothends dead list` shows them")
    return _letter(row.rows[0])


def show(admin: PostgresqlAdmin, letter_id: int) -> Steps[dict[str, Any]]:
    """Everything about one letter: bytes, headers, history, both hashes, the acts on it, its effects. ``attempts`` are those
    of the last time that it died; ``history`` has the failed runs of all times (``HISTORY_MAX``); ``ended``: what became of it,
    None while it is open."""
    letter = yield from _one(admin, letter_id)
    found = yield admin.sql(
        "select body, headers, history, hash, edited_hash, {at:changed_at} from {s}.dead_letters where id = :id", id=letter_id)
    body, headers, history, hash_, edited, changed_at = found.rows[0]
    acts = yield admin.sql(
        "select {at:at}, by, verb, reason from {s}.audit where target = :target order by id desc limit 20",
        target=f"dead letter {letter_id}")
    effects = yield admin.sql(
        "select name, state, key, error, runs from {s}.effects where consumer = :consumer and message_id = :id "
        "and source = :source order by name limit 100",
        consumer=letter.consumer_id, id=letter.message_id, source=letter.source)
    return {
        **letter.as_json(),
        "body": _text(body), "headers": [[name, _text(value)] for name, value in unpack_headers(bytes(headers))],
        "ended": _ended(letter, changed_at), "history": json.loads(history), "hash": _hex(hash_), "edited_hash": _hex(edited),
        "acts": [dict(zip(("at", "by", "verb", "reason"), row, strict=True)) for row in acts.rows],
        "effects": [dict(zip(("name", "state", "key", "error", "runs"), row, strict=True)) for row in effects.rows],
    }


def _ended(letter: Letter, changed_at: str) -> str | None:
    match letter.state:
        case "done":
            how = f"the run after redrive {letter.redrives} succeeded" if letter.redrives else "it was handled without one"
            return f"{changed_at}: {how}"
        case "redriven":
            return f"{changed_at}: redriven, it waits for its run"
        case "discarded":
            return f"{changed_at}: discarded"
    return None


def _text(value: bytes | None) -> str | None:
    return shown(value) if value is None or len(value) < 100_000 else shown(bytes(value)[:100_000])


def _hex(value: bytes | None) -> str | None:
    return None if value is None else bytes(value).hex()


def body_of(admin: PostgresqlAdmin, letter_id: int) -> Steps[bytes | None]:
    """The raw body: what an editor opens."""
    found = yield admin.sql("select body from {s}.dead_letters where id = :id", id=letter_id)
    if not found.rows:
        raise NotThere(f"there is no dead letter {letter_id}; `bothends dead list` shows them")
    body = found.rows[0][0]
    return None if body is None else bytes(body)


def edit(admin: PostgresqlAdmin, letter_id: int, body: bytes | None, act: Act) -> Steps[bool]:
    """Replaces the body of an open letter. Its id stays, and both hashes (P8). False: it has this body already."""
    letter = yield from locked(admin, letter_id)
    if letter.state != "open":
        raise Refused(f"dead letter {letter_id} is {letter.state}: only an open one is edited")
    before = yield admin.sql("select body, hash from {s}.dead_letters where id = :id", id=letter_id)
    old, old_hash = before.rows[0]
    if (old is None) == (body is None) and (old is None or bytes(old) == body):
        return False
    new_hash = content_hash(body)
    yield admin.sql(
        "update {s}.dead_letters set body = :body, edited_hash = :hash, changed_at = {now} where id = :id",
        body=body, hash=new_hash, id=letter_id)
    yield from audit(admin, act, "dead edit", f"dead letter {letter_id}", {
        "message_id": letter.message_id, "hash": _hex(old_hash), "edited_hash": new_hash.hex()})
    return True


def discard(admin: PostgresqlAdmin, letter_id: int, act: Act) -> Steps[bool]:
    """Closes an open letter for good. Its inbox row stays as discarded, and a key that it held goes on.
    False: it was discarded already."""
    letter = yield from locked(admin, letter_id)
    if letter.state == "discarded":
        return False
    if letter.state != "open":
        raise Refused(f"dead letter {letter_id} is {letter.state}: it cannot be discarded any more")
    yield admin.sql(
        "update {s}.inbox set state = 'x', changed_at = {now} "
        "where consumer = :consumer and id = :id and source = :source and state = 'd'",
        consumer=letter.consumer_id, id=letter.message_id, source=letter.source)
    yield admin.sql(
        "update {s}.dead_letters set state = 'discarded', changed_at = {now} where id = :id", id=letter_id)
    released = yield from let_key_go(admin, letter)
    yield from audit(admin, act, "dead discard", f"dead letter {letter_id}", {
        "consumer": letter.consumer, "message_id": letter.message_id, "key_released": released})
    return True


def let_key_go(admin: PostgresqlAdmin, letter: Letter) -> Steps[bool]:
    """Lets a held key go on, unless another open letter of it holds it still."""
    if letter.key is None or not letter.keyed:
        return False
    key = {"consumer": letter.consumer_id, "topic": letter.topic, "keyed": letter.keyed, "key": letter.key}
    row = yield admin.sql(
        "select state from {s}.blocked_keys where consumer = :consumer and topic = :topic and keyed = :keyed "
        "and key = :key {lock}", **key)
    if not row.rows or row.rows[0][0] != "held":
        return False
    others = yield admin.sql(
        "select 1 from {s}.dead_letters where consumer = :consumer and topic = :topic and keyed = :keyed "
        "and key = :key and state = 'open' and reason not in ('conflict', 'skipped') and id <> :id limit 1",
        **key, id=letter.id)
    if others.rows:
        return False
    yield admin.sql(
        "update {s}.blocked_keys set state = 'retrying', next_at = {now} where consumer = :consumer and topic = :topic "
        "and keyed = :keyed and key = :key", **key)
    return True
