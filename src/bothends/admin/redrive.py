"""Redrive: a dead letter runs again, in the place in its key's order that it got when it first failed.

It goes back into ``parked`` with its position, its key is blocked and due now, its inbox row turns from dead to parked:
one transaction. The drainer of any worker then runs it; nothing is sent to the broker. Doing it twice does it once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from bothends.admin.acts import Act, Refused, audit, listed
from bothends.admin.dead import Letter, locked
from bothends.errors import ConfigError
from bothends.stores.postgresql.admin import PostgresqlAdmin
from bothends.stores.steps import Steps

__all__ = ["Decision", "Outcome", "decision", "outcomes", "redrive"]

Outcome = Literal["redriven", "already_waiting", "already_done"]


@dataclass(frozen=True, slots=True)
class Decision:
    """What an operator found out about one effect whose outcome is unknown [A9]."""

    name: str
    verdict: Literal["repeat", "not-done", "done"]
    result: bytes | None = None


def decision(text: str) -> Decision:
    """``NAME=repeat``, ``NAME=not-done`` or ``NAME=done:JSON``. ConfigError says what is wrong with it."""
    name, _, verdict = text.partition("=")
    kind, _, result = verdict.partition(":")
    if not name or kind not in ("repeat", "not-done", "done") or (kind == "done") != bool(result):
        raise ConfigError(f"--effect takes NAME=repeat, NAME=not-done or NAME=done:JSON, not {text!r}")
    if kind != "done":
        return Decision(name, "repeat" if kind == "repeat" else "not-done")
    try:
        json.loads(result)
    except ValueError as error:
        raise ConfigError(f"--effect {name}=done: {result!r} is not JSON ({error})") from error
    return Decision(name, "done", result.encode())


def redrive(
    admin: PostgresqlAdmin, letter_id: int, act: Act, decisions: Mapping[str, Decision] | None = None
) -> Steps[Outcome]:
    """Redrives one letter. Raises Refused for a conflict (its id was processed with other content), and for an unknown
    effect without a decision."""
    letter = yield from locked(admin, letter_id)
    if letter.state in ("redriven", "done"):
        return "already_waiting" if letter.state == "redriven" else "already_done"
    if letter.reason == "conflict":
        raise Refused(
            f"dead letter {letter_id} is a conflict: {letter.message_id} was processed with other content. Discard it, "
            f"or have its producer send the second fact under an id of its own"
        )
    yield from _decide(admin, letter, decisions or {}, act)
    outcome = yield from _inbox_back(admin, letter)
    if outcome != "redriven":
        state = "done" if outcome == "already_done" else "redriven"
        yield admin.sql("update {s}.dead_letters set state = :state, changed_at = {now} where id = :id",
                        state=state, id=letter_id)
        return outcome
    yield from _park(admin, letter)
    yield admin.sql(
        "update {s}.dead_letters set state = 'redriven', redrives = redrives + 1, changed_at = {now} where id = :id",
        id=letter_id)
    yield from audit(admin, act, "dead redrive", f"dead letter {letter_id}", {
        "consumer": letter.consumer, "message_id": letter.message_id, "redrives": letter.redrives + 1,
        "effects": {name: d.verdict for name, d in (decisions or {}).items()}})
    return "redriven"


def _decide(admin: PostgresqlAdmin, letter: Letter, decisions: Mapping[str, Decision], act: Act) -> Steps[None]:
    where = "consumer = :consumer and message_id = :id and source = :source and name = :name"
    key: dict[str, Any] = {"consumer": letter.consumer_id, "id": letter.message_id, "source": letter.source}
    open_ = yield admin.sql(
        "select name from {s}.effects where consumer = :consumer and message_id = :id and source = :source "
        "and state in ('unknown', 'in_progress') {lock}", **key)
    undecided = sorted({row[0] for row in open_.rows} - set(decisions))
    if letter.reason == "outcome_unknown" and undecided:
        raise Refused(
            f"dead letter {letter.id}: whether {undecided[0]!r} happened is unknown. Find out, then say so: "
            f"--effect {undecided[0]}=done:JSON, {undecided[0]}=not-done, or {undecided[0]}=repeat where the other "
            f"side honours the key"
        )
    for name, made in decisions.items():
        # Whoever says "repeat" has decided for the handler, whose own if_unknown= would hold the key again.
        state = "completed" if made.verdict == "done" else "not_sent"
        changed = yield admin.sql(
            f"update {{s}}.effects set state = :state, decided_by = :verdict, changed_at = {{now}}, "
            f"result = case when :state = 'completed' then cast(:result as {admin.blob}) else result end where {where} "
            f"and state in ('unknown', 'in_progress', 'not_sent')",
            **key, name=name, state=state, verdict=made.verdict, result=made.result)
        if changed.count == 0:
            raise Refused(
                f"dead letter {letter.id} has no open effect {name!r}; `bothends dead show {letter.id}` lists them")


def _inbox_back(admin: PostgresqlAdmin, letter: Letter) -> Steps[Outcome]:
    key = {"consumer": letter.consumer_id, "id": letter.message_id, "source": letter.source}
    where = "where consumer = :consumer and id = :id and source = :source"
    changed = yield admin.sql(
        f"update {{s}}.inbox set state = 'k', changed_at = {{now}} {where} and state in ('d', 'x')", **key)
    if changed.count:
        return "redriven"
    row = yield admin.sql(f"select state from {{s}}.inbox {where}", **key)
    if not row.rows:
        return "redriven"  # no inbox row: it could not be decoded, or the consumer keeps none
    return "already_done" if row.rows[0][0] == "p" else "already_waiting"


def _park(admin: PostgresqlAdmin, letter: Letter) -> Steps[None]:
    # What could not be decoded has no queue of its own: it waits alone, under its place in the log.
    alone = f"{letter.topic}/{letter.partition}/{letter.offset}".encode()
    keyed, key = (letter.keyed, letter.key) if letter.key is not None else (False, alone)
    place = {"consumer": letter.consumer_id, "topic": letter.topic, "keyed": keyed, "key": key}
    # The key first: a worker that meets a later message of it must see it blocked.
    yield admin.sql(
        "insert into {s}.blocked_keys (consumer, topic, keyed, key, state, next_at) "
        "values (:consumer, :topic, :keyed, :key, 'retrying', {now}) "
        "on conflict (consumer, topic, key, keyed) do update set state = 'retrying', next_at = {now}", **place)
    yield admin.sql(
        """insert into {s}.parked (consumer, topic, keyed, key, position, source, id, type, hash, record_partition,
               record_offset, timestamp_ms, record_key, body, headers, attempts, crashes, redrives, dead_letter, reason,
               error, history)
           select consumer, topic, :keyed, :key, position, source, message_id, type, :hash, record_partition,
               record_offset, timestamp_ms, record_key, body, headers, 0, 0, redrives + 1, id, reason, error, history
           from {s}.dead_letters where id = :id
           on conflict do nothing""",
        keyed=keyed, key=key, id=letter.id, hash=(yield from _hash(admin, letter.id)))


def _hash(admin: PostgresqlAdmin, letter_id: int) -> Steps[bytes]:
    # The first content's hash: it is what copies in the broker's log are compared with.
    row = yield admin.sql("select hash from {s}.dead_letters where id = :id", id=letter_id)
    return bytes(row.rows[0][0] or b"")


def outcomes(admin: PostgresqlAdmin, ids: list[int]) -> Steps[dict[str, int]]:
    """How redriven letters have fared so far: counts of ``redriven`` (waiting), ``done`` and ``open`` (dead again)."""
    counts: dict[str, int] = {}
    for start in range(0, len(ids), 500):
        part: dict[str, Any] = {}
        names = listed(part, "id", ids[start:start + 500])
        found = yield admin.sql(
            f"select state, count(*) from {{s}}.dead_letters where id in ({names}) group by state", **part)
        for state, count in found.rows:
            counts[state] = counts.get(state, 0) + count
    return counts
