"""``keys``: list, show, retry, skip, replace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bothends.admin import keys as acts
from bothends.admin import outbox
from bothends.admin.keytext import parse
from bothends.cli.dead import ConsumerOption, Limit, OutboxOption, _read_body
from bothends.cli.desk import AppOption, By, Database, Desk, Json, Reason, ServiceOption, Yes, act, desk, has_run
from bothends.cli.output import WrongUse, as_json, ask, duration, fields, say, table

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)

Key = Annotated[str, typer.Argument(metavar="KEY", help="Text, or base64:... for bytes that are none.")]
Topic = Annotated[str | None, typer.Option("--topic", help="Where the key waits in several topics.")]

_SHOWN = {"parked": "retrying (key held)", "held": "held behind a dead letter", "schema": "waits for a newer worker"}


def _place(found: Desk, consumer: str | None, outbox_: bool, service: str | None) -> tuple[Database, str | None]:
    if (consumer is None) == (not outbox_):
        raise WrongUse("nothing says whose key it is; give --consumer service.consumer, or --outbox")
    if consumer is None:
        return found.one_database(service, "--outbox"), None
    owner, name = found.consumer(consumer)
    return found.database(owner), name


@app.command("list")
def list_(
    consumer: ConsumerOption = None, outbox_: OutboxOption = False, limit: Limit = 100, app_: AppOption = None,
    service: ServiceOption = None, json: Json = False,
) -> None:
    """Keys that wait, the longest waiting first."""
    rows: list[dict[str, Any]] = []
    with desk(app_) as found:
        if outbox_:
            for database in found.databases(service):
                rows += [{"service": database.name, **r} for r in database.ask(outbox.keys(database.store.admin, limit=limit))]
        else:
            names = [consumer] if consumer else [c.name for s in found.app.services for c in s.consumers.values()
                                                 if service in (None, s.name)]
            for name in names:
                owner, full = found.consumer(name)
                database = found.database(owner)
                if has_run(database, full):
                    rows += database.ask(acts.keys(database.store.admin, full, limit=limit))
    if json:
        as_json(rows)
    elif outbox_:
        columns = ("key", "topic", "state", "attempts", "reason", "next_at", "request")
        table(columns, [[r[c] for c in columns] for r in rows], empty="no keys wait in the outbox")
    else:
        table(("key", "consumer", "topic", "state", "waiting", "age", "next"),
              [[r["key"] or f"(no key) {r['message_id']}", r["consumer"], r["topic"], _SHOWN.get(r["state"], r["state"]),
                r["waiting"], duration(r["age_s"]), r["next_at"]] for r in rows], empty="no keys wait")


@app.command("show")
def show_(
    key: Key, consumer: ConsumerOption = None, topic: Topic = None, app_: AppOption = None, json: Json = False,
) -> None:
    """One key of a consumer: its head, and what waits behind it."""
    if consumer is None:
        raise WrongUse("nothing says whose key it is; give --consumer service.consumer")
    with desk(app_) as found:
        owner, name = found.consumer(consumer)
        database = found.database(owner)
        shown = database.ask(acts.show(database.store.admin, name, parse(key), topic=topic))
    if json:
        as_json(shown)
        return
    fields({**shown, "state": _SHOWN.get(shown["state"], shown["state"]), "waiting": len(shown["waiting"])})
    table(("position", "id", "type", "attempts", "reason", "parked at", "error"),
          [[w["position"], w["id"], w["type"], w["attempts"], w["reason"], w["parked_at"], w["error"][:80]]
           for w in shown["waiting"]], empty="nothing is parked")


def _change(
    verb: str, key: str, consumer: str | None, outbox_: bool, topic: str | None, app_: str | None, service: str | None,
    by: str | None, reason: str, yes: bool, json: bool, body: bytes | None = None,
) -> None:
    raw, who = parse(key), act(by, reason)
    with desk(app_) as found:
        database, name = _place(found, consumer, outbox_, service)
        admin = database.store.admin
        ask(f"{verb.capitalize()} key {key} of {consumer or 'the outbox'}?", yes)
        if verb == "replace":
            said = database.act(lambda: outbox.replace(admin, raw, body, who, topic=topic) if name is None
                                else acts.replace(admin, name, raw, body, who, topic=topic))
        elif verb == "retry":
            said = database.act(lambda: outbox.request_key(admin, raw, "retry", who, topic=topic) if name is None
                                else acts.retry(admin, name, raw, who, topic=topic))
        else:
            said = database.act(lambda: outbox.request_key(admin, raw, "skip", who, topic=topic) if name is None
                                else acts.skip(admin, name, raw, who, topic=topic))
    if json:
        as_json({"key": key, "verb": verb, "done": said})
    else:
        say(f"{key}: {said}")


@app.command("retry")
def retry_(
    key: Key, consumer: ConsumerOption = None, outbox_: OutboxOption = False, topic: Topic = None, app_: AppOption = None,
    service: ServiceOption = None, by: By = None, reason: Reason = "", yes: Yes = False, json: Json = False,
) -> None:
    """Try the key's head now; a key held behind a dead letter has that letter redriven."""
    _change("retry", key, consumer, outbox_, topic, app_, service, by, reason, yes, json)


@app.command("skip")
def skip_(
    key: Key, consumer: ConsumerOption = None, outbox_: OutboxOption = False, topic: Topic = None, app_: AppOption = None,
    service: ServiceOption = None, by: By = None, reason: Reason = "", yes: Yes = False, json: Json = False,
) -> None:
    """Move the key's failed head to the dead letters; the key goes on."""
    _change("skip", key, consumer, outbox_, topic, app_, service, by, reason, yes, json)


@app.command("replace")
def replace_(
    key: Key, body: Annotated[Path, typer.Option("--body", help="File with the new body, or - for stdin.")],
    consumer: ConsumerOption = None, outbox_: OutboxOption = False, topic: Topic = None, app_: AppOption = None,
    service: ServiceOption = None, by: By = None, reason: Reason = "", yes: Yes = False, json: Json = False,
) -> None:
    """Give the key's head another body, under its id, and try it now."""
    _change("replace", key, consumer, outbox_, topic, app_, service, by, reason, yes, json, _read_body(body))
