"""The database of an exploration: opened once, put back to its start state before each run."""

from __future__ import annotations

import contextlib
import sqlite3
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from bothends.errors import ConfigError
from bothends.events import describe
from bothends.service import Consumer, Service
from bothends.stores import Store, open_store
from bothends.stores.connection import Connection
from bothends.stores.schema import apply
from bothends.stores.steps import Steps, run
from bothends.testing.clock import table
from bothends.testing.exploring.brokers import ExploredBroker
from bothends.testing.exploring.clock import lend_to_sqlite
from bothends.testing.exploring.drivers import ExploredStore, Scene, probed_sqlite
from bothends.testing.exploring.outside import OutsideCall
from bothends.testing.exploring.pictures import Picture, events_out, letters, outside_calls, tables
from bothends.urls import normal_database

__all__ = ["Database", "opened"]

T = TypeVar("T")

TOPICS_MAX = 1_000


class Database(Protocol):
    """What a world needs of its database, whatever the system."""

    store: Store
    explored: ExploredStore
    """The store that relay and workers are given."""

    def keep(self) -> Any:
        """A copy of what is in the database now."""
        ...

    def restore(self, copy: Any) -> None:
        """Back to that copy; nobody else is connected."""
        ...

    @contextmanager
    def session(self) -> Iterator[Any]:
        """What a case and an invariant get: a SQLAlchemy session where a service has a factory, else the driver's connection,
        in a transaction that is committed at the end."""
        ...

    def publish(self, session: Any, services: Sequence[Service], events: Sequence[object]) -> None:
        """Adds events to outboxes, in the transaction of ``session``."""
        ...

    def ask(self, steps: Steps[T]) -> T: ...

    def ask_in_transaction(self, steps: Steps[T]) -> T: ...

    def due(self) -> int:
        """How many events the relay could publish now."""
        ...

    def next_delayed_s(self) -> float | None:
        """Seconds until the next event with a delay may be published; None where none waits."""
        ...

    def topics(self) -> list[str]: ...

    def forward(self, seconds: float) -> None:
        """The database's clock goes forward, where it is not the exploration's anyway."""
        ...

    def drop_users(self) -> None:
        """Connections that the user's own code has opened end with the process."""
        ...

    def picture(self, consumers: Sequence[Consumer], broker: ExploredBroker, calls: Iterable[OutsideCall]) -> Picture: ...


@contextmanager
def opened(services: Sequence[Service], url: str, scene: Scene) -> Iterator[Database]:
    """Opens the database behind ``url`` with our schema in it."""
    where = normal_database(url)
    if not where.startswith("sqlite:"):
        raise ConfigError(f"the explorer runs on SQLite, not on {where.partition('://')[0]}; give sqlite:///path or nothing")
    database = SqliteDatabase(services, where, scene)
    try:
        with database.users_connections():
            yield database
    finally:
        database.close()


def _publisher_of(services: Sequence[Service], event: object) -> Service:
    """The first service that does not handle this type itself, else the first."""
    declared = describe(type(event)).type
    for service in services:
        if not any(declared in consumer.handlers for consumer in service.consumers.values()):
            return service
    return services[0]


