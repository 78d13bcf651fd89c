"""``health``: findings, each with its fix. Exit 1 where there is one [M8]."""

from __future__ import annotations

import typer

from bothends.admin.health import Finding, as_json, of_consumer, of_outbox
from bothends.cli import output
from bothends.cli.desk import AppArgument, AppOption, Json, ServiceOption, desk
from bothends.cli.numbers import read

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command()(health)


def health(
    app: AppArgument = None, app_option: AppOption = None, service: ServiceOption = None, json: Json = False,
) -> None:
    """What needs attention now. Exit 1 where anything does."""
    with desk(app or app_option) as found:
        numbers = read(found, service)
    findings: list[Finding] = []
    for outbox in numbers["outboxes"]:
        findings += of_outbox(f"outbox {outbox['name']}", outbox) if "error" not in outbox else []
    for consumer in numbers["consumers"]:
        findings += of_consumer(consumer)
    for problem in numbers["problems"]:
        where, _, what = problem.partition(": ")
        what, _, fix = what.partition("; ")
        findings.append(Finding(where, what, fix or "see that it is up and that `bothends config` shows the right URL"))
    if json:
        output.as_json({"ok": not findings, "findings": as_json(findings)})
    else:
        for finding in findings:
            output.say(f"{finding.where}: {finding.what}")
            output.say(f"  do: {finding.fix}")
        if not findings:
            output.say("healthy")
    raise typer.Exit(1 if findings else 0)
