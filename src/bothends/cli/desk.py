"""Desk: what every command works with: the application, its databases and brokers, opened when they are first needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from bothends.admin.acts import Act, in_transaction, os_user
from bothends.brokers import open_broker
from bothends.cli.options import AppArgument, AppOption, By, Json, Reason, ServiceOption, Yes
from bothends.config import app_name, need_broker, need_database
from bothends.errors import BothendsError, ConfigError, PublishError
from bothends.operating.apps import App, load
from bothends.ports import Broker
from bothends.service import Service
from bothends.stores import Store, open_store
from bothends.stores.connection import Connection
from bothends.stores.steps import Steps, run
from bothends.urls import mask

__all__ = [
    "AppArgument", "AppOption", "By", "Database", "Desk", "Json", "Reason", "ServiceOption", "Yes", "desk",
    "has_run",
]

T = TypeVar("T")
_PING_S = 2.0


@dataclass(eq=False)
class Database:
    """One database with our tables, as a command sees it."""

    name: str
    store: Store
    connection: Connection

    def ask(self, steps: Steps[T]) -> T:
        """Reads."""
        return run(steps, self.connection)

    def act(self, make: Callable[[], Steps[T]]) -> T:
        """Changes something, in one transaction."""
        return in_transaction(self.connection, make)


def has_run(database: Database, consumer: str) -> bool:
    """Whether a consumer of that full name has ever run on this database: before that it has nothing to list."""

    def look() -> Steps[bool]:
        found = yield database.store.admin.sql("select 1 from {s}.consumers where name = :name", name=consumer)
        return bool(found.rows)

    return database.ask(look())


class Desk:
    def __init__(self, app: App) -> None:
        self.app = app
        self._databases: dict[tuple[str, str], Database] = {}
        self._brokers: dict[str, Broker] = {}
        self._answering: set[str] = set()

    def database(self, service: Service) -> Database:
        """The service's database. ConfigError where our tables are missing."""
        url = need_database(self.app.settings[service.name])
        key = (url, service.schema)
        if key not in self._databases:
            store = open_store(url, service.schema)
            connection = store.connect(name="bothends cli")
            self._databases[key] = Database(service.name, store, connection)
            if not connection.execute(store.admin.exists()).rows[0][0]:
                where = f" (schema {service.schema})" if store.dialect == "postgresql" else ""
                raise ConfigError(
                    f"{mask(url)} has no tables of bothends{where}; "
                    f"run `bothends schema apply {self.app.name}`")
        return self._databases[key]

    def databases(self, service: str | None = None) -> list[Database]:
        """Each distinct database of the application, or of one service."""
        chosen = self.app.services if service is None else (self.app.service(service),)
        return list(dict.fromkeys(self.database(one) for one in chosen))

    def one_database(self, service: str | None, what: str) -> Database:
        """For changes: the only database, or the one of ``service``. Never a guess."""
        found = self.databases(service)
        if len(found) > 1:
            names = ", ".join(one.name for one in found)
            raise ConfigError(f"{what} is ambiguous: the services have databases of their own; add --service ({names})")
        return found[0]

    def broker(self, service: Service) -> Broker:
        url = need_broker(self.app.settings[service.name])
        if url not in self._brokers:
            self._brokers[url] = open_broker(url)
        return self._brokers[url]

    def answering_broker(self, service: Service) -> Broker:
        """The broker, known to answer. PublishError within two seconds: its other requests are more patient."""
        broker = self.broker(service)
        if broker.url not in self._answering:
            broker.ping(_PING_S)
            self._answering.add(broker.url)
        return broker

    def broker_or_none(self, service: Service) -> Broker | None:
        """The broker if it is configured and answers within two seconds: for numbers that can be left out."""
        try:
            return self.answering_broker(service)
        except (ConfigError, PublishError):
            return None

    def consumer(self, name: str) -> tuple[Service, str]:
        """The service of a consumer, and the consumer's full name, with the environment's prefix: the name that tables
        and findings show, which is understood as well as the one in the code. ``stock`` is enough where only one service
        has it. A consumer that the code no longer has is known by its rows. ConfigError for a name that is neither."""
        declared = [
            (service, short, self.app.settings[service.name].group_prefix + consumer.name)
            for service in self.app.services for short, consumer in service.consumers.items()]
        found = [(service, full) for service, short, full in declared if name in (full, f"{service.name}.{short}")]
        found = found or [(service, full) for service, short, full in declared if name == short]
        if len(found) > 1:
            names = ", ".join(full for _, full in found)
            raise ConfigError(f"several services have a consumer {name!r}; write which: {names}")
        if found:
            return found[0]
        for service in self.app.services:
            prefix = self.app.settings[service.name].group_prefix
            for full in (name, prefix + name):
                if full.startswith(f"{prefix}{service.name}.") and has_run(self.database(service), full):
                    return service, full
        there = ", ".join(full for _, _, full in declared) or "none"
        raise ConfigError(f"{self.app.name} has no consumer {name!r}, and none of that name has run; write one of: {there}")

    def close(self) -> None:
        for database in self._databases.values():
            database.connection.close()
        for broker in self._brokers.values():
            broker.close()


@contextmanager
def desk(app: str | None, flags: dict[str, Any] | None = None) -> Iterator[Desk]:
    """Loads the application; closes what was opened."""
    found = Desk(load(app_name(app), flags))
    try:
        yield found
    finally:
        found.close()


def act(by: str | None, reason: str) -> Act:
    return Act(by or os_user(), reason)


def each(found: Iterator[Database], ask: Callable[[Database], T]) -> Iterator[tuple[Database, T | BothendsError]]:
    """Asks each database; one that cannot be reached does not hide the others."""
    for database in found:
        try:
            yield database, ask(database)
        except BothendsError as error:
            yield database, error
