"""``check``: the crash explorer over an application's cases. Exit 1 where it finds something, 2 where there is no case [T4]."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bothends.cli import output
from bothends.cli.options import AppArgument, AppOption, Json

if TYPE_CHECKING:
    from bothends.testing.cases import Case
    from bothends.testing.exploring.reports import Report

__all__ = ["check", "register"]

BUDGET = 2_000


def register(app: typer.Typer) -> None:
    app.command()(check)


def check(
    app: AppArgument = None, app_option: AppOption = None,
    cases: Annotated[
        list[str] | None, typer.Option("--case", metavar="NAME", help="Only this case; may be given more than once.")
    ] = None,
    depth: Annotated[int, typer.Option(min=1, max=2, help="2: pairs of faults as well.")] = 1,
    budget: Annotated[int, typer.Option(min=3, max=10_000_000, help="Runs of each case, at most.")] = BUDGET,
    seed: Annotated[int, typer.Option(help="The same seed gives the same story.")] = 0,
    database: Annotated[
        str | None, typer.Option(
            metavar="URL", help="PostgreSQL: left alone, a scratch database is made on its server. SQLite: overwritten. "
            "[default: the services' own PostgreSQL, else SQLite in memory]")
    ] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a JUnit report as well.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with the timelines drawn as well.")] = None,
    json: Json = False,
) -> None:
    """Run the handlers of APP with a crash, a duplicate, a reordering or a lost acknowledgement at every place where there
    can be one, and compare how it ends.

    Its cases are functions marked with @bothends.testing.case. Exit 1 where something is found, 2 where there is no case.
    """
    from bothends.config import app_name
    from bothends.operating.apps import load
    from bothends.testing.exploring.checking import cases_of
    from bothends.testing.exploring.checking import check as explored
    from bothends.testing.exploring.reports import as_text

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends like Ctrl-C: scratch databases are dropped
    name = app_name(app or app_option)
    loaded = load(name)
    chosen = _chosen(cases_of(name, loaded.services), cases or [])
    reports: list[Report] = []
    both: Literal[1, 2] = 2 if depth == 2 else 1
    for report in explored(name, loaded.services, chosen, depth=both, budget=budget, seed=seed, database=database):
        reports.append(report)
        if not json:
            output.say(as_text(report))
    _write(name, reports, junit, html, json)
    raise typer.Exit(0 if all(reports) else 1)


def _chosen(found: Sequence[Case], names: Sequence[str]) -> list[Case]:
    """The named cases, or all."""
    there = {case.name: case for case in found}
    if unknown := [name for name in names if name not in there]:
        raise output.WrongUse(f"there is no case {unknown[0]!r}; there is {', '.join(there)}")
    return [case for case in found if not names or case.name in names]


def _write(name: str, reports: Sequence[Report], junit: Path | None, html: Path | None, json: bool) -> None:
    from bothends.testing.exploring.documents import as_dict, as_junit

    if json:
        output.as_json(as_dict(name, reports))
    else:
        findings = sum(len(report.findings) for report in reports)
        output.say(
            f"{name}: {findings} finding{'' if findings == 1 else 's'} in {len(reports)} case"
            f"{'' if len(reports) == 1 else 's'}, {sum(report.boundaries for report in reports)} boundaries, "
            f"{sum(report.runs for report in reports)} runs"
        )
    if junit is not None:
        junit.write_text(as_junit(name, reports), "utf-8")
    if html is not None:
        from bothends.testing.exploring.pages import as_page

        html.write_text(as_page(name, reports), "utf-8")
