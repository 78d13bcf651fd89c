"""Reports: what an exploration has found, and how it reads in a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bothends.testing.exploring.boundaries import Boundary, Fault, Where
from bothends.testing.exploring.causes import Cause
from bothends.testing.exploring.stories import Line, relative

__all__ = ["Finding", "Report", "as_text", "summary"]

_MARKS = {"step": " ", "fault": "✗", "again": "↻", "outcome": "="}
_TEXT_WIDTH = 76


@dataclass(frozen=True, slots=True)
class Finding:
    """One way in which the handlers are not safe, by its shortest story."""

    cause: Cause
    consumer: str
    faults: tuple[tuple[Fault, Boundary], ...]
    """Empty for what is wrong without any disturbance."""
    where: Where | None
    """The line of the user's code at the boundary, or next before it."""
    story: tuple[Line, ...]
    ending: tuple[str, ...]
    """What is different at the end, in lines."""
    runs: int = 1
    """How many runs failed in this way."""

    @property
    def title(self) -> str:
        whose = f"{self.consumer}: " if self.consumer else ""
        return f"{whose}{self.cause.meaning}"

    @property
    def remedy(self) -> str:
        return self.cause.remedy


@dataclass(frozen=True, slots=True)
class Report:
    """What an exploration has found. True in a condition where it found nothing."""

    name: str
    boundaries: int
    """Of the undisturbed run."""
    runs: int
    failed: int
    findings: tuple[Finding, ...]
    depth: int
    seed: int
    complete: bool
    """Whether the budget was enough for every fault (at depth 2: every pair)."""
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.findings

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        return as_text(self)


def as_text(report: Report) -> str:
    return "\n".join(_lines(report))


def summary(report: Report) -> str:
    """One line: ``shop: 0 findings (54 boundaries, 98 runs)``."""
    count = len(report.findings)
    found = f"{count} finding{'' if count == 1 else 's'}"
    how = f"{report.boundaries} boundaries, {report.runs} runs, depth {report.depth}, seed {report.seed}"
    cut = "" if report.complete else "; the budget was used up before everything was tried"
    return f"{report.name}: {found} ({how}){cut}"


def _lines(report: Report) -> Iterator[str]:
    yield summary(report)
    for note in report.notes:
        yield f"  note: {note}"
    for number, finding in enumerate(report.findings, 1):
        yield ""
        yield from _finding(finding, number, len(report.findings))


def _finding(finding: Finding, number: int, count: int) -> Iterator[str]:
    yield f"finding {number} of {count}: {finding.title}"
    if finding.where is not None:
        yield f"  at {relative(finding.where)}, in {finding.where.function}"
    yield ""
    width = max((len(line.actor) for line in finding.story), default=0)
    actor = None
    for line in finding.story:
        yield _line(line, width, shown=line.actor != actor)
        actor = line.actor
    yield ""
    for ended in finding.ending:
        yield f"  in the end: {ended}"
    yield f"  likely cause: {finding.cause.meaning}"
    yield f"  remedy: {finding.remedy}"
    if finding.runs > 1:
        yield f"  ({finding.runs} runs end like this; this is the shortest)"


def _line(line: Line, width: int, *, shown: bool) -> str:
    actor = line.actor if shown else ""
    text = f"  {actor:<{width}}  {_MARKS[line.kind]} {line.text}"
    return f"{text:<{width + _TEXT_WIDTH}}  {relative(line.where)}" if line.where and line.kind != "fault" else text
