"""``relay``, ``work`` and ``run``: a supervisor and its children."""

from __future__ import annotations

import contextlib
import os
from typing import Annotated, Any, Literal

import typer

from bothends.cli.options import AppArgument, AppOption, ServiceOption
from bothends.config import app_name, resolve
from bothends.operating.standby import CANNOT, WORKS, StandBy, spawn
from bothends.operating.supervisor import Supervisor, Task
from bothends.service import Service
from bothends.telemetry import logs

__all__ = ["register"]

PROCESSES_MAX = 64

Consumers = Annotated[str, typer.Option("--consumers", help="Only these, with commas: stock,inventory.audit.")]
Processes = Annotated[int, typer.Option("--processes", min=1, max=PROCESSES_MAX, help="Worker processes.")]
Member = Annotated[int | None, typer.Option(
    "--member", min=0, max=9999, help="Index of the first worker process on this host, for static membership.")]
CreateTopics = Annotated[bool, typer.Option("--create-topics", help="Make missing topics (for development).")]
StopTimeout = Annotated[float | None, typer.Option("--stop-timeout", min=0, max=3600, help="Seconds a stop may take.")]
Adopt = Annotated[bool, typer.Option("--adopt", help="Publish to this broker, though another one is on record.")]
DatabaseUrl = Annotated[str | None, typer.Option("--database", help="URL; wins over every other source.")]
BrokerUrl = Annotated[str | None, typer.Option("--broker", help="URL; wins over every other source.")]
Source = Annotated[Literal["auto", "poll", "wal", "message"] | None, typer.Option(
    "--source", help="Where relays read: the outbox table, PostgreSQL's log, or messages in it.")]
JsonLogs = Annotated[bool, typer.Option("--json", help="Log lines as JSON.")]


def relay(
    context: typer.Context, app: AppArgument = None, app_option: AppOption = None, service: ServiceOption = None,
    source: Source = None, adopt: Adopt = False, create_topics: CreateTopics = False, stop_timeout: StopTimeout = None,
    database: DatabaseUrl = None, broker: BrokerUrl = None, json: JsonLogs = False,
) -> None:
    """Publish what waits in each outbox of APP. Any number of relays share the work."""
    flags = _flags(create_topics, stop_timeout, database, broker, json, source)
    _supervise(context.obj, app or app_option, flags, service=service, relays=True, workers=0, adopt=adopt)


def work(
    context: typer.Context, app: AppArgument = None, app_option: AppOption = None, service: ServiceOption = None,
    consumers: Consumers = "",
    processes: Processes = 1, member: Member = None, create_topics: CreateTopics = False, stop_timeout: StopTimeout = None,
    database: DatabaseUrl = None, broker: BrokerUrl = None, json: JsonLogs = False,
) -> None:
    """Handle events with each consumer of APP."""
    flags = _flags(create_topics, stop_timeout, database, broker, json)
    _supervise(context.obj, app or app_option, flags, service=service, relays=False, workers=processes, consumers=consumers,
               member=member)


def run(
    context: typer.Context, app: AppArgument = None, app_option: AppOption = None, service: ServiceOption = None,
    consumers: Consumers = "",
    processes: Processes = 1, member: Member = None, source: Source = None, adopt: Adopt = False,
    create_topics: CreateTopics = False, stop_timeout: StopTimeout = None, database: DatabaseUrl = None,
    broker: BrokerUrl = None, json: JsonLogs = False,
) -> None:
    """Relay and workers of APP in one command."""
    flags = _flags(create_topics, stop_timeout, database, broker, json, source)
    _supervise(context.obj, app or app_option, flags, service=service, relays=True, workers=processes, consumers=consumers,
               member=member, adopt=adopt)


def register(app: typer.Typer) -> None:
    for command in (relay, work, run):
        app.command()(command)


def _flags(
    create_topics: bool, stop_timeout: float | None, database: str | None, broker: str | None, json: bool,
    source: str | None = None,
) -> dict[str, Any]:
    return {
        "create_topics": create_topics or None, "stop_timeout_s": stop_timeout, "database_url": database,
        "broker_url": broker, "log_format": "json" if json else None, "relay_source": source,
    }


def _supervise(
    early: list[StandBy], given: str | None, flags: dict[str, Any], *, service: str | None, relays: bool, workers: int,
    consumers: str = "", member: int | None = None, adopt: bool = False,
) -> None:
    name = app_name(given)
    settings = resolve(Service("supervisor"), {**flags, "database_url": None, "broker_url": None})
    first = member if member is not None else settings.member
    chosen = [c for c in consumers.split(",") if c]
    common = {
        "app": name, "service": service, "flags": flags, "log_format": settings.log_format,
        "log_level": settings.log_level, "stop_timeout_s": settings.stop_timeout_s,
    }
    tasks = [Task("relay", {**common, "role": "relay", "adopt": adopt})] if relays else []
    for n in range(workers):
        tasks.append(Task(f"work-{n}", {
            **common, "role": "work", "consumers": chosen, "purges": n == 0,
            "member": None if first is None else first + n}))
    check = {"service": service, "relays": relays, "workers": workers > 0, "consumers": chosen}
    if not _prepare(early, tasks, name, flags, check):
        tasks = tasks[:1]  # `run` of an application that only produces
    logs.setup(settings.log_format, settings.log_level, role="supervisor", pid=os.getpid())
    raise typer.Exit(Supervisor(tasks, stop_timeout_s=settings.stop_timeout_s, early=early, spares=settings.spares).run())


def _prepare(
    early: list[StandBy], tasks: list[Task], name: str, flags: dict[str, Any], check: dict[str, Any]
) -> bool:
    """Lets the first children import the application, and asks one of them whether it has what is wanted; whether there
    is work for workers. What is wrong is said here, once, and not by each child: then the application is loaded here."""
    with contextlib.suppress(OSError):  # no memory, no process slot: the supervisor tries again, and tells
        while len(early) < len(tasks):
            early.insert(0, spawn(tasks[0].module))
    for task, one in zip(tasks, reversed(early), strict=False):
        one.prepare({**task.task, "check": check})
    answer = early[-1].answer() if early else CANNOT
    if answer == CANNOT:
        from bothends.operating.apps import load

        return load(name, flags).check(**check)
    return answer == WORKS
