"""Stage: services with their databases, a memory broker and their consumers, opened for one test. ``Harness`` and
``Scenario`` say what happens on it."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack
from typing import Any

from bothends.brokers import open_broker
from bothends.errors import ConfigError
from bothends.ports import Broker
from bothends.service import Service
from bothends.testing.clock import VirtualClock
from bothends.testing.databases import Database, memory_name
from bothends.testing.graveyard import Dead, dead_of
from bothends.testing.intake import Intake
from bothends.testing.publishing import Publishing
from bothends.worker.acts import Acts
from bothends.worker.async_seats import AsyncSeat

__all__ = ["Stage"]


class Stage:
    """``urls``: the database of each service, by name."""

    def __init__(self, services: Sequence[Service], urls: Mapping[str, str]) -> None:
        self.services = services
        self._urls = urls
        self.broker: Broker = open_broker(f"memory://{memory_name()}")
        self.databases: dict[tuple[str, str], Database] = {}
        self.intakes: list[Intake] = []
        self.topics: dict[str, None] = {}
        """Every topic that is published to, in order of creation; no retry topics."""
        self.clock = VirtualClock()
        self._publishings: list[Publishing] = []
        self._lifespans: list[AbstractAsyncContextManager[Any]] = []
        self._runner: asyncio.Runner | None = None
        self._kept = ExitStack()

    # Opening and closing

    def open(self) -> None:
        """Raises ConfigError for services that do not go together, after which everything is closed."""
        try:
            self._open({name: self.run(context.__aenter__()) for name, context in self._entering()})
        except BaseException:
            self.close()
            raise

    async def open_async(self) -> None:
        """``open`` on the running loop."""
        try:
            self._open({name: await context.__aenter__() for name, context in self._entering()})
        except BaseException:
            await self.close_async()
            raise

    def close(self) -> None:
        try:
            for intake in self.intakes:
                if isinstance(intake.seat, AsyncSeat):
                    self.run(intake.seat.close())
            while self._lifespans:
                self.run(self._lifespans.pop().__aexit__(None, None, None))
        finally:
            self._close()

    async def close_async(self) -> None:
        try:
            for intake in self.intakes:
                if isinstance(intake.seat, AsyncSeat):
                    await intake.seat.close()
            while self._lifespans:
                await self._lifespans.pop().__aexit__(None, None, None)
        finally:
            self._close()

    def _entering(self) -> Any:
        """The lifespans of the services, one after another, each to be entered; modules that register handlers first."""
        for module in dict.fromkeys(name for service in self.services for name in service.include):
            importlib.import_module(module)
        for service in self.services:
            if service.lifespan is not None:
                lifespan = service.lifespan()
                yield service.name, lifespan
                self._lifespans.append(lifespan)  # entered by now

    def _open(self, resources: Mapping[str, Any]) -> None:
        by_database: dict[tuple[str, str], list[Service]] = {}
        for service in self.services:
            self._kept.enter_context(service.outbox.kept())
            by_database.setdefault((self._urls[service.name], service.schema), []).append(service)
        for (url, schema), services in by_database.items():
            if any(service.publish != services[0].publish for service in services):
                names = ", ".join(service.name for service in services)
                raise ConfigError(f"the services {names} share one outbox but differ in publish=; give them one policy")
            database = self.databases[(url, schema)] = Database(url, schema)
            database.open()
            self._publishings.append(Publishing(database, self.broker, services[0].publish))
        for service in self.services:
            for consumer in service.consumers.values():
                if consumer.handlers:
                    self._create_topics(consumer.topics)
                    resource = resources.get(service.name)
                    self.intakes.append(
                        Intake(consumer, self.database_of(service), self.broker, self.clock, resource))

    def _close(self) -> None:
        self._kept.close()
        for intake in self.intakes:
            intake.close()
        for topic in (*self.topics, *(topic for intake in self.intakes for topic in intake.retry_topics)):
            self.broker.delete_topic(topic)
        self.broker.close()
        for database in self.databases.values():
            database.close()
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    # Doing

    def publish(self) -> bool:
        """One pass of the relay of each outbox. Whether there was anything to publish."""
        moved = False
        for publishing in self._publishings:
            self._create_topics(publishing.topics())
            moved = publishing.run() or moved
        return moved

    def carry_out(self, intake: Intake, acts: Acts[None]) -> None:
        """Acts of the engine, here and now."""
        if isinstance(intake.seat, AsyncSeat):
            self.run(intake.seat.drive(acts))
        else:
            intake.seat.drive(acts)

    async def carry_out_async(self, intake: Intake, acts: Acts[None]) -> None:
        """The same on the running loop; handlers that are no coroutines run in a thread, as in a worker."""
        if isinstance(intake.seat, AsyncSeat):
            await intake.seat.drive(acts)
        else:
            await asyncio.to_thread(intake.seat.drive, acts)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Runs one coroutine on the stage's own loop, which is the same for all of a test."""
        try:
            self.refuse_running_loop()
        except RuntimeError:
            coroutine.close()
            raise
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(coroutine)

    @staticmethod
    def refuse_running_loop() -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        raise RuntimeError("a loop is running here: use `async with Harness(...)` and `await h.settle_async()`")

    def refuse_open_writers(self) -> None:
        for database in self.databases.values():
            database.refuse_open_writers()

    def forward(self, seconds: float) -> None:
        """Moves the clock forward, every database's too."""
        self.clock.forwarded_s += seconds
        for database in self.databases.values():
            database.forward(seconds)

    def _create_topics(self, topics: Sequence[str]) -> None:
        """One partition each, so that what was published has one order."""
        for topic in topics:
            if topic not in self.topics:
                self.broker.create_topic(topic, 1)
                self.topics[topic] = None

    # Looking

    def database_of(self, service: Service | str | None) -> Database:
        """The database of ``service`` (or of that name), which may be None where there is only one."""
        if isinstance(service, str):
            named = {one.name: one for one in self.services}
            if service not in named:
                raise ConfigError(f"this harness has no service {service!r}, only {', '.join(named)}")
            service = named[service]
        if service is not None:
            if not isinstance(service, Service):
                raise TypeError(f"give the Service, or its name, not {service!r}")
            if service not in self.services:
                raise ConfigError(f"service {service.name} is not in this harness")
            return self.databases[(self._urls[service.name], service.schema)]
        if len(self.databases) > 1:
            raise ConfigError(f"there are several databases; say whose: {', '.join(one.name for one in self.services)}")
        return next(iter(self.databases.values()))

    def intakes_on(self, database: Database) -> list[Intake]:
        return [intake for intake in self.intakes if intake.database is database]

    def dead(self) -> list[Dead]:
        """Dead letters that are open, oldest first in each database."""
        found: list[Dead] = []
        for database in self.databases.values():
            consumers = {intake.number: intake.consumer for intake in self.intakes_on(database)}
            found += database.run(dead_of(database.store, consumers))
        return found
