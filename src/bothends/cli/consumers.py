"""``consumers``: list, pause, resume."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from bothends.admin import consumers as acts
from bothends.cli.desk import AppOption, By, Json, Reason, ServiceOption, Yes, act, desk
from bothends.cli.output import as_json, ask, say, table

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="CONSUMER", help="service.consumer")]


@app.command("list")
def list_(app_: AppOption = None, service: ServiceOption = None, json: Json = False) -> None:
    """Consumers that have run: topics, first start, owner, whether they are paused, and about how many messages they have
    processed: workers add to that each second, and what one had not added when it was killed is missing."""
    rows: list[dict[str, Any]] = []
    with desk(app_) as found:
        names = [one.name for one in found.app.services if service in (None, one.name)]
        for database in found.databases(service):
            rows += database.ask(acts.consumers(database.store.admin, names))
    if json:
        as_json(rows)
        return
    columns = ("consumer", "owner", "topics", "start", "started_at", "paused", "processed")
    table(columns, [["yes" if r[c] is True else "" if r[c] is False else r[c] for c in columns] for r in rows],
          empty="no consumer has run yet")


@app.command("pause")
def pause_(
    consumer: Name, app_: AppOption = None, by: By = None, reason: Reason = "", yes: Yes = False, json: Json = False,
) -> None:
    """Take nothing new, within a second or two, on every worker; what is in hand is finished."""
    _set(consumer, True, app_, by, reason, yes, json)


@app.command("resume")
def resume_(
    consumer: Name, app_: AppOption = None, by: By = None, reason: Reason = "", yes: Yes = False, json: Json = False,
) -> None:
    """Go on."""
    _set(consumer, False, app_, by, reason, yes, json)


def _set(consumer: str, paused: bool, app_: str | None, by: str | None, reason: str, yes: bool, json: bool) -> None:
    verb = "pause" if paused else "resume"
    with desk(app_) as found:
        service, name = found.consumer(consumer)
        database = found.database(service)
        ask(f"{verb} {name}?", yes)
        changed = database.act(lambda: acts.set_paused(database.store.admin, name, paused, act(by, reason)))
    if json:
        as_json({"consumer": name, "paused": paused, "changed": changed})
    else:
        say(f"{name} is {'paused' if paused else 'running'}" + ("" if changed else " already"))
