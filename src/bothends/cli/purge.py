"""``purge``: takes away what is older than its retention [C11]."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from bothends.admin import purge as acts
from bothends.admin.acts import audit
from bothends.admin.retention import keep_of
from bothends.cli.desk import AppArgument, AppOption, By, Json, Reason, ServiceOption, Yes, act, desk
from bothends.cli.output import as_json, ask, say

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command()(purge)


def purge(
    app: AppArgument = None, app_option: AppOption = None, service: ServiceOption = None, by: By = None,
    reason: Reason = "", yes: Yes = False, json: Json = False,
    history: Annotated[bool, typer.Option(help="Closed dead letters, settled effects and audit rows too.")] = True,
) -> None:
    """Remove inbox rows older than their retention, and old history. Workers do the same by themselves."""
    who, purged, kept = act(by, reason), acts.Purged(), {}
    with desk(app or app_option) as found:
        ask("Remove what is older than its retention?", yes)
        for one in found.app.services if service is None else (found.app.service(service),):
            database, settings = found.database(one), found.app.settings[one.name]
            admin = database.store.admin
            numbers = {name: number for number, name in database.ask(acts.consumers(admin))}
            for consumer in one.consumers.values():
                name = settings.group_prefix + consumer.name
                if name in numbers:
                    kept[name] = keep_s = keep_of(consumer, found.broker(one))
                    if keep_s is not None:
                        acts.purge_inbox(database.connection, admin, numbers[name], name, keep_s,
                                         grace_s=settings.purge_grace_s, purged=purged)
            if history:
                acts.purge_history(database.connection, admin, settings.history_keep_days * 86_400.0, purged=purged)
            if any(purged.rows.values()):
                database.act(partial(audit, admin, who, "purge", one.name, purged.rows))
    report = {**acts.report(purged), "kept_s": kept}
    if json:
        as_json(report)
        return
    for name, keep in kept.items():
        say(f"inbox {name}: rows are kept " + ("for ever" if keep is None else f"{keep / 3600:.1f} h"))
    say("removed: " + (", ".join(f"{n} {what}" for what, n in report["removed"].items() if n) or "nothing"))
