"""Stories: a failing run as a timeline that somebody can follow: who did what, where the fault fell, what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bothends.testing.exploring.boundaries import RELAY, Boundary, Fault, Kind, Plan, Where
from bothends.testing.exploring.pictures import Difference, Row
from bothends.testing.exploring.statements import said
from bothends.testing.exploring.tape import Mark, Tape

__all__ = ["LINES_MAX", "Line", "describe", "relative", "story_of"]

LINES_MAX = 60
_ROWS_MAX = 5
_NEIGHBOURS_MAX = 3
"""Messages of one consumer that are told whole."""
_BROKER = "broker"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a story."""

    actor: str
    """``relay``, a consumer, or ``broker``."""
    text: str
    where: Where | None = None
    kind: str = "step"
    """``step``, ``fault``, ``again`` (after a fault, what was done before), ``outcome``."""


_STRIKES = {
    Fault.CRASH_BEFORE: "the process dies here, before this is done",
    Fault.CRASH_AFTER: "the process dies here; this was still done",
    Fault.FAILS: "this fails, and did not happen",
    Fault.HAPPENED: "this happens, but its answer is lost: an error is raised",
    Fault.LOST_ACK: "the acknowledgement is lost: the broker delivers again",
    Fault.DUPLICATE: "a second copy of it comes",
    Fault.DELAYED_COPY: "a second copy of it is on its way, and comes late",
    Fault.REORDER: "it is held back, and messages of other keys come first",
}


def story_of(tape: Tape, plan: Plan) -> list[Line]:
    """The timeline of a detailed run. What does not touch the messages that the faults touch is left out."""
    about = _about(tape)
    about |= {
        (b.consumer, b.message) for b in tape.boundaries if any((b.consumer, m) in about for m in tape.members(b.message))
    }
    lines: list[Line] = []
    done: set[tuple[str, str]] = set()
    for item in tape.in_order():
        if isinstance(item, Boundary):
            lines += _of_boundary(item, plan, about, done)
        else:
            lines += _of_mark(item, about)
    if len(lines) > LINES_MAX:
        first, last = lines[: LINES_MAX // 2], lines[-(LINES_MAX // 2):]
        lines = [*first, Line("", f"... {len(lines) - LINES_MAX} lines ..."), *last]
    return lines


def _about(tape: Tape) -> set[tuple[str, str]]:
    """(consumer, message) pairs that the story is about: what was struck, and what took effect more than once."""
    about = {(b.consumer, message) for b in tape.applied if b.message for message in tape.members(b.message)}
    seen: set[tuple[str, str]] = set()
    for mark in tape.marks:
        if mark.kind == "outcome":
            pair = (mark.consumer, mark.message)
            if pair in seen:
                about.add(pair)
            seen.add(pair)
    neighbours = {pair for pair in seen if pair[0] in {consumer for consumer, _ in about}}
    return (about | neighbours if len(neighbours) <= _NEIGHBOURS_MAX else about) or seen


def _of_boundary(
    boundary: Boundary, plan: Plan, about: set[tuple[str, str]], done: set[tuple[str, str]]
) -> Iterator[Line]:
    fault = plan.get(boundary.number)
    actor = boundary.consumer or boundary.process
    text = _text(boundary)
    if text is not None and (fault is not None or _is_told(boundary, about)):
        step = (actor, text)
        repeated = boundary.users and step in done
        done.add(step)
        yield Line(actor, text, boundary.where, "again" if repeated else "step")
    if fault is not None:
        yield Line(actor, _STRIKES[fault], boundary.where, "fault")


def _is_told(boundary: Boundary, about: set[tuple[str, str]]) -> bool:
    if boundary.kind is Kind.PUBLISH:
        return any(message in boundary.text for _, message in about)
    if boundary.process == RELAY or (boundary.consumer, boundary.message) not in about:
        return False
    if boundary.kind in (Kind.DELIVER, Kind.COMMIT, Kind.ACK, Kind.CALL, Kind.BEGIN):
        return True
    return boundary.users or said(boundary.text, users=False) in _TOLD


_TOLD = frozenset({
    "writes the inbox row", "parks the message", "writes a dead letter", "notes that the outside call begins",
    "keeps the result of the outside call", "notes how the outside call ended",
})


def _text(boundary: Boundary) -> str | None:
    kind = boundary.kind
    if kind is Kind.PUBLISH:
        return f"publishes {boundary.text}"
    if kind is Kind.DELIVER:
        return f"gets {boundary.text}"
    if kind is Kind.ACK:
        return f"acknowledges {boundary.text}"
    if kind is Kind.CALL:
        return f"calls {boundary.text}"
    return said(boundary.text, users=boundary.users)


def _of_mark(mark: Mark, about: set[tuple[str, str]]) -> Iterator[Line]:
    if mark.kind == "starts":
        yield Line(mark.process, "starts again, with nothing in memory", None, "step")
        if mark.process != RELAY:
            yield Line(_BROKER, "delivers again what was not acknowledged")
    elif mark.kind == "outcome" and (mark.consumer, mark.message) in about:
        yield Line(mark.consumer, f"{mark.message}: {mark.text}", None, "outcome")
    elif mark.kind == "forgets":
        yield Line(mark.process, f"what was in memory is lost: {mark.text}")
    elif mark.kind == "waits":
        yield Line(mark.consumer or mark.process, mark.text)


# Endings


def describe(difference: Difference) -> list[str]:
    """A difference as lines: ``stock: units 8, but 6 here``."""
    missing, surplus = difference.missing, difference.surplus
    if len(missing) == len(surplus) == 1:
        changed = [
            f"{name} is {new} instead of {old}"
            for name, old, new in zip(difference.columns, missing[0], surplus[0], strict=False) if old != new
        ]
        same = [f"{n}={v}" for n, v, w in zip(difference.columns, missing[0], surplus[0], strict=False) if v == w]
        where = f" ({', '.join(same[:3])})" if same else ""
        return [f"{difference.table}{where}: {', '.join(changed)}"]
    lines = [f"{difference.table}: missing {_row(difference.columns, row)}" for row in missing[:_ROWS_MAX]]
    lines += [f"{difference.table}: too much {_row(difference.columns, row)}" for row in surplus[:_ROWS_MAX]]
    left = len(missing) + len(surplus) - len(lines)
    return [*lines, f"{difference.table}: ... and {left} more rows"] if left > 0 else lines


def _row(columns: Sequence[str], row: Row) -> str:
    return "(" + ", ".join(f"{name}={value}" for name, value in zip(columns, row, strict=False)) + ")"


def relative(where: Where) -> str:
    """``shop.py:34``, from the working directory where it lies below."""
    path = Path(where.file)
    try:
        path = path.relative_to(Path.cwd())
    except ValueError:
        path = Path(path.name)
    return f"{path}:{where.line}"
