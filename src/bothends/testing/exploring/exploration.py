"""Exploration: ``explore`` runs a service's handlers once undisturbed, then once for each thing that can go wrong."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal

from bothends.errors import ConfigError
from bothends.service import Consumer, Service
from bothends.testing.exploring.boundaries import Boundary, Fault, Plan, Where
from bothends.testing.exploring.causes import Cause, Evidence, cause_of
from bothends.testing.exploring.databases import Database, own_url
from bothends.testing.exploring.judging import Verdict, ended_transactions, judge
from bothends.testing.exploring.pictures import DEAD, Masks, masks_of
from bothends.testing.exploring.reports import Finding, Report
from bothends.testing.exploring.searching import Candidate, pairs, singles
from bothends.testing.exploring.stories import describe, story_of
from bothends.testing.exploring.worlds import Ending, World

__all__ = ["BUDGET", "explore"]

BUDGET = 2_000
"""Runs of one exploration, if nothing else is said."""
FINDINGS_MAX = 20
REPEAT_FROM = 20
"""Runs of a budget that is large enough to see whether the undisturbed run repeats."""


def explore(
    service: Service | Sequence[Service], events: Sequence[object] = (), *,
    invariant: Callable[[Any], object] | None = None, depth: Literal[1, 2] = 1, budget: int = BUDGET, seed: int = 0,
    start: Callable[[Any], Sequence[object] | None] | None = None, database: str | None = None, name: str | None = None,
    modules: Sequence[str] = (),
) -> Report:
    """Explores the handlers of ``service`` (or of several, on one database) with ``events``, in this order of publication.

    ``start`` is given a session (a SQLAlchemy session where a service has a ``session_factory``, else the driver's
    connection) in a transaction, makes the start state, and may return further events. An event may be written as
    ``(service, event)`` to say whose outbox it goes to; otherwise it goes to the first service that does not handle it
    itself, else to the first. ``invariant`` is given a session on the final state of each run; False or AssertionError is a
    violation. ``depth=2`` tries pairs of faults as well; ``budget`` is the number of runs (at least 3). ``modules`` names
    further modules that are the user's.

    ``database`` is a URL; without one it is the services' own where they are configured with PostgreSQL, else SQLite in
    memory. On PostgreSQL that database is left alone: a scratch database is made on its server, and dropped at the end; the
    user's own connections to it (by psycopg) lead there as well. ``sqlite:///path`` is for code that opens connections of its
    own; what is in it is overwritten.

    Raises ConfigError for what cannot be explored, StoreUnavailable, and what ``start`` raises.
    """
    services = [service] if isinstance(service, Service) else list(service)
    for included in dict.fromkeys(module for one in services for module in one.include):
        importlib.import_module(included)
    if not any(consumer.handlers for one in services for consumer in one.consumers.values()):
        raise ConfigError("explore() needs a service with a handler; are its modules named in include=?")
    if depth not in (1, 2) or budget < 3:
        raise ConfigError(f"explore(depth={depth}, budget={budget}): the depth is 1 or 2, the budget at least 3 runs")

    def prepare(session: Any, opened: Database) -> None:
        more = start(session) if start is not None else None
        opened.publish(session, services, [*(more or ()), *events])

    world = World(services, prepare, invariant, database or own_url(services), seed, modules)
    with ExitStack() as stack:
        for one in services:
            stack.enter_context(one.outbox.kept())
        stack.enter_context(world.opened())
        return _Exploration(world, services, depth, budget, name or services[0].name).report()


@dataclass(slots=True)
class _Found:
    evidence: Evidence
    cause: Cause
    runs: int = 1

    @property
    def length(self) -> tuple[int, bool, int]:
        """The shortest story is told; of single faults rather a crash, whose every step shows."""
        plan = self.evidence.plan
        return len(plan), not any(f.is_crash for f in plan.values()), len(self.evidence.ending.tape.boundaries)


@dataclass(slots=True)
class _Exploration:
    world: World
    services: Sequence[Service]
    depth: int
    budget: int
    name: str
    runs: int = 0
    failed: int = 0
    complete: bool = True
    undisturbed: Ending = field(init=False)
    masks: Masks = field(init=False)
    found: dict[tuple[Cause, str], _Found] = field(default_factory=dict)

    def report(self) -> Report:
        noise = self._run({}, noise=True)  # the first: what is made once per process, like a pool, is there afterwards
        self.undisturbed = self._run({}, detailed=True)
        self.masks = masks_of(self.undisturbed.picture, noise.picture)
        notes = list(self._notes())
        findings = self._without_faults()
        if not findings:
            self._search()
            told = (self._finding(found) for found in list(self.found.values())[:FINDINGS_MAX])
            findings = [finding for finding in told if finding is not None]
            if len(findings) < len(self.found) and len(findings) < FINDINGS_MAX:
                notes.append("a difference that did not show again, from a fresh start, is left out")
        return Report(
            self.name, len(self.undisturbed.tape.boundaries), self.runs, self.failed, tuple(findings), self.depth,
            self.world.seed, self.complete, tuple(notes),
        )

    def _run(self, plan: Plan, *, detailed: bool = False, noise: bool = False, afresh: bool = False) -> Ending:
        self.runs += 1
        return self.world.run(plan, detailed=detailed, noise=noise, afresh=afresh)

    def _consumers(self) -> dict[str, Consumer]:
        return {consumer.name: consumer for service in self.services for consumer in service.consumers.values()}

    def _lossy(self) -> Set[str]:
        return {name for name, consumer in self._consumers().items() if consumer.at_most_once}

    def _notes(self) -> Iterator[str]:
        for name in sorted(self._lossy()):
            yield f"{name} acknowledges first (at_most_once): it may lose messages, so it is not disturbed"
        if self.budget > REPEAT_FROM and not self._repeats():
            yield ("undisturbed, two runs with the same seed do not pass the same boundaries: something is decided outside "
                   "(threads, the network, a real clock), and stories may not repeat")
        for row in self.undisturbed.picture.rows.get(DEAD, ()):
            yield f"undisturbed, {row[1]} ends as a dead letter of {row[0]}: {row[2]}"

    def _repeats(self) -> bool:
        first, second = self.undisturbed.tape.boundaries, self._run({}).tape.boundaries
        return [(b.kind, b.text) for b in first] == [(b.kind, b.text) for b in second]

    # Without any disturbance

    def _without_faults(self) -> list[Finding]:
        undisturbed = self.undisturbed
        if undisturbed.runaway is not None or undisturbed.violation is not None:
            said = undisturbed.runaway or f"the invariant does not hold: {undisturbed.violation}"
            cause = Cause.NO_END if undisturbed.runaway else Cause.OTHER
            return [Finding(cause, "", (), None, tuple(story_of(undisturbed.tape, {})), (said,))]
        found = []
        for row in ended_transactions(undisturbed.picture):
            consumer = row[0].strip("'")
            where = next((b.where for b in reversed(undisturbed.tape.boundaries)
                          if b.consumer == consumer and b.where is not None), None)
            lines = tuple(line for line in story_of(undisturbed.tape, {}) if line.actor == consumer)
            found.append(Finding(
                Cause.ENDED_TRANSACTION, consumer, (), where, lines, (f"dead letter of {consumer}: transaction_ended",)))
        return found

    # The search

    def _search(self) -> None:
        lossy = self._lossy()
        singles_ = singles(self.undisturbed.tape.boundaries, lossy)
        sound: list[tuple[Candidate, Sequence[Boundary]]] = []
        for candidate in singles_:
            if self.runs >= self.budget:
                self.complete = False
                return
            ending = self._try({candidate.number: candidate.fault})
            if ending is not None and self.depth == 2:
                sound.append((candidate, ending.tape.boundaries))
        for first, boundaries in sound:
            for second in pairs(first, boundaries, lossy):
                if self.runs >= self.budget:
                    self.complete = False
                    return
                self._try({first.number: first.fault, second.number: second.fault})

    def _try(self, plan: Plan) -> Ending | None:
        """One disturbed run; None where it failed."""
        ending = self._run(plan)
        verdict = self._judge(ending, plan)
        if verdict.ok:
            return ending
        self.failed += 1
        evidence = self._evidence(plan, ending, verdict)
        if self._is_known(evidence):
            return None
        cause = cause_of(evidence)
        key = (cause, evidence.consumer)
        found = self.found.get(key)
        if found is None:
            self.found[key] = _Found(evidence, cause)
            return None
        found.runs += 1
        fresh = _Found(evidence, cause, found.runs)
        if fresh.length < found.length:
            self.found[key] = fresh
        return None

    def _is_known(self, evidence: Evidence) -> bool:
        """A fault of the relay that only makes consumers take effect twice of which that is known already."""
        if evidence.struck is None or evidence.struck.consumer:
            return False
        repeated = {consumer for consumer, _ in evidence.repeated}
        known = {consumer for _, consumer in self.found}
        for (_, consumer), found in self.found.items():
            found.runs += consumer in repeated
        return bool(repeated) and repeated <= known

    def _judge(self, ending: Ending, plan: Plan) -> Verdict:
        return judge(self.undisturbed, ending, self.masks, plan, has_invariant=self.world.invariant is not None)

    def _evidence(self, plan: Plan, ending: Ending, verdict: Verdict) -> Evidence:
        duplicate_fails = False
        late = [number for number, fault in plan.items() if fault is Fault.DELAYED_COPY]
        if late and len(plan) == 1:
            at_once: Plan = {late[0]: Fault.DUPLICATE}
            duplicate_fails = not self._judge(self._run(at_once), at_once).ok
        return Evidence(plan, self.undisturbed, ending, verdict, self.masks, self._consumers(), duplicate_fails)

    # The findings

    def _finding(self, found: _Found) -> Finding | None:
        """None where it does not show again."""
        evidence = found.evidence
        ending = self._run(evidence.plan, detailed=True, afresh=True)
        if self._judge(ending, evidence.plan).ok:
            return None
        faults = tuple((evidence.plan[b.number], b) for b in ending.tape.applied)
        lines = [line for difference in evidence.verdict.differences for line in describe(difference)]
        if evidence.verdict.violation:
            lines.append(f"the invariant does not hold: {evidence.verdict.violation}")
        if evidence.verdict.runaway:
            lines.append(evidence.verdict.runaway)
        return Finding(
            found.cause, evidence.consumer, faults, _where(ending, faults, evidence.consumer),
            tuple(story_of(ending.tape, evidence.plan)), tuple(lines), found.runs,
        )


def _where(ending: Ending, faults: Sequence[tuple[Fault, Boundary]], consumer: str) -> Where | None:
    """The user's line at the struck boundary, else the last one of the consumer before it, else the first after it."""
    struck = faults[0][1] if faults else None
    if struck is not None and struck.where is not None:
        return struck.where
    own = [b for b in ending.tape.boundaries if b.where is not None and b.consumer == consumer]
    before = [b for b in own if struck is None or b.number <= struck.number]
    chosen = before[-1:] or own[:1]
    return chosen[0].where if chosen else None

