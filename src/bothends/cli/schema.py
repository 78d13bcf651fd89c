"""``schema``: apply, status, sql."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from bothends.admin.losses import losses
from bothends.cli.desk import AppArgument, AppOption, Json, ServiceOption
from bothends.cli.output import WrongUse, as_json, ask, say, table
from bothends.config import app_name, need_database
from bothends.operating.apps import App, load
from bothends.stores import Store, open_store
from bothends.stores import schema as tables
from bothends.stores.steps import run
from bothends.urls import mask

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)

LOG_VERSION = 5
"""The schema's version from which on a relay may have a slot and a publication."""


def _stores(given: str | None, service: str | None) -> list[tuple[str, Store, bool]]:
    """Each outbox once: a service of it, and whether its events are messages."""
    loaded: App = load(app_name(given))
    found: dict[tuple[str, str], tuple[str, Store, bool]] = {}
    for one in loaded.services if service is None else (loaded.service(service),):
        url = need_database(loaded.settings[one.name])
        found.setdefault((url, one.schema), (
            one.name, open_store(url, one.schema), loaded.settings[one.name].relay_source == "message"))
    return list(found.values())


def _ask_before_losses(stores: list[Store], to: int) -> None:
    """Once for all databases, before any of them is changed; nothing is asked where none goes down."""
    lost = []
    for store in stores:
        connection = store.connect(name="bothends schema")
        try:
            now = tables.status(store, connection=connection).version
            if now > to:
                what = run(losses(store.admin, now, to), connection)
                lost.append(f"{mask(store.url)} goes from version {now} down to {to} and loses "
                            f"{', '.join(what) or 'tables that are empty'}.")
        finally:
            connection.close()
    if lost:
        ask(f"{' '.join(lost)} Go on?", yes=False)


def _remove_log(store: Store) -> None:
    """A slot that outlives the tables would keep the log for ever."""
    if store.dialect != "postgresql" or tables.status(store).version < LOG_VERSION:
        return
    from bothends.stores.postgresql.slots import SlotSteps

    connection = store.connect(name="bothends schema")
    try:
        for messages in (False, True):
            run(SlotSteps(store.schema, messages=messages).remove(), connection)
    finally:
        connection.close()


def _slot(store: Store, keeps: bool) -> str | None:
    """The slot that was made, so that no message is missed before the first relay runs."""
    if not keeps or tables.status(store).pending:
        return None
    from bothends.stores.postgresql.slots import SlotSteps

    connection = store.connect(name="bothends schema")
    try:
        return run(SlotSteps(store.schema, messages=True).prepare(), connection)
    finally:
        connection.close()


@app.command("apply")
def apply_(
    app_: AppArgument = None, app_option: AppOption = None, service: ServiceOption = None, json: Json = False,
    to: Annotated[int | None, typer.Option("--to", min=0, help="Version to go to, up or down; default: the newest.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before a downgrade; it needs this off a terminal.")] = False,
) -> None:
    """Make or upgrade our tables in each database of APP; any number may run at once.

    A downgrade (--to) drops tables with what is in them: it says what would be lost, and asks.
    """
    rows: list[dict[str, Any]] = []
    stores = _stores(app_ or app_option, service)
    if to is not None and not yes:
        _ask_before_losses([store for _, store, _ in stores], to)
    for name, store, keeps in stores:
        if to is not None and to < LOG_VERSION:
            _remove_log(store)
        rows.append({"service": name, "database": mask(store.url), "applied": tables.apply(store, to),
                     "slot": _slot(store, keeps)})
    if json:
        as_json(rows)
        return
    for row in rows:
        say(f"{row['service']}: {', '.join(row['applied']) or 'up to date'} ({row['database']})")
        if row["slot"]:
            say(f"{row['service']}: the slot {row['slot']} keeps messages from now on")


@app.command("status")
def status_(
    app_: AppArgument = None, app_option: AppOption = None, service: ServiceOption = None, json: Json = False,
) -> None:
    """Which version each database has. Exit 1 where one lacks a migration."""
    rows: list[dict[str, Any]] = []
    for name, store, _ in _stores(app_ or app_option, service):
        found = tables.status(store)
        rows.append({"service": name, "database": mask(store.url), "version": found.version, "latest": found.latest,
                     "pending": list(found.pending), "ok": found.ok})
    if json:
        as_json(rows)
    else:
        table(("service", "version", "latest", "pending", "database"),
              [[r["service"], r["version"], r["latest"], ", ".join(r["pending"]), r["database"]] for r in rows])
    raise typer.Exit(0 if all(row["ok"] for row in rows) else 1)


@app.command("sql")
def sql_(
    app_: AppArgument = None, app_option: AppOption = None, service: ServiceOption = None,
    grants: Annotated[str, typer.Option(
        "--grants", help="app=ROLE,relay=ROLE: rights for a role that adds events, and for one that relays and works.")] = "",
    since: Annotated[int, typer.Option("--since", min=0, help="The version that the database has.")] = 0,
) -> None:
    """The same as SQL text, for a person or a migration tool."""
    roles = _roles(grants)
    for name, store, _ in _stores(app_ or app_option, service):
        print(f"-- service {name}, {store.dialect}")
        print(tables.script("sqlite" if store.dialect == "sqlite" else "postgresql", store.schema, since=since))
        if store.dialect == "postgresql":
            for role, what in roles:
                print(tables.grants(store.schema, role, "add" if what == "app" else "run"))


def _roles(text: str) -> list[tuple[str, str]]:
    found = []
    for part in filter(None, text.split(",")):
        what, _, role = part.partition("=")
        if what not in ("app", "relay", "work") or not role:
            raise WrongUse("--grants takes app=ROLE, relay=ROLE and work=ROLE, with commas")
        found.append((role, what))
    return found
