"""Roles: which relays and workers a process runs for an application, made from its declarations and settings."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from bothends.admin.topics import declared
from bothends.brokers import open_broker
from bothends.config import need_broker, need_database, need_source
from bothends.errors import ConfigError
from bothends.operating.apps import App, OutboxOf
from bothends.operating.crew import Crew, Member
from bothends.operating.purger import Purger
from bothends.operating.tally import Tally
from bothends.ports import Broker
from bothends.relay import Relay, RelaySettings
from bothends.relay.events import PlaceAway
from bothends.runtime import Membership, directory
from bothends.service import Consumer, Service
from bothends.settings import Settings
from bothends.stores import Store, open_store
from bothends.telemetry import logs
from bothends.urls import mask

__all__ = ["Roles", "prepare"]

_log = logs.get("roles")


class Roles:
    """Makes the crew of one process. ``loop`` runs the coroutines of asynchronous handlers and lifespans."""

    def __init__(self, app: App, loop: asyncio.AbstractEventLoop) -> None:
        self._app, self._loop = app, loop
        self._brokers: dict[str, Broker] = {}
        self._stores: dict[tuple[str, str], Store] = {}
        counts_s = [settings.log_counts_s for settings in app.settings.values() if settings.log_counts_s]
        self._counts_s = min(counts_s, default=0.0)
        self._tally = Tally(self._counts_s)

    @contextlib.asynccontextmanager
    async def crew(self, task: Mapping[str, Any], changed: Callable[[], None]) -> AsyncIterator[Crew]:
        """``task``: ``role`` (``relay``, ``work`` or ``both``), ``service``, ``consumers``, ``member``, ``purges``,
        ``adopt``, ``stop_timeout_s``. Lifespans are entered here and left when the crew has stopped.

        Raises ConfigError for what can never work: no consumer, no URL, a broker that is not on record.
        """
        members: list[Member] = []
        describes: dict[str, Any] = {}
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._close)
            if task["role"] in ("relay", "both"):
                outboxes = self._app.outboxes(task.get("service"))
                members += [self._relay(outbox, task) for outbox in outboxes]
                describes["outboxes"] = [outbox.name for outbox in outboxes]
            if task["role"] in ("work", "both"):
                consumers = self._app.consumers(task.get("service"), task.get("consumers") or ())
                membership = self._membership(consumers, task.get("member"))
                stack.callback(membership.release)
                resources = await self._lifespans(stack, consumers)
                members += [
                    self._worker(consumer, membership.index, resources.get(consumer.service.name), task)
                    for consumer in consumers
                ]
                members.append(Member("membership", membership.run, helps=True))
                if task.get("purges", True):
                    members += self._purgers(consumers)
                describes |= {"consumers": [self._group(c) for c in consumers], "member": membership.index}
            if self._counts_s:
                members.append(Member("tally", self._tally.run, helps=True))
            stack.callback(self._tally.flush)
            await asyncio.to_thread(self._check_schemas)
            await asyncio.to_thread(self._check_topics)
            yield Crew(members, changed, describes)

    def _close(self) -> None:
        for broker in self._brokers.values():
            broker.close()

    def broker(self, settings: Settings) -> Broker:
        url = need_broker(settings)
        if url not in self._brokers:
            self._brokers[url] = open_broker(url)
        return self._brokers[url]

    def store(self, settings: Settings, schema: str) -> Store:
        key = (need_database(settings), schema)
        if key not in self._stores:
            self._stores[key] = open_store(*key)
        return self._stores[key]

    def _relay(self, outbox: OutboxOf, task: Mapping[str, Any]) -> Member:
        settings = outbox.settings
        urls = {need_broker(self._app.settings[service.name]) for service in outbox.services}
        if len(urls) > 1:
            shown = ", ".join(sorted(map(mask, urls)))
            raise ConfigError(f"the services {outbox.name} share one outbox but name different brokers: {shown}")
        broker = self.broker(settings)
        relay = Relay(
            self.store(settings, outbox.schema), broker, name=f"{socket.gethostname()}-{outbox.name}",
            publish=outbox.services[0].publish,
            settings=RelaySettings(
                lease_s=settings.lease_s, renew_s=settings.lease_s / 4, batch_max=settings.relay_batch_max,
                source=outbox.source, wal_budget_mb=settings.wal_budget_mb,
                poll_busy_s=settings.poll_busy_s, poll_idle_s=settings.poll_idle_s, adopt=bool(task.get("adopt")),
                runtime_dir=settings.runtime_dir),
            observe=self._observer(broker, settings),
        )

        def run(stop: threading.Event, ready: threading.Event) -> None:
            relay.run(stop, ready, stop_timeout_s=float(task["stop_timeout_s"]))

        return Member(f"relay {outbox.name}", run)

    def _observer(self, broker: Broker, settings: Settings) -> Callable[[object], None]:
        if not settings.create_topics:
            return self._tally.observe
        topics, tally = _Topics(broker, settings), self._tally

        def observe(record: object) -> None:
            topics.observe(record)
            tally.observe(record)

        return observe

    def _worker(self, consumer: Consumer, index: int, resources: Any, task: Mapping[str, Any]) -> Member:
        from bothends.worker import Worker

        settings = self._app.settings[consumer.service.name]
        by_message = need_source(settings) == "message"
        worker = Worker(
            consumer, self.store(settings, consumer.service.schema), self.broker(settings),
            prefix=settings.group_prefix, member=f"{socket.gethostname()}-{index}", lease_s=settings.lease_s,
            loop=self._loop, resources=resources, observe=self._tally.observe, by_message=by_message,
        )

        def run(stop: threading.Event, ready: threading.Event) -> None:
            worker.run(stop, ready, stop_timeout_s=float(task["stop_timeout_s"]))

        return Member(f"worker {worker.group}", run)

    def _purgers(self, consumers: Sequence[Consumer]) -> list[Member]:
        members = []
        by_service: dict[Service, list[Consumer]] = {}
        for consumer in consumers:
            by_service.setdefault(consumer.service, []).append(consumer)
        for service, mine in by_service.items():
            settings = self._app.settings[service.name]
            purger = Purger(self.store(settings, service.schema), self.broker(settings), mine, settings)
            purger.check()
            if settings.purge_interval_s > 0:
                members.append(Member(f"purger {service.name}", purger.run, helps=True))
        return members

    def _membership(self, consumers: Sequence[Consumer], index: int | None) -> Membership:
        runtime_dir = self._app.settings[consumers[0].service.name].runtime_dir
        return Membership([self._group(c) for c in consumers], directory(runtime_dir), index=index)

    def _group(self, consumer: Consumer) -> str:
        """Its full name: that of its group, of its rows, and in the log."""
        return self._app.settings[consumer.service.name].group_prefix + consumer.name

    async def _lifespans(self, stack: contextlib.AsyncExitStack, consumers: Sequence[Consumer]) -> dict[str, Any]:
        """What each service's lifespan yields, entered once per process, on the loop of the handlers [A17]."""
        resources: dict[str, Any] = {}
        for service in dict.fromkeys(consumer.service for consumer in consumers):
            if service.lifespan is not None:
                resources[service.name] = await stack.enter_async_context(service.lifespan())
        return resources

    def _check_schemas(self) -> None:
        """Tables that are not there, or older than this package, no restart will make. A database that is away is waited
        for, and one that is newer is what a rollout begins with."""
        from bothends.stores.schema import status

        for store in self._stores.values():
            try:
                found = status(store)
            except Exception as error:
                _log.debug("the schema could not be looked at", exc_info=error)
                continue
            if found.version < found.latest:
                raise ConfigError(
                    f"{mask(store.url)} has {f'schema version {found.version}' if found.version else 'no tables of ours'}, "
                    f"this package needs version {found.latest}: run `bothends schema apply` for this application"
                )

    def _check_topics(self) -> None:
        for service in self._app.services:
            settings = self._app.settings[service.name]
            if settings.create_topics and settings.broker_url:
                for topic in declared(service):
                    if self.broker(settings).create_topic(topic, settings.partitions):
                        _log.info("topic created", extra={"topic": topic, "partitions": settings.partitions})


