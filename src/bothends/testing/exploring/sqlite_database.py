"""SQLite in an exploration: one database, in memory or a file that is overwritten."""

from __future__ import annotations

import contextlib
import sqlite3
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from bothends.service import Consumer, Service
from bothends.stores import Store, open_store
from bothends.stores.connection import Connection
from bothends.stores.schema import apply
from bothends.testing.exploring.anchored import Anchored
from bothends.testing.exploring.brokers import ExploredBroker
from bothends.testing.exploring.clock import lend_to_sqlite
from bothends.testing.exploring.connections import Scene
from bothends.testing.exploring.outside import OutsideCall
from bothends.testing.exploring.pictures import Picture, events_out, letters, outside_calls
from bothends.testing.exploring.sqlite_drivers import ExploredSqliteStore, probed_sqlite
from bothends.testing.exploring.sqlite_pictures import tables

__all__ = ["SqliteDatabase"]

T = TypeVar("T")

LEASE_S = 4.0
TOPICS_MAX = 1_000


class SqliteDatabase(Anchored):
    lease_s = LEASE_S

    def __init__(self, services: Sequence[Service], url: str, scene: Scene) -> None:
        self._store: Store = open_store(url)
        self._explored = ExploredSqliteStore(self._store, scene)
        self.stores: Sequence[Store] = [self._explored]
        self._scene = scene
        self._with_sessions = any(service.session_factory is not None for service in services)
        self._engine: Any = None
        self._users: weakref.WeakSet[Any] = weakref.WeakSet()
        self._copies: list[sqlite3.Connection] = []
        self._anchor: Connection = self._store.connect(name="bothends-explorer")
        self._driver: sqlite3.Connection = self._anchor.driver
        with contextlib.closing(sqlite3.Connection(":memory:")) as empty:
            empty.backup(self._driver)
        self._driver.execute("pragma synchronous = off")
        self._driver.execute("pragma read_uncommitted = true")
        lend_to_sqlite(self._driver, scene.clock)
        apply(self._store, connection=self._anchor)

    @contextmanager
    def opened(self) -> Iterator[SqliteDatabase]:
        try:
            with self._users_connections():
                yield self
        finally:
            self._close()

    def store_of(self, service: Service) -> Store:
        return self._explored

    def end(self, process: str, run_async: Callable[[Coroutine[Any, Any, Any]], Any], *, died: bool) -> None:
        self._explored.end(process, run_async)

    def _close(self) -> None:
        if self._engine is not None:
            self._engine.dispose()
        self._explored.close()
        self._anchor.close()
        for copy in self._copies:
            copy.close()

    def keep(self) -> sqlite3.Connection:
        copy = sqlite3.Connection(":memory:")
        self._driver.backup(copy)
        self._copies.append(copy)
        return copy

    def restore(self, copy: sqlite3.Connection, *, noise: bool = False, afresh: bool = False) -> bool:
        self.drop_users()
        copy.backup(self._driver)
        return True

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
        super().publish(session, services, events)

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

    def due(self, store: Store) -> int:
        (count,) = self._driver.execute(
            "select (select count(*) from bothends_outbox where deliver_at is null or deliver_at <= :now)"
            " + (select count(*) from bothends_delayed where deliver_at <= :now)"
            " + (select count(*) from bothends_held where next_at <= :now)", {"now": self._scene.clock.now_s()},
        ).fetchone()
        return int(count)

    def next_delayed_s(self, store: Store) -> float | None:
        (at_s,) = self._driver.execute(
            "select min(deliver_at) from (select deliver_at from bothends_outbox union all"
            " select deliver_at from bothends_delayed)").fetchone()
        return None if at_s is None else max(0.0, float(at_s) - self._scene.clock.now_s())

    def topics(self, store: Store) -> list[str]:
        return [row[0] for row in self._driver.execute(
            f"select topic from bothends_outbox group by topic order by min(seq) limit {TOPICS_MAX}")]

    @contextmanager
    def _users_connections(self) -> Iterator[None]:
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
        store = self._store
        picture = Picture()
        self.ask(tables(picture))
        self.ask(letters(picture, [store]))
        events_out(picture, broker, list(broker.log.topics()))
        outside_calls(picture, calls)
        return picture
