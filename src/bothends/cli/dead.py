"""``dead``: list, show, redrive, edit, discard."""

from __future__ import annotations

import difflib
import os
import shlex
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from bothends.admin import outbox
from bothends.admin.acts import NotThere
from bothends.admin.dead import LIST_MAX, Filter, body_of, discard, edit, groups, letters, show
from bothends.admin.redrive import redrive
from bothends.cli import redriving
from bothends.cli.desk import AppOption, By, Database, Desk, Json, Reason, ServiceOption, Yes, act, desk, has_run
from bothends.cli.output import WrongUse, as_json, ask, duration, fields, say, table
from bothends.core.consuming import HISTORY_MAX
from bothends.errors import ConfigError

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)

ConsumerOption = Annotated[str | None, typer.Option("--consumer", help="service.consumer")]
OutboxOption = Annotated[bool, typer.Option("--outbox", help="Events that the broker refused.")]
Ids = Annotated[list[int] | None, typer.Argument(metavar="[ID]...")]
Fingerprint = Annotated[str | None, typer.Option("--fingerprint", help="Its beginning is enough.")]
Why = Annotated[str | None, typer.Option("--dead-reason", help="The reason of the dead letter, as listed.")]
Older = Annotated[float | None, typer.Option("--older-than", min=0, help="Seconds since it died.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=LIST_MAX)]


def _place(found: Desk, consumer: str | None, service: str | None, what: str) -> tuple[Database, str | None]:
    """The database that a change is about, and the consumer's full name."""
    if consumer is not None:
        owner, name = found.consumer(consumer)
        return found.database(owner), name
    return found.one_database(service, what), None


def _places(found: Desk, consumer: str | None, service: str | None) -> list[tuple[Database, str | None]]:
    if consumer is not None:
        owner, name = found.consumer(consumer)
        return [(found.database(owner), name)]
    return [(database, None) for database in found.databases(service)]


@app.command("list")
def list_(
    group: Annotated[str | None, typer.Option("--group", help="fingerprint: one line per kind.")] = None,
    consumer: ConsumerOption = None, outbox_: OutboxOption = False, fingerprint: Fingerprint = None, why: Why = None,
    older: Older = None, limit: Limit = 100, app_: AppOption = None, service: ServiceOption = None, json: Json = False,
) -> None:
    """Open dead letters of each database, in the order in which their messages first failed."""
    if group not in (None, "fingerprint"):
        raise WrongUse("--group takes: fingerprint")
    rows: list[dict[str, Any]] = []
    with desk(app_) as found:
        for database, name in _places(found, consumer, service):
            admin = database.store.admin
            if outbox_:
                rows += [{"service": database.name, **row} for row in database.ask(outbox.dead(admin, limit=limit))]
            elif name is not None and not has_run(database, name):
                continue
            elif group:
                rows += database.ask(groups(admin, name, limit))
            else:
                wanted = Filter(consumer=name, fingerprint=fingerprint, reason=why, older_than_s=older)
                rows += [{**letter.as_json(), "service": database.name}
                         for letter in database.ask(letters(admin, wanted, limit=limit))]
    if json:
        as_json(rows)
    elif outbox_:
        table(("seq", "service", "topic", "key", "type", "reason", "attempts", "request"),
              [[r[c] for c in ("seq", "service", "topic", "key", "type", "reason", "attempts", "request")] for r in rows],
              empty="no dead events in the outbox")
    elif group:
        table(("count", "consumer", "fingerprint", "reason", "owner", "oldest", "example", "error"),
              [[r["count"], r["consumer"], r["fingerprint"], r["reason"], r["owner"], r["oldest"], r["example"], r["error"]]
               for r in rows], empty="no dead letters")
    else:
        table(("id", "consumer", "reason", "fingerprint", "key", "type", "attempts", "age", "error"),
              [[r["id"], r["consumer"], r["reason"], r["fingerprint"], r["key"], r["type"], r["attempts"],
                duration(r["age_s"]), r["error"][:80]] for r in rows], empty="no dead letters")


@app.command("show")
def show_(
    id_: Annotated[int, typer.Argument(metavar="ID")], consumer: ConsumerOption = None, app_: AppOption = None,
    service: ServiceOption = None, json: Json = False,
) -> None:
    """Everything about one: bytes, headers, attempts, effects, acts."""
    with desk(app_) as found:
        shown = _shown([database for database, _ in _places(found, consumer, service)], id_)
    if json:
        as_json(shown)
        return
    fields(_labelled(shown))
    for name in ("headers", "history", "effects", "acts"):
        if shown[name]:
            say(f"\n{name}:")
            for entry in shown[name]:
                say("  " + ("  ".join(map(str, entry)) if isinstance(entry, list) else
                            "  ".join(f"{k}={v}" for k, v in entry.items() if v not in (None, ""))))


def _labelled(shown: dict[str, Any]) -> dict[str, Any]:
    """The fields of a letter as people read them: what became of it before the error that it died of, and what is counted."""
    labels = {} if shown["state"] == "open" else {"reason": "it died of", "error": "its last error"}
    if shown["redrives"]:
        labels["attempts"] = "attempts, the last time"
    found: dict[str, Any] = {}
    for name, value in shown.items():
        if name not in ("history", "headers", "acts", "effects", "ended"):
            found[labels.get(name, name)] = value
        if name == "state":
            found["ended"] = shown["ended"]
        if name == "attempts":
            failed = len(shown["history"])
            found["failed runs"] = f"{failed} or more" if failed >= HISTORY_MAX else failed or None
    return found


def _shown(databases: list[Database], id_: int) -> dict[str, Any]:
    """The letter of that number, whichever database has it. ConfigError where several do."""
    shown: dict[str, dict[str, Any]] = {}
    missing: NotThere | None = None
    for database in databases:
        try:
            shown[database.name] = database.ask(show(database.store.admin, id_))
        except NotThere as error:
            missing = error
    if not shown and missing is not None:
        raise missing
    if len(shown) > 1:
        raise ConfigError(f"{len(shown)} databases have a dead letter {id_}; add --service ({', '.join(shown)})")
    return next(iter(shown.values()))


@app.command("redrive")
def redrive_(
    ids: Ids = None, consumer: ConsumerOption = None, fingerprint: Fingerprint = None, why: Why = None, older: Older = None,
    outbox_: OutboxOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many are ready and how many overtaken.")] = False,
    skip_overtaken: Annotated[bool, typer.Option("--skip-overtaken", help="Leave those whose key has moved on.")] = False,
    rate: Annotated[float | None, typer.Option("--rate", min=0.001, max=10_000, help="At most so many per second.")] = None,
    stop_after_failures: Annotated[int | None, typer.Option("--stop-after-failures", min=1)] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Until each has been handled, or is dead again.")] = False,
    wait_timeout: Annotated[float, typer.Option("--wait-timeout", min=1, max=86_400, help="Seconds.")] = 3600,
    effect: Annotated[list[str] | None, typer.Option("--effect", help="NAME=repeat | NAME=not-done | NAME=done:JSON")] = None,
    limit: Limit = LIST_MAX, app_: AppOption = None, service: ServiceOption = None, by: By = None, reason: Reason = "",
    yes: Yes = False, json: Json = False,
) -> None:
    """Run dead letters again, each in its place in its key's order."""
    wanted = Filter(ids=ids or (), fingerprint=fingerprint, reason=why, older_than_s=older,
                    states=("open", "discarded") if ids else ("open",))
    if consumer is None and not wanted.narrow() and not outbox_:
        raise WrongUse("nothing says which dead letters are meant; give numbers, --consumer, --fingerprint, "
                       "--dead-reason, --older-than or --outbox")
    with desk(app_) as found:
        if outbox_:
            database = found.one_database(service, "--outbox")
            redriving.outbox(database, ids or [], act(by, reason), yes=yes, json=json, dry_run=dry_run)
            return
        database, name = _place(found, consumer, service, "the number of a dead letter" if ids else "a filter")
        plan = redriving.Plan(
            wanted=wanted, consumer=name, dry_run=dry_run, skip_overtaken=skip_overtaken, rate=rate, wait=wait,
            stop_after_failures=stop_after_failures, wait_timeout_s=wait_timeout, effects=tuple(effect or ()), limit=limit)
        redriving.letters(found, database, plan, act(by, reason), yes=yes, json=json)


@app.command("edit")
def edit_(
    id_: Annotated[int, typer.Argument(metavar="ID")],
    body: Annotated[Path | None, typer.Option("--body", help="File with the new body, or - for stdin; else $EDITOR.")] = None,
    then_redrive: Annotated[bool, typer.Option("--redrive", help="Redrive it at once.")] = False,
    consumer: ConsumerOption = None, app_: AppOption = None, service: ServiceOption = None, by: By = None,
    reason: Reason = "", yes: Yes = False, json: Json = False,
) -> None:
    """Change the body of one; it keeps its id, and both hashes are kept."""
    with desk(app_) as found:
        database, _ = _place(found, consumer, service, "the number of a dead letter")
        admin = database.store.admin
        old = database.ask(body_of(admin, id_)) or b""
        new = _read_body(body) if body is not None else _in_editor(old)
        changed = _diff(old, new)
        if not json:
            for line in changed or ["no difference"]:
                say(line)
        if changed:
            ask(f"Give dead letter {id_} this body?", yes)
        database.act(lambda: edit(admin, id_, new, act(by, reason)))
        outcome = database.act(lambda: redrive(admin, id_, act(by, reason))) if then_redrive else None
    if json:
        as_json({"id": id_, "changed": bool(changed), "diff": changed, "redrive": outcome})
    elif outcome:
        say(f"dead letter {id_}: {outcome.replace('_', ' ')}")


def _read_body(path: Path) -> bytes:
    if str(path) == "-":
        return sys.stdin.buffer.read()
    try:
        return path.read_bytes()
    except OSError as error:
        raise WrongUse(f"--body: {error}") from error


def _in_editor(old: bytes) -> bytes:
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not editor:
        raise WrongUse("set EDITOR, or give the new body with --body FILE")
    with tempfile.NamedTemporaryFile(suffix=".json", prefix="bothends-") as file:
        file.write(old)
        file.flush()
        done = subprocess.run([*shlex.split(editor), file.name], check=False)
        if done.returncode:
            raise WrongUse(f"the editor ended with status {done.returncode}; nothing was changed")
        return Path(file.name).read_bytes()


def _diff(old: bytes, new: bytes) -> list[str]:
    before, after = (text.decode(errors="backslashreplace").splitlines() for text in (old, new))
    return list(difflib.unified_diff(before, after, "dead letter", "edited", lineterm=""))


@app.command("discard")
def discard_(
    ids: Annotated[list[int], typer.Argument(metavar="ID...")], consumer: ConsumerOption = None,
    outbox_: OutboxOption = False, app_: AppOption = None, service: ServiceOption = None, by: By = None,
    reason: Reason = "", yes: Yes = False, json: Json = False,
) -> None:
    """Close dead letters: their messages will not be handled, unless one is redriven by its number."""
    with desk(app_) as found:
        database, _ = _place(found, consumer, service, "the number of a dead letter")
        admin, who = database.store.admin, act(by, reason)
        ask(f"Discard {len(ids)}?", yes)
        done = 0
        for id_ in ids:
            if outbox_:
                done += database.act(partial(outbox.request, admin, id_, "discard", who))
            else:
                done += database.act(partial(discard, admin, id_, who))
    if json:
        as_json({"asked": len(ids), "discarded": done})
    else:
        say(f"{done} discarded" + (f", {len(ids) - done} were before" if done < len(ids) else ""))
