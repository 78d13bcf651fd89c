"""Causes: what is likely behind a difference, and what to do about it. Read from what the run shows, never from names."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from bothends.service import Consumer
from bothends.testing.exploring.boundaries import RELAY, Boundary, Fault, Kind, Plan
from bothends.testing.exploring.judging import Verdict, processed
from bothends.testing.exploring.pictures import KEY, NO_KEY, Difference, Masks
from bothends.testing.exploring.worlds import Ending

__all__ = ["Cause", "Evidence", "cause_of"]


class Cause(enum.Enum):
    """Each with what it means, and the remedy."""

    ENDED_TRANSACTION = (
        "the handler ends the worker's transaction",
        "remove its commit or rollback: the worker commits after the handler has returned, together with the inbox row; "
        "raise an error to roll back",
    )
    CALL_WITHOUT_KEY = (
        "an outside call without an idempotency key is made again when the message is run again",
        "make it with ctx.once(name, call) in a handler with effects=True, and hand the key it gives on to the other side",
    )
    CALL_WITH_NEW_KEY = (
        "an outside call gets another idempotency key on each run, so the other side takes it for another one",
        "derive the key from the event (its id, the order's number), or let ctx.once(name, call) make it",
    )
    CALL_LOST = (
        "an outside call is not made although the message counts as done",
        "let the error of the call out of the handler, or make the call with ctx.once(name, call)",
    )
    EVENT_TWICE = (
        "an event is published apart from the transaction, so it is out even where the transaction is rolled back",
        "use ctx.emit(event): it is written in the handler's transaction and published once that has committed",
    )
    NEW_IDENTITY = (
        "an id, time or random number that is made anew on each run is used as identity, so the second run does not see "
        "the first",
        "derive it from the event (ctx.message.id, or a field), or keep the inbox (inbox=True)",
    )
    MEMORY = (
        "what has been done is remembered in the process's memory, which a crash forgets and a rollback does not undo",
        "keep it in the database, in the handler's transaction: the inbox (inbox=True) does it, or a row with a unique key",
    )
    OTHER_TRANSACTION = (
        "a mark or an effect is committed in a transaction of its own, apart from the rest",
        "write everything on ctx.session or ctx.connection: one transaction for mark and effects",
    )
    NO_MARK = (
        "nothing durable says that the message is done, so each copy takes effect",
        "keep the inbox (inbox=True, the default), or write a row with a unique key in the handler's transaction",
    )
    STALE = (
        "an older message that arrives late overwrites what a newer one has written",
        "compare a version (or the inbox does it: inbox=True drops copies), and ignore what is older",
    )
    ORDER = (
        "the result depends on the order in which messages of different keys arrive, and no order is promised for them",
        "give them one key, or make the later one find out whether the earlier has come; if every order is right, "
        "say what must hold with invariant=",
    )
    SWALLOWED = (
        "the handler goes on after an error, and the message counts as done without its effect",
        "let the error out (or raise Transient): the message is retried, its transaction rolled back",
    )
    ACKNOWLEDGED_FIRST = (
        "the broker is told that a message is done before its effect is committed",
        "acknowledge after the commit",
    )
    MARKED_FIRST = (
        "an event is noted as published before the broker has confirmed it",
        "record it after the confirmation, and publish again where that is not known",
    )
    NO_END = ("the disturbed run does not come to an end", "look at the last lines of the story for what repeats")
    OTHER = (
        "the disturbed run ends otherwise than the undisturbed one",
        "compare the two endings; the story shows what was done twice or not at all",
    )

    @property
    def meaning(self) -> str:
        return self.value[0]

    @property
    def remedy(self) -> str:
        return self.value[1]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a failing run shows."""

    plan: Plan
    undisturbed: Ending
    ending: Ending
    verdict: Verdict
    masks: Masks
    consumers: Mapping[str, Consumer]
    duplicate_fails: bool = False
    """Whether a second copy that comes at once fails as well."""

    @property
    def struck(self) -> Boundary | None:
        return self.ending.tape.applied[0] if self.ending.tape.applied else None

    @property
    def consumer(self) -> str:
        """The consumer it is about: the one that was struck, else one that took effect twice, else one that took none."""
        struck = self.struck
        if struck is not None and struck.consumer:
            return struck.consumer
        return next((name for name, _ in self.repeated), "") or next((name for name, _ in self.lacking), "")

    @property
    def repeated(self) -> list[tuple[str, str]]:
        """(consumer, message) that took effect more often than undisturbed."""
        before, after = processed(self.undisturbed), processed(self.ending)
        return [pair for pair, count in after.items() if count > before.get(pair, 0)]

    @property
    def lacking(self) -> list[tuple[str, str]]:
        before, after = processed(self.undisturbed), processed(self.ending)
        return [pair for pair, count in before.items() if count > after.get(pair, 0)]

    @property
    def keeps_inbox(self) -> bool:
        consumer = self.consumers.get(self.consumer)
        return consumer is None or consumer.inbox