class SqliteDatabase:
    def __init__(self, services: Sequence[Service], url: str, scene: Scene) -> None:
        self.store: Store = open_store(url)
        self.explored = ExploredStore(self.store, scene)
        self._scene = scene
        self._with_sessions = any(service.session_factory is not None for service in services)
        self._engine: Any = None
        self._users: weakref.WeakSet[Any] = weakref.WeakSet()
        self._copies: list[sqlite3.Connection] = []
        self._anchor: Connection = self.store.connect(name="bothends-explorer")
        self._driver: sqlite3.Connection = self._anchor.driver
        with contextlib.closing(sqlite3.Connection(":memory:")) as empty:
            empty.backup(self._driver)
        self._driver.execute("pragma synchronous = off")
        self._driver.execute("pragma read_uncommitted = true")
        lend_to_sqlite(self._driver, scene.clock)
        apply(self.store, connection=self._anchor)

    def close(self) -> None:
        if self._engine is not None:
            self._engine.dispose()
        self.explored.close()
        self._anchor.close()
        for copy in self._copies:
            copy.close()

    def keep(self) -> sqlite3.Connection:
        copy = sqlite3.Connection(":memory:")
        self._driver.backup(copy)
        self._copies.append(copy)
        return copy

    def restore(self, copy: sqlite3.Connection) -> None:
        self.drop_users()
        copy.backup(self._driver)

    @contextmanager
    def session(self) -> Iterator[Any]:
        if self._with_sessions:
            with self._orm_session() as session:
                yield session
            return
        driver = self._driver
        driver.execute("begin immediate")
        try:
            yield driver
            if driver.in_transaction:
                driver.execute("commit")
        finally:
            if driver.in_transaction:
                driver.execute("rollback")

    def publish(self, session: Any, services: Sequence[Service], events: Sequence[object]) -> None:
        if session is self._driver and events and not self._driver.in_transaction:
            self._driver.execute("begin immediate")  # ``executescript`` has committed
        for given in events:
            service, event = given if isinstance(given, tuple) else (_publisher_of(services, given), given)
            service.outbox.add(session, event)

    @contextmanager
    def _orm_session(self) -> Iterator[Any]:
        from sqlalchemy import StaticPool, create_engine
        from sqlalchemy.orm import Session

        from bothends.integrations.sqlalchemy import explicit_begin

        if self._engine is None:
            self._engine = create_engine("sqlite://", creator=lambda: self._driver, poolclass=StaticPool)
            explicit_begin(self._engine)
        with Session(self._engine) as session:
            yield session
            session.commit()

    def ask(self, steps: Steps[T]) -> T:
        return run(steps, self._anchor)

    def ask_in_transaction(self, steps: Steps[T]) -> T:
        self._anchor.begin()
        try:
            answer = run(steps, self._anchor)
            self._anchor.commit()
            return answer
        finally:
            self._anchor.rollback()

    def due(self) -> int:
        (count,) = self._driver.execute(
            "select (select count(*) from bothends_outbox where deliver_at is null or deliver_at <= :now)"
            " + (select count(*) from bothends_delayed where deliver_at <= :now)"
            " + (select count(*) from bothends_held where next_at <= :now)", {"now": self._scene.clock.now_s()},
        ).fetchone()
        return int(count)

    def next_delayed_s(self) -> float | None:
        (at_s,) = self._driver.execute(
            "select min(deliver_at) from (select deliver_at from bothends_outbox union all"
            " select deliver_at from bothends_delayed)").fetchone()
        return None if at_s is None else max(0.0, float(at_s) - self._scene.clock.now_s())

    def topics(self) -> list[str]:
        return [row[0] for row in self._driver.execute(
            f"select topic from bothends_outbox group by topic order by min(seq) limit {TOPICS_MAX}")]

    def forward(self, seconds: float) -> None:
        """SQLite's functions of time are the exploration's."""

    @contextmanager
    def users_connections(self) -> Iterator[None]:
        """``sqlite3.connect`` gives the user's code connections that pass the tape."""
        plain = sqlite3.connect

        def connect(*arguments: Any, **options: Any) -> Any:
            if "factory" in options or len(arguments) > 5:  # the product's own, or a class of the user's
                return plain(*arguments, **options)
            made = plain(*arguments, factory=probed_sqlite(sqlite3.Connection), **options)
            lend_to_sqlite(made, self._scene.clock)
            made.scene = self._scene
            self._users.add(made)
            return made

        modules: tuple[Any, ...] = (sqlite3, sqlite3.dbapi2)
        for module in modules:
            module.connect = connect
        try:
            yield
        finally:
            for module in modules:
                module.connect = plain

    def drop_users(self) -> None:
        for driver in list(self._users):
            try:
                sqlite3.Connection.rollback(driver)
            except sqlite3.ProgrammingError:  # closed already
                self._users.discard(driver)

    def picture(self, consumers: Sequence[Consumer], broker: ExploredBroker, calls: Iterable[OutsideCall]) -> Picture:
        dead, held = table(self.store, "dead_letters"), table(self.store, "blocked_keys")
        picture = Picture()
        self.ask(tables(self.store, picture))
        self.ask(letters(picture, dead, held, table(self.store, "consumers")))
        events_out(picture, broker, list(broker.log.topics()))
        outside_calls(picture, calls)
        return picture
