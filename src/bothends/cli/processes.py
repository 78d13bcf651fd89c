"""``relay``, ``work`` and ``run``: a supervisor and its children."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from bothends.cli.options import AppArgument, AppOption, ServiceOption
from bothends.config import app_name, resolve
from bothends.operating.apps import App, load
from bothends.operating.standby import standing_by
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
JsonLogs = Annotated[bool, typer.Option("--json", help="Log lines as JSON.")]


def relay(
    app: AppArgument = None, app_option: AppOption = None, service: ServiceOption = None, adopt: Adopt = False,
    create_topics: CreateTopics = False, stop_timeout: StopTimeout = None, database: DatabaseUrl = None,
    broker: BrokerUrl = None, json: JsonLogs = False,
) -> None:
    """Publish what waits in each outbox of APP. Any number of relays share the work."""
    flags = _flags(create_topics, stop_timeout, database, broker, json)
    _supervise(app or app_option, flags, service=service, relays=True, workers=0, adopt=adopt)


def work(
    app: AppArgument = None, app_option: AppOption = None, service: ServiceOption = None, consumers: Consumers = "",
    processes: Processes = 1, member: Member = None, create_topics: CreateTopics = False, stop_timeout: StopTimeout = None,
    database: DatabaseUrl = None, broker: BrokerUrl = None, json: JsonLogs = False,
) -> None:
    """Handle events with each consumer of APP."""
    flags = _flags(create_topics, stop_timeout, database, broker, json)
    _supervise(app or app_option, flags, service=service, relays=False, workers=processes, consumers=consumers,
               member=member)


def run(
    app: AppArgument = None, app_option: AppOption = None, service: ServiceOption = None, consumers: Consumers = "",
    processes: Processes = 1, member: Member = None, adopt: Adopt = False, create_topics: CreateTopics = False,
    stop_timeout: StopTimeout = None, database: DatabaseUrl = None, broker: BrokerUrl = None, json: JsonLogs = False,
) -> None:
    """Relay and workers of APP in one command."""
    flags = _flags(create_topics, stop_timeout, database, broker, json)
    _supervise(app or app_option, flags, service=service, relays=True, workers=processes, consumers=consumers,
               member=member, adopt=adopt)


def register(app: typer.Typer) -> None:
    for command in (relay, work, run):
        app.command()(command)


def _flags(
    create_topics: bool, stop_timeout: float | None, database: str | None, broker: str | None, json: bool
) -> dict[str, Any]:
    return {
        "create_topics": create_topics or None, "stop_timeout_s": stop_timeout, "database_url": database,
        "broker_url": broker, "log_format": "json" if json else None,
    }


def _supervise(
    given: str | None, flags: dict[str, Any], *, service: str | None, relays: bool, workers: int, consumers: str = "",
    member: int | None = None, adopt: bool = False,
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
    with standing_by([(task.module, task.task) for task in tasks]) as early:
        # What is wrong with the application is said here, once, and not by each child. They import it meanwhile.
        app = load(name, flags)
        if relays:
            app.outboxes(service)
        if workers and (not relays or chosen or any(s.consumers for s in _chosen(app, service))):
            app.consumers(service, chosen)
        elif relays:
            tasks = tasks[:1]  # `run` of an application that only produces
        logs.setup(settings.log_format, settings.log_level, role="supervisor", pid=os.getpid())
        raise typer.Exit(
            Supervisor(tasks, stop_timeout_s=settings.stop_timeout_s, early=early, spare=settings.spare).run())


def _chosen(app: App, service: str | None) -> tuple[Service, ...]:
    return app.services if service is None else (app.service(service),)
