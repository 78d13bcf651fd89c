"""Delivery: one copy of a message on its way through a consumer, read from a record or from a parked letter."""

from __future__ import annotations

import enum
import re
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bothends.codecs.cloudevents import from_record
from bothends.codecs.json import decode
from bothends.core.consuming import Failure, describe_error, fingerprint_of_reason
from bothends.core.hashing import content_hash
from bothends.core.states import Outcome
from bothends.errors import Undecodable
from bothends.letters import KeyOf, Letter, pack_headers
from bothends.message import Message, Record

if TYPE_CHECKING:
    from bothends.service import Consumer, Handler

__all__ = ["ATTEMPTS_HEADER", "Delivery", "Verdict", "read", "read_letter"]

ATTEMPTS_HEADER = "bothends-attempts"
"""Runs charged so far, on a record of a retry topic."""
_DIGITS = re.compile(rb"[0-9]{1,9}")


class Verdict(enum.Enum):
    """What reading a record has shown."""

    RUN = "run"
    IGNORE = "ignore"
    """No handler for its type: settled without a row."""
    NEWER = "newer"
    """A version that this process does not know (a rolling upgrade)."""
    BROKEN = "broken"
    """Not the event it should be."""


@dataclass(eq=False, slots=True)
class Delivery:
    """One copy in hand. ``failure`` and ``outcome`` are filled in while it is worked on."""

    record: Record
    verdict: Verdict
    message: Message | None = None
    """None where not even the envelope could be read."""
    event: Any = None
    handler: Handler | None = None
    hash: bytes = b""
    problem: Undecodable | None = None
    attempts: int = 0
    crashes: int = 0
    history: str = "[]"
    letter: Letter | None = None
    """The parked row it was read from."""
    failure: Failure | None = None
    outcome: Outcome | None = None
    contentions: int = 0
    by_itself: bool = False
    """A call of a batch handler that it was part of has failed: it gets one of its own, so that a failure has one owner."""
    name: tuple[str, str] = field(init=False)
    """(source, id): what the inbox tells copies apart by."""
    queue: KeyOf = field(init=False)

    def __post_init__(self) -> None:
        message = self.message
        self.name = (message.source, message.id) if message is not None else ("", "")
        if self.letter is not None:
            self.queue = self.letter.queue
        elif message is not None and message.key is not None:
            self.queue = KeyOf(self.record.origin.topic, True, message.key)
        else:
            self.queue = KeyOf(self.record.origin.topic, False, self.name[1].encode("utf-8", "surrogatepass"))

    @property
    def effects(self) -> bool:
        return self.verdict is Verdict.RUN and self.handler is not None and self.handler.effects

    @property
    def batch(self) -> Hashable | None:
        """What it may share a call with; None where it has a call of its own. One that has failed before is never shared, so
        ``ctx.attempt`` is that of every message of a call."""
        handler = self.handler
        return handler.event.type if handler is not None and handler.batch and not (self.by_itself or self.attempts) else None

    def to_letter(self, *, reason: str, error: str, fingerprint: str) -> Letter:
        """What is stored when it is parked or dead. The origin is that of the first delivery."""
        if (was := self.letter) is not None:
            return was._replace(
                attempts=self.attempts, crashes=self.crashes, history=self.history, reason=reason, error=error,
                fingerprint=fingerprint,
            )
        origin = self.record.origin
        return Letter(
            queue=self.queue, source=self.name[0], id=self.name[1],
            type=self.message.type if self.message is not None else "", hash=self.hash or None,
            partition=origin.partition, offset=origin.offset, timestamp_ms=self.record.timestamp_ms,
            record_key=self.record.key, body=self.record.value, headers=pack_headers(self.record.headers),
            attempts=self.attempts, crashes=self.crashes, reason=reason, error=error, fingerprint=fingerprint,
            history=self.history,
        )

    def charge(self, failure: Failure) -> None:
        """The run that just failed counts."""
        self.failure = failure
        self.attempts, self.crashes, self.history = failure.attempts, failure.crashes, failure.history


def read(consumer: Consumer, record: Record) -> Delivery:
    """Decodes one record. Never raises for what is in it."""
    try:
        message = from_record(record) if consumer.format is None else consumer.format.message(record)
    except Undecodable as error:
        return Delivery(record, Verdict.BROKEN, hash=content_hash(record.value), problem=error)
    handler = consumer.handlers.get(message.type)
    if handler is None:
        return Delivery(record, Verdict.IGNORE, message)
    return _with_body(Delivery(
        record, Verdict.RUN, message, handler=handler, hash=content_hash(message.body), attempts=_attempts(record),
    ))


def read_letter(consumer: Consumer, letter: Letter) -> Delivery:
    """Reads a parked message again, by today's declarations."""
    record = letter.record()
    kept: dict[str, Any] = {
        "attempts": letter.attempts, "crashes": letter.crashes, "history": letter.history, "letter": letter,
        "hash": letter.hash or b"",
    }
    try:
        message = from_record(record) if consumer.format is None else consumer.format.message(record)
    except Undecodable as error:
        # Its envelope could be read once; the name under which the inbox knows it is in the letter.
        message = Message(letter.id, letter.source, letter.type, record.key, record.headers, record.value)
        return Delivery(record, Verdict.BROKEN, message, problem=error, **kept)
    handler = consumer.handlers.get(message.type)
    if handler is None:
        problem = Undecodable(f"no handler for {message.type!r} any more", reason="no_handler")
        return Delivery(record, Verdict.BROKEN, message, problem=problem, **kept)
    delivery = Delivery(record, Verdict.RUN, message, handler=handler, **kept)
    if letter.id:
        delivery.name = (letter.source, letter.id)
    else:  # it had no id when it was given up, and the inbox does not know it
        delivery.hash = content_hash(message.body)
    return _with_body(delivery)


def _with_body(delivery: Delivery) -> Delivery:
    message, handler = delivery.message, delivery.handler
    assert message is not None
    assert handler is not None
    if (message.version or 1) > handler.event.version:
        delivery.verdict = Verdict.NEWER
        delivery.problem = Undecodable(
            f"{message.type} has version {message.version}; this worker knows up to {handler.event.version}",
            reason="schema",
        )
        return delivery
    try:
        delivery.event = decode(message.body, handler.event)
    except Undecodable as error:
        delivery.verdict, delivery.problem = Verdict.BROKEN, error
    return delivery


def _attempts(record: Record) -> int:
    for name, value in record.headers:
        if name == ATTEMPTS_HEADER and _DIGITS.fullmatch(value):
            return int(value)
    return 0


def problem_failure(delivery: Delivery, *, hold: bool) -> Failure:
    """The dead letter of a message that cannot be read: no attempt is counted, for no handler ran."""
    problem = delivery.problem
    assert problem is not None
    detail = delivery.message.type if delivery.message is not None else delivery.record.origin.topic
    return Failure(
        fate="dead", reason=problem.reason, error=describe_error(problem),
        fingerprint=fingerprint_of_reason(problem.reason, detail), attempts=delivery.attempts, crashes=delivery.crashes,
        delay_s=0.0, history=delivery.history, hold=hold,
    )
