"""``topics``: check, create."""

from __future__ import annotations

from typing import Any

import typer

from bothends.admin import topics as acts
from bothends.cli.desk import AppArgument, AppOption, Desk, Json, ServiceOption, desk
from bothends.cli.output import as_json, note, say, table
from bothends.service import Service

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)


def _uses(found: Desk, service: str | None) -> list[tuple[Service, str, acts.Use]]:
    """Each topic of each service. Of services that share an outbox, the first has what waits for nobody's topic."""
    uses: list[tuple[Service, str, acts.Use]] = []
    unclaimed: set[tuple[str | None, str, str]] = set()
    for one in found.app.services if service is None else (found.app.service(service),):
        outbox = (found.app.settings[one.name].database_url, one.schema)
        others = [o for o in found.app.services
                  if o is not one and (found.app.settings[o.name].database_url, o.schema) == outbox]
        known = {*acts.declared(one), acts.default_of(one)}
        for topic, use in acts.uses(one, _waiting(found, one), others).items():
            if topic in known or (*outbox, topic) not in unclaimed:
                uses.append((one, topic, use))
            if topic not in known:
                unclaimed.add((*outbox, topic))
    return uses


def _waiting(found: Desk, service: Service) -> dict[str, int]:
    """What the service's outbox has events for. Topics may be made before tables are, and from where no database is
    within reach: what the code declares is known all the same."""
    if not found.app.settings[service.name].database_url:
        return {}
    try:
        database = found.database(service)
        return database.ask(acts.waiting(database.store.admin))
    except Exception as error:
        note(f"topics that only waiting events of {service.name} name are not looked for: {error}")
        return {}


@app.command("check")
def check_(
    app_: AppArgument = None, app_option: AppOption = None, service: ServiceOption = None, json: Json = False,
) -> None:
    """Whether the broker has each topic of APP: those that the code declares, those that events in the outbox wait for,
    and each service's default topic. Exit 1 where one is missing that is needed."""
    rows: list[dict[str, Any]] = []
    with desk(app_ or app_option) as found:
        for one, name, use in _uses(found, service):
            state = found.answering_broker(one).topic(name)
            rows.append({"topic": name, "service": one.name, "used_by": use.by, "state": state.state,
                         "partitions": state.partitions, "detail": state.detail, "needed": use.needed})
    if json:
        as_json(rows)
    else:
        table(("topic", "service", "used by", "state", "partitions", "detail"),
              [[r["topic"], r["service"], r["used_by"], r["state"] if r["needed"] or r["state"] == "ok" else "not needed",
                r["partitions"], r["detail"]] for r in rows])
        if any(r["state"] == "missing" and r["needed"] for r in rows):
            say("`bothends topics create` makes those that are missing")
    raise typer.Exit(0 if all(r["state"] == "ok" or not r["needed"] for r in rows) else 1)


@app.command("create")
def create_(
    app_: AppArgument = None, app_option: AppOption = None, service: ServiceOption = None, json: Json = False,
) -> None:
    """Make the topics of APP that are missing: those that its code declares, and those that events in its outbox wait
    for."""
    made: list[str] = []
    there: list[str] = []
    with desk(app_ or app_option) as found:
        for one, name, use in _uses(found, service):
            if use.needed and name not in made + there:
                new = found.answering_broker(one).create_topic(name, found.app.settings[one.name].partitions)
                (made if new else there).append(name)
    if json:
        as_json({"created": made, "there": there})
    else:
        say(f"created: {', '.join(made) or 'none'}; there already: {', '.join(there) or 'none'}")
