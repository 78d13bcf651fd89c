"""Redriving many: which are ready, at what rate, and when to stop."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import typer

from bothends.admin import outbox as outbox_acts
from bothends.admin.acts import Act, Refused
from bothends.admin.amounts import amount
from bothends.admin.dead import Filter, Letter, expect
from bothends.admin.dead import letters as find
from bothends.admin.overtaken import Sorted, sort
from bothends.admin.redrive import decision, outcomes, redrive
from bothends.cli.desk import Database, Desk, has_run
from bothends.cli.output import as_json, ask, complain, progress, say

__all__ = ["Plan", "letters", "outbox"]

_LOOK_S = 0.25


@dataclass(frozen=True, slots=True)
class Plan:
    wanted: Filter
    consumer: str | None
    dry_run: bool = False
    skip_overtaken: bool = False
    rate: float | None = None
    wait: bool = False
    stop_after_failures: int | None = None
    wait_timeout_s: float = 3600.0
    effects: Sequence[str] = ()
    limit: int = 10_000


def letters(desk: Desk, database: Database, plan: Plan, who: Act, *, yes: bool, json: bool) -> None:
    """Redrives what the plan names. Exit 1 where it stopped because too many failed again, and
    where it waited and not all are done."""
    decisions = {made.name: made for made in map(decision, plan.effects)}
    admin = database.store.admin
    database.ask(expect(admin, plan.wanted.ids, plan.consumer))
    if plan.consumer is not None and not has_run(database, plan.consumer):
        chosen: list[Letter] = []
    else:
        chosen = database.ask(find(admin, replace(plan.wanted, consumer=plan.consumer), limit=plan.limit))
    parts = _sorted(desk, database, plan, chosen)
    counts: dict[str, Any] = {
        "total": len(chosen), "ready": len(parts.ready), "overtaken": len(parts.overtaken), "unsure": parts.unsure}
    line = f"{len(chosen)}: {len(parts.ready)} ready, {len(parts.overtaken)} overtaken"
    if parts.unsure:
        line += f" ({parts.unsure} of them not looked at to the end)"
    if plan.dry_run:
        as_json({**counts, "dry_run": True}) if json else say(line)
        return
    todo = parts.ready if plan.skip_overtaken else chosen
    if todo:
        ask(f"{line}. Redrive {len(todo)}?", yes)
    results = _Results()
    _run(database, plan, todo, decisions, who, results)
    if plan.wait and not results.stopped:
        _wait(database, plan, results)
    left = database.ask(outcomes(admin, results.ids))
    summary = {
        **counts, "redriven": len(results.ids), "done": left.get("done", 0), "failed_again": left.get("open", 0),
        "waiting": left.get("redriven", 0), "already": results.already, "refused": results.refused,
        "stopped": results.stopped}
    if json:
        as_json(summary)
    else:
        say(f"{line}; {len(results.ids)} redriven, {summary['done']} done, {summary['waiting']} waiting, "
            f"{summary['failed_again']} failed again" + (f", {len(results.refused)} refused" if results.refused else ""))
        for text in results.refused[:10]:
            complain(text)
    if results.stopped:
        complain("stopped: too many failed again", "`bothends dead list --group fingerprint` shows why")
        raise typer.Exit(1)
    if plan.wait and (summary["failed_again"] or summary["waiting"]):
        raise typer.Exit(1)


@dataclass(slots=True)
class _Results:
    ids: list[int]
    refused: list[str]
    already: int = 0
    stopped: bool = False

    def __init__(self) -> None:
        self.ids, self.refused, self.already, self.stopped = [], [], 0, False


def _sorted(desk: Desk, database: Database, plan: Plan, chosen: list[Letter]) -> Sorted:
    """Looking in the broker's log costs time: only where the answer is shown or matters."""
    if not chosen:
        return Sorted([], [])
    if plan.wanted.ids and not (plan.dry_run or plan.skip_overtaken):
        return Sorted(list(chosen), [])
    ready: list[Letter] = []
    overtaken: list[Letter] = []
    unsure = 0
    for service in desk.app.services:
        prefix = f"{desk.app.settings[service.name].group_prefix}{service.name}."
        mine = [letter for letter in chosen if letter.consumer.startswith(prefix)]
        if mine:
            parts = sort(database.connection, database.store.admin, desk.broker_or_none(service), mine)
            ready += parts.ready
            overtaken += parts.overtaken
            unsure += parts.unsure
    placed = {letter.id for letter in ready} | {letter.id for letter in overtaken}
    foreign = [letter for letter in chosen if letter.id not in placed]  # of a service that is not in this application
    return Sorted(sorted(ready, key=_position), sorted(overtaken + foreign, key=_position), unsure + len(foreign))


def _position(letter: Letter) -> int:
    return letter.position


def _run(
    database: Database, plan: Plan, todo: Sequence[Letter], decisions: dict[str, Any], who: Act, results: _Results
) -> None:
    admin = database.store.admin
    looked = began = time.monotonic()
    with progress("redriving", len(todo)) as advance:
        for n, letter in enumerate(todo):
            if plan.rate is not None:
                time.sleep(max(0.0, began + n / plan.rate - time.monotonic()))
            if plan.stop_after_failures and time.monotonic() - looked > _LOOK_S:
                looked = time.monotonic()
                if _failed(database, results) >= plan.stop_after_failures:
                    results.stopped = True
                    return
            try:
                outcome = database.act(partial(redrive, admin, letter.id, who, decisions))
            except Refused as error:
                results.refused.append(str(error))
            else:
                if outcome == "redriven":
                    results.ids.append(letter.id)
                else:
                    results.already += 1
            advance(1)


def _failed(database: Database, results: _Results) -> int:
    return database.ask(outcomes(database.store.admin, results.ids)).get("open", 0)


def _wait(database: Database, plan: Plan, results: _Results) -> None:
    deadline = time.monotonic() + plan.wait_timeout_s
    with progress("waiting", len(results.ids)) as advance:
        settled = 0
        while time.monotonic() < deadline:
            counts = database.ask(outcomes(database.store.admin, results.ids))
            now = len(results.ids) - counts.get("redriven", 0)
            advance(now - settled)
            settled = now
            if plan.stop_after_failures and counts.get("open", 0) >= plan.stop_after_failures:
                results.stopped = True
                return
            if not counts.get("redriven", 0):
                return
            time.sleep(_LOOK_S)
    complain(f"not all were handled within {plan.wait_timeout_s:.0f} s", "is a worker running? `bothends status` shows")


def outbox(database: Database, seqs: Sequence[int], who: Act, *, yes: bool, json: bool, dry_run: bool) -> None:
    """Asks the relays to publish dead events again: those given, or all."""
    admin = database.store.admin
    chosen = [row["seq"] for row in database.ask(outbox_acts.dead(admin, seqs=seqs, limit=10_000))]
    if dry_run:
        as_json({"total": len(chosen), "dry_run": True}) if json else say(amount(len(chosen), "dead event"))
        return
    if chosen:
        ask(f"Publish {amount(len(chosen), 'dead event')} again?", yes)
    asked = sum(database.act(partial(outbox_acts.request, admin, seq, "retry", who)) for seq in chosen)
    if json:
        as_json({"total": len(chosen), "requested": asked})
    else:
        say(f"{asked} asked for; a relay carries it out")