def prepare(app: App) -> None:
    """Imports what a crew of ``app`` will need. No I/O, and nothing is wrong with an application that names no URL."""
    import_module("bothends.worker")
    for service in app.services:
        settings = app.settings[service.name]
        if settings.broker_url:
            open_broker(settings.broker_url).close()
        if settings.database_url:
            store = open_store(settings.database_url, service.schema)
            for room in ("connection", "inbox", "outbox", "relay"):
                import_module(f"bothends.stores.{store.dialect}.{room}")
            if store.dialect == "postgresql" and settings.relay_source != "poll":
                import_module("bothends.relay.log")


class _Topics:
    """Makes topics that a relay finds missing: those that only ``add`` knew. For development (``--create-topics``)."""

    def __init__(self, broker: Broker, settings: Settings) -> None:
        self._broker, self._settings = broker, settings
        self._asked: set[str] = set()

    def observe(self, event: object) -> None:
        if isinstance(event, PlaceAway) and event.topic not in self._asked and len(self._asked) < 10_000:
            self._asked.add(event.topic)
            threading.Thread(target=self._create, args=(event.topic,), name="bothends-topic", daemon=True).start()

    def _create(self, topic: str) -> None:
        try:
            if self._broker.create_topic(topic, self._settings.partitions):
                _log.info("topic created", extra={"topic": topic, "partitions": self._settings.partitions})
        except Exception as error:
            self._asked.discard(topic)
            _log.warning("topic cannot be created", extra={"topic": topic, "error": str(error)})
