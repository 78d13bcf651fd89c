"""Judging: whether a disturbed run ended as the undisturbed one did, and which differences count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bothends.testing.exploring.boundaries import Boundary, Fault, Kind, Plan
from bothends.testing.exploring.pictures import DEAD, WAITING, Difference, Masks, Picture, Row
from bothends.testing.exploring.worlds import Ending

__all__ = ["Verdict", "ended_transactions", "judge", "processed"]

UNKNOWN = repr("outcome_unknown")
TRANSACTION_ENDED = repr("transaction_ended")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong with how a run ended; nothing, if ``ok``."""

    differences: tuple[Difference, ...] = ()
    violation: str | None = None
    runaway: str | None = None

    @property
    def ok(self) -> bool:
        return not self.differences and self.violation is None and self.runaway is None

    @property
    def shape(self) -> tuple[str, ...]:
        """What verdicts of one kind have in common."""
        return (
            *(d.table for d in self.differences), *(("invariant",) if self.violation else ()),
            *(("no end",) if self.runaway else ()),
        )


def judge(undisturbed: Ending, ending: Ending, masks: Masks, plan: Plan, *, has_invariant: bool) -> Verdict:
    """A reordering is judged by the invariant alone, where there is one. A message that waits for an operator by its
    consumer's policy is not lost, but what it did must not be done twice."""
    if ending.runaway is not None:
        return Verdict(runaway=ending.runaway)
    if has_invariant and (Fault.REORDER in plan.values() or _is_reordered(undisturbed, ending)):
        return Verdict(violation=ending.violation)
    differences = masks.differences(undisturbed.picture, ending.picture)
    if waits_for_operator(undisturbed.picture, ending.picture):
        return Verdict(tuple(_surplus_only(differences)))
    return Verdict(tuple(differences), ending.violation)


def _is_reordered(undisturbed: Ending, ending: Ending) -> bool:
    """Whether a consumer's messages took effect in another order: one that was retried comes after others."""
    return _orders(undisturbed) != _orders(ending)


def _orders(ending: Ending) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = {}
    for consumer, message in processed(ending):
        found.setdefault(consumer, []).append(message)
    return found


def waits_for_operator(undisturbed: Picture, picture: Picture) -> bool:
    """Whether the outcome of an outside call is for a human to find out, as ``if_unknown="hold"`` says."""
    return _count(picture, UNKNOWN) > _count(undisturbed, UNKNOWN)


def _count(picture: Picture, reason: str) -> int:
    return sum(row[2] == reason for row in picture.rows.get(DEAD, ()))


def ended_transactions(picture: Picture) -> Sequence[Row]:
    """Dead letters of handlers that ended the worker's transaction."""
    return [row for row in picture.rows.get(DEAD, ()) if row[2] == TRANSACTION_ENDED]


def _surplus_only(differences: Sequence[Difference]) -> list[Difference]:
    return [
        d for d in differences if d.surplus and not d.missing and d.table not in (DEAD, WAITING)
    ]


def processed(ending: Ending) -> Mapping[tuple[str, str], int]:
    """How often each (consumer, message) has taken effect: a handler's run that was committed."""
    tape = ending.tape
    counts: Counter[tuple[str, str]] = Counter()
    ran: list[tuple[str, str]] = []
    for item in tape.in_order():
        if not isinstance(item, Boundary):
            if item.kind == "ran":
                ran.append((item.consumer, item.message))
            elif item.kind in ("dies", "waits", "undone"):
                ran.clear()
        elif item.kind is Kind.ROLLBACK and not item.users:
            ran.clear()
        elif item.kind is Kind.COMMIT and not item.users:
            if tape.plan.get(item.number) not in (Fault.CRASH_BEFORE, Fault.FAILS):
                counts.update(ran)
            ran.clear()
    return counts
