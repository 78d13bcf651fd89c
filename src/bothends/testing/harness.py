"""Harness: services together in one test, through the product's own outbox, relay, inbox and parking."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from typing_extensions import TypeVar

from bothends.codecs.cloudevents import from_record
from bothends.codecs.json import decode
from bothends.errors import ConfigError
from bothends.events import describe
from bothends.ports import Broker
from bothends.service import Service
from bothends.testing.databases import memory_url
from bothends.testing.graveyard import Dead
from bothends.testing.publishing import records_of
from bothends.testing.settling import settling
from bothends.testing.stage import Stage

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

__all__ = ["Dead", "Harness"]

D = TypeVar("D", default=Any)


class Harness:
    """Runs flows across ``services``: ``with Harness(orders, inventory) as h`` (or ``async with``).

    ``database``: one URL for all services, or one for each by name; without it they share a database in memory that is
    this harness's own. URLs of code and environment are not looked at. Our schema is applied to each. The broker lives
    in memory and gives every consumer its copy; the clock is virtual.

    ``deliver_twice``: after each ``settle`` every record is delivered again, and what is in the users' tables, in the
    topics and among the dead letters must be what it was; else AssertionError shows the difference.

    Raises ConfigError for services or databases that do not go together.
    """

    def __init__(
        self, *services: Service, database: str | Mapping[str, str] | None = None, deliver_twice: bool = False
    ) -> None:
        names = [service.name for service in services]
        if not services:
            raise ConfigError("Harness(...) needs at least one service")
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(f"two services are called {twice[0]!r}: give each a name of its own")
        self._services = services
        self._urls = _urls(names, database)
        self._deliver_twice = deliver_twice
        self._opened: Stage | None = None

    def __enter__(self) -> Self:
        stage = Stage(self._services, self._urls)
        stage.open()
        self._opened = stage
        return self

    def __exit__(self, *_: object) -> None:
        stage, self._opened = self._opened, None
        if stage is not None:
            stage.close()

    async def __aenter__(self) -> Self:
        stage = Stage(self._services, self._urls)
        await stage.open_async()
        self._opened = stage
        return self

    async def __aexit__(self, *_: object) -> None:
        stage, self._opened = self._opened, None
        if stage is not None:
            await stage.close_async()

    # What a test sees

    @property
    def broker(self) -> Broker:
        """The memory broker, for a test that publishes records of its own (a foreign format)."""
        return self._stage.broker

    @property
    def dead(self) -> list[Dead]:
        """Dead letters that are open, oldest first in each database."""
        return self._stage.dead()

    def session(self, service: Service | str | None = None) -> Session:
        """A new SQLAlchemy session on the database of ``service``, given itself or by name; it may be left out where
        there is only one database. Closed at the end; commit it before ``settle``."""
        return self._stage.database_of(service).session()

    def connection(self, service: Service | str | None = None) -> Any:
        """The driver's connection of the test itself (``sqlite3`` or psycopg), in autocommit; for the rest as
        ``session``."""
        return self._stage.database_of(service).connection

    def published(self, event: type[D]) -> list[D]:
        """Every event of this type that is in the topics, in order of publication within each topic."""
        declared = describe(event)
        found: list[Any] = []
        for topic in self._stage.topics:
            for record in records_of(self.broker, topic):
                message = from_record(record)
                if message.type == declared.type and message.body is not None:
                    found.append(decode(message.body, declared))
        return found

    # Moving on

    def settle(self) -> Self:
        """Publishes and delivers, and moves the clock over the backoff of retries, until nothing is queued and nothing
        waits for a retry. Keys that are held, newer versions and delayed events stay.

        Raises AssertionError for a flow that does not end, for an open write transaction of the test, and for what
        ``deliver_twice`` finds; RuntimeError in a coroutine, where handlers are coroutines too: ``await settle_async()``.
        """
        stage = self._stage
        if any(intake.consumer.is_async for intake in stage.intakes):
            stage.refuse_running_loop()
        for work in settling(stage, deliver_twice=self._deliver_twice):
            stage.carry_out(*work)
        return self

    async def settle_async(self) -> Self:
        """``settle`` on the running loop. Handlers that are no coroutines run in a thread, as in a worker."""
        stage = self._stage
        for work in settling(stage, deliver_twice=self._deliver_twice):
            await stage.carry_out_async(*work)
        return self

    def advance(self, by: timedelta) -> Self:
        """Moves the clock of every database forward. What becomes due is done by the next ``settle``."""
        if by < timedelta(0):
            raise ValueError(f"the clock only goes forward, not by {by}")
        self._stage.refuse_open_writers()
        self._stage.forward(by.total_seconds())
        return self

    @property
    def _stage(self) -> Stage:
        if self._opened is None:
            raise RuntimeError("this harness is not open: use it as `with Harness(...) as h:`")
        return self._opened


def _urls(names: list[str], database: str | Mapping[str, str] | None) -> dict[str, str]:
    if isinstance(database, Mapping):
        if missing := [name for name in names if name not in database]:
            raise ConfigError(f"database= has no URL for {', '.join(missing)}")
        if unknown := [name for name in database if name not in names]:
            raise ConfigError(f"database= names {', '.join(unknown)}, which is no service of this harness")
        return dict(database)
    return dict.fromkeys(names, database if database is not None else memory_url())
