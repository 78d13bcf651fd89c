"""``topics``: check, create."""

from __future__ import annotations

import typer

from bothends.admin import topics as acts
from bothends.cli.desk import AppArgument, AppOption, Json, ServiceOption, desk
from bothends.cli.output import as_json, say, table

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)


@app.command("check")
def check_(
    app_: AppArgument = None, app_option: AppOption = None, service: ServiceOption = None, json: Json = False,
) -> None:
    """Whether the broker has each topic of APP. Exit 1 where it has not."""
    rows = []
    with desk(app_ or app_option) as found:
        for one in found.app.services if service is None else (found.app.service(service),):
            broker = found.broker(one)
            for name, why in acts.declared(one).items():
                state = broker.topic(name)
                rows.append({"topic": name, "service": one.name, "used_by": why, "state": state.state,
                             "partitions": state.partitions, "detail": state.detail})
    if json:
        as_json(rows)
    else:
        table(("topic", "service", "used by", "state", "partitions", "detail"), [list(r.values()) for r in rows],
              empty="the application declares no topics")
        if any(r["state"] == "missing" for r in rows):
            say("`bothends topics create` makes those that are missing")
    raise typer.Exit(0 if all(r["state"] == "ok" for r in rows) else 1)


@app.command("create")
def create_(
    app_: AppArgument = None, app_option: AppOption = None, service: ServiceOption = None, json: Json = False,
) -> None:
    """Make the topics of APP that are missing."""
    made: list[str] = []
    there: list[str] = []
    with desk(app_ or app_option) as found:
        for one in found.app.services if service is None else (found.app.service(service),):
            broker = found.broker(one)
            for name in acts.declared(one):
                if name not in made + there:
                    new = broker.create_topic(name, found.app.settings[one.name].partitions)
                    (made if new else there).append(name)
    if json:
        as_json({"created": made, "there": there})
    else:
        say(f"created: {', '.join(made) or 'none'}; there already: {', '.join(there) or 'none'}")