def cause_of(evidence: Evidence) -> Cause:
    """The likeliest cause. The order matters: what is seen directly comes before what is concluded."""
    verdict = evidence.verdict
    if verdict.runaway is not None:
        return Cause.NO_END
    faults = set(evidence.plan.values())
    if (found := _swallowed(evidence)) is not None:
        return found
    for difference in verdict.differences:
        if (found := _of_outside(evidence, difference)) is not None:
            return found
    if Fault.REORDER in faults and len(faults) == 1:
        return Cause.ORDER
    if Fault.DELAYED_COPY in faults and not evidence.duplicate_fails:
        return Cause.STALE
    if (found := _of_loss(evidence)) is not None:
        return found
    return _of_repetition(evidence)


def _swallowed(evidence: Evidence) -> Cause | None:
    """A call or statement of the user's failed, and the message was done in that very run all the same."""
    struck = evidence.struck
    if struck is None or evidence.plan.get(struck.number) is not Fault.FAILS or not struck.users:
        return None
    for mark in evidence.ending.tape.marks:
        if mark.after <= struck.number or mark.consumer != struck.consumer:
            continue
        if mark.kind == "undone":  # the error was let out of a batch handler, say, whose messages then ran one by one
            return None
        if mark.kind == "outcome" and mark.message in evidence.ending.tape.members(struck.message):
            return Cause.SWALLOWED if mark.text == "processed" else None
    return None


def _of_outside(evidence: Evidence, difference: Difference) -> Cause | None:
    """Outside calls and events: how many there are too many, or too few."""
    excess = len(difference.surplus) - len(difference.missing)
    if difference.table.startswith("call ") and excess:
        if excess < 0:
            return Cause.CALL_LOST
        place = difference.columns.index(KEY)
        keyed = all(row[place] != NO_KEY for row in difference.surplus)
        return Cause.CALL_WITH_NEW_KEY if keyed else Cause.CALL_WITHOUT_KEY
    if difference.table.startswith("event ") and excess > 0 and not evidence.repeated:
        return Cause.EVENT_TWICE
    return None


def _of_loss(evidence: Evidence) -> Cause | None:
    """A message that never took effect, or whose effect is missing."""
    struck = evidence.struck
    if evidence.lacking and not evidence.repeated:
        if struck is not None and struck.process == RELAY:
            return Cause.MARKED_FIRST
        return Cause.ACKNOWLEDGED_FIRST
    return None


def _of_repetition(evidence: Evidence) -> Cause:
    if any(_has_masked_identity(evidence.masks, d) for d in evidence.verdict.differences):
        return Cause.NEW_IDENTITY
    if any(b.users and b.kind is Kind.COMMIT for b in evidence.ending.tape.boundaries):
        return Cause.OTHER_TRANSACTION
    if _remembers(evidence):
        return Cause.MEMORY
    if evidence.repeated and not evidence.keeps_inbox:
        return Cause.NO_MARK
    before, after = processed(evidence.undisturbed), processed(evidence.ending)
    return Cause.ORDER if list(before) != list(after) else Cause.OTHER


def _remembers(evidence: Evidence) -> bool:
    """Whether the consumer's handlers leave something in memory, undisturbed."""
    return any(
        mark.kind == "remembers" and mark.consumer == evidence.consumer for mark in evidence.undisturbed.tape.marks
    )


def _has_masked_identity(masks: Masks, difference: Difference) -> bool:
    """Rows too many in a table that holds values which are made anew on each run."""
    varies = any(table == difference.table for table, _ in masks.varying)
    return varies and len(difference.surplus) > len(difference.missing)
