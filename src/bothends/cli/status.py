"""``status``, ``trace`` and ``config``: reading commands. Exit 0 whatever they show."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import typer

from bothends.admin import trace as acts
from bothends.admin.amounts import amount, size
from bothends.cli.desk import AppArgument, AppOption, Json, ServiceOption, desk
from bothends.cli.numbers import read
from bothends.cli.output import as_json, duration, say, table
from bothends.config import app_name, shown, unknown_variables
from bothends.operating.apps import load

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    for command in (status, trace, config):
        app.command()(command)


def status(
    app: AppArgument = None, app_option: AppOption = None, service: ServiceOption = None, json: Json = False,
) -> None:
    """What waits, how old it is, how far consumers are behind, what is parked and dead, and when it will be done."""
    with desk(app or app_option) as found:
        numbers = read(found, service)
    if json:
        as_json(numbers)
        return
    for outbox in numbers["outboxes"]:
        if "error" in outbox:
            say(f"outbox {outbox['name']}: {outbox['error']}")
            continue
        plus = "+" if outbox["at_least"] else ""
        where = "" if outbox["in_log_bytes"] is None else " in the table"
        say(f"outbox {outbox['name']}: {outbox['waiting']}{plus} waiting{where}, {outbox['held']} held, {outbox['dead']} dead, "
            f"{outbox['delayed']} delayed; in {outbox['in_per_s']}/s, out {outbox['out_per_s']}/s, "
            f"{_outbox_drained(outbox)}; {amount(len(outbox['relays']), 'relay')}")
        _say_sources(outbox)
        table(("topic", "waiting", "oldest", "held", "dead"),
              [[t["topic"], t["waiting"], duration(t["oldest_age_s"]), t["held"], t["dead"]] for t in outbox["topics"]],
              empty=f"  nothing waits{where}")
    say()
    table(("consumer", "lag", "handled/s", "drained", "parked keys", "parked", "held", "dead", "oldest dead", "owner"),
          [[c["consumer"], c["lag"], c["processed_per_s"], _drained(c, c["parked"] or c["held_keys"]), c["parked_keys"],
            c["parked"], c["held_keys"], c["dead"], duration(c["oldest_dead_age_s"]), c["owner"]]
           for c in numbers["consumers"]],
          empty="consumers: not known" if any("error" in o for o in numbers["outboxes"]) else "no consumer has run yet")
    said = {f"{outbox['name']}: {outbox['error']}" for outbox in numbers["outboxes"] if "error" in outbox}
    for problem in numbers["problems"]:
        if problem not in said:
            say(problem)


def _say_sources(outbox: dict[str, Any]) -> None:
    """What relays read, where that is not simply the table, and why; and what their slots hold back."""
    reading = Counter((relay["source"], relay["reason"]) for relay in outbox["relays"])
    for (source, reason), count in sorted(reading.items()):
        if source != "poll" or reason:
            what = {"poll": "polls", "standby": "stands by"}.get(source, f"reads the log ({source})")
            several = {"poll": "poll", "standby": "stand by"}.get(source, f"read the log ({source})")
            say(f"  {amount(count, f'relay {what}', f'relays {several}')}" + (f": {reason}" if reason else ""))
    for slot in outbox["slots"]:
        held = "" if slot["retained_bytes"] is None else f", holds back {size(slot['retained_bytes'])} of the log"
        read = "" if slot["active"] or slot["wal_status"] == "missing" else ", nobody reads it"
        carries = slot["carries"] + (", temporary" if slot["temporary"] else "")
        say(f"  slot {slot['slot']} for {carries}: {slot['wal_status']}{held}{read}")


def _outbox_drained(outbox: dict[str, Any]) -> str:
    in_log = outbox["in_log_bytes"]
    if in_log is None:
        return _drained(outbox, outbox["held"])
    return f"what waits in the log is not counted (its slot holds back {size(in_log)})"


def _drained(numbers: dict[str, Any], kept: int) -> str:
    """When what can be read will have been. What is kept back, parked or held, has no such time."""
    left = numbers["drain_s"]
    if left is None:
        return "not draining"
    if left == 0 and kept:
        return "not drained"
    return "drained" if left == 0 else f"drained in {duration(left)}"


def trace(
    event_id: Annotated[str, typer.Argument(metavar="ID")], app: AppOption = None, service: ServiceOption = None,
    json: Json = False,
) -> None:
    """The life of one event, in order of time: outbox, inboxes, retries, dead letters, effects, and what it caused."""
    rows: list[dict[str, Any]] = []
    with desk(app) as found:
        for database in found.databases(service):
            rows += [{"service": database.name, **row} for row in database.ask(acts.trace(database.store.admin, event_id))]
    rows = acts.in_order(rows)
    if json:
        as_json(rows)
        return
    for row in rows:
        say(f"{row.get('at') or '':27}  {row['service']}: {row['place']}  " + "  ".join(
            f"{name}={value}" for name, value in row.items()
            if name not in ("service", "place", "at") and value not in (None, "")))
    if not rows:
        say(f"nothing is known of {event_id}: it was never added, or it was purged since")


def config(
    app: AppArgument = None, app_option: AppOption = None, service: ServiceOption = None, json: Json = False,
) -> None:
    """Each setting and where it came from, secrets masked."""
    loaded = load(app_name(app or app_option))
    chosen = loaded.services if service is None else (loaded.service(service),)
    unknown = unknown_variables(loaded.services)
    if json:
        as_json({
            "app": loaded.name, "unknown_variables": unknown,
            "services": {s.name: {name: {"value": value, "from": origin}
                                  for name, value, origin in shown(loaded.settings[s.name])} for s in chosen}})
        return
    for one in chosen:
        say(f"service {one.name}")
        table(("setting", "value", "from"), shown(loaded.settings[one.name]))
    for name in unknown:
        say(f"{name} sets nothing: no setting has this name")
