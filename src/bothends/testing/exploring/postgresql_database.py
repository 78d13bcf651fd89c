"""PostgreSQL in an exploration: a scratch database on the service's own server, put back to its start by its rows."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg

from bothends.config import resolve
from bothends.service import Consumer, Service
from bothends.stores import Store, open_store
from bothends.stores.connection import Connection
from bothends.stores.postgresql.connection import dsn
from bothends.stores.schema import apply
from bothends.stores.steps import Sql, Steps
from bothends.testing.clock import table
from bothends.testing.exploring import postgresql_kept as kept
from bothends.testing.exploring import server_clock
from bothends.testing.exploring.anchored import Anchored
from bothends.testing.exploring.brokers import ExploredBroker
from bothends.testing.exploring.connections import Scene
from bothends.testing.exploring.outside import OutsideCall
from bothends.testing.exploring.pictures import Picture, events_out, letters, outside_calls
from bothends.testing.exploring.postgresql_pictures import names_of_tables, tables
from bothends.testing.exploring.postgresql_stores import ExploredPostgresqlStore
from bothends.testing.exploring.psycopg_seam import Seam
from bothends.testing.exploring.scratch import Scratch

__all__ = ["PostgresqlDatabase"]

T = TypeVar("T")

LEASE_S = 600.0
"""The server ends a transaction that is silent for a lease, by its own clock: a debugger may stand longer than 4 s."""
TOPICS_MAX = 1_000

_WAITING = (
    "with waiting as materialized (select o.* from {s}.outbox o left join lateral (select p.hwm, p.snapshot from "
    "{s}.relay_progress p where ((p.lanes >> {s}.lane(o.key, o.seq)) & 1) <> 0 order by p.id desc limit 1) c on true "
    "where c.hwm is null or o.seq > c.hwm or not pg_visible_in_snapshot(o.xid, c.snapshot)) "
)
"""Rows that no cursor covers."""


class PostgresqlDatabase(Anchored):
    lease_s = LEASE_S

    def __init__(self, services: Sequence[Service], url: str, scene: Scene, token: str) -> None:
        self._services, self._scene = services, scene
        self._with_sessions = any(service.session_factory is not None for service in services)
        self._scratch = Scratch(url, token)
        urls = {dsn(url), *(dsn(own) for s in services if (own := resolve(s).database_url) and own.startswith("postgresql"))}
        self._seam = Seam(scene, self._scratch.name, sorted(urls))
        self._raw = {s.schema: open_store(self._scratch.url, s.schema) for s in services}
        self._explored = {
            schema: ExploredPostgresqlStore(store, scene, self._seam) for schema, store in self._raw.items()}
        self.stores: Sequence[Store] = list(self._explored.values())
        self._copies = 0
        self._by_rows = True
        self._anchor: Connection
        self._driver: psycopg.Connection[Any] | None = None
        """What cases and invariants are given."""
        self._engine: Any = None

    @contextmanager
    def opened(self) -> Iterator[PostgresqlDatabase]:
        try:
            self._scratch.settle()
            with self._seam.installed():
                try:
                    self._connect()
                    self._set_up()
                    yield self
                finally:
                    self._disconnect()
        finally:
            self._scratch.close()

    def _set_up(self) -> None:
        self.ask(_each(server_clock.SETUP))
        self._seam.anchor = self._anchor.driver
        for store in self._raw.values():
            apply(store, connection=self._anchor)
        self._ours = self.ask(names_of_tables())

    def _connect(self) -> None:
        self._anchor = next(iter(self._raw.values())).connect(name="bothends explorer")
        self._seam.adopt(self._anchor.driver)

    def _disconnect(self) -> None:
        self._let_go_of_cases()
        for store in self._explored.values():
            for process in ("relay", "worker"):
                store.end(process, died=False)
        self._seam.close()
        self._seam.anchor = None
        if hasattr(self, "_anchor"):
            self._anchor.close()

    # Copies

    def keep(self) -> int | None:
        if self._copies and not self._by_rows:
            return None
        number, self._copies = self._copies, self._copies + 1
        self._let_go_of_cases()
        if number == 0:
            self._by_rows = self.ask(kept.can_replace_rows())
        if self._by_rows:
            self.ask_in_transaction(kept.keep(number))
        if number == 0:
            self._clone(self._scratch.keep_start)
        return number

    def _clone(self, do: Callable[[], None]) -> None:
        """While nobody is connected."""
        self._disconnect()
        do()
        self._connect()
        self._seam.anchor = self._anchor.driver

    def restore(self, copy: int, *, noise: bool = False, afresh: bool = False) -> bool:
        self.drop_users()
        self._let_go_of_cases()
        if not (self._by_rows and self.ask(kept.restoring(copy, noise=noise, afresh=afresh))):
            self._by_rows = self._by_rows and not copy
            if copy:
                return False
            self._clone(self._scratch.back_to_start)
            if self._by_rows:
                self.ask(kept.restoring(copy, noise=noise, afresh=False))
        self._seam.restart_clock()
        return True

    # Sessions

    @contextmanager
    def session(self) -> Iterator[Any]:
        driver = self._case_driver()
        if not self._with_sessions:
            with driver.transaction() if driver.autocommit else _transaction(driver):
                yield driver
            return
        from sqlalchemy.orm import Session

        with Session(self._engine) as session:
            yield session
            session.commit()

    def _case_driver(self) -> psycopg.Connection[Any]:
        if self._driver is None or self._driver.closed:
            self._driver = psycopg.connect(self._scratch.url)
            self._seam.adopt(self._driver)
            if self._with_sessions:
                from sqlalchemy import StaticPool, create_engine

                self._engine = create_engine("postgresql+psycopg://", creator=lambda: self._driver, poolclass=StaticPool)
        return self._driver

    def _let_go_of_cases(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.dispose()
        driver, self._driver = self._driver, None
        if driver is not None:
            self._seam.let_go(driver)

    # Asking

    def store_of(self, service: Service) -> Store:
        return self._explored[service.schema]

    def due(self, store: Store) -> int:
        return int(self._value(
            store, _WAITING + "select (select count(*) from waiting where deliver_at is null or deliver_at <= "
            "clock_timestamp()) + (select count(*) from {s}.delayed where deliver_at <= clock_timestamp()) + "
            "(select count(*) from {s}.held where next_at <= clock_timestamp())"))

    def next_delayed_s(self, store: Store) -> float | None:
        found = self._value(
            store, _WAITING + "select extract(epoch from min(deliver_at) - clock_timestamp())::float8 from (select "
            "deliver_at from waiting union all select deliver_at from {s}.delayed) d")
        return None if found is None else max(0.0, float(found))

    def topics(self, store: Store) -> list[str]:
        found = self.ask(_rows(
            f"select topic from {table(store, 'outbox')} group by topic order by min(seq) limit {TOPICS_MAX}"))
        return [str(row[0]) for row in found]

    def _value(self, store: Store, text: str) -> Any:
        return self.ask(_rows(text.replace("{s}", f'"{store.schema}"')))[0][0]

    # Processes

    def end(self, process: str, run_async: Callable[[Coroutine[Any, Any, Any]], Any], *, died: bool) -> None:
        for store in self._explored.values():
            store.end(process, died=died)

    def drop_users(self) -> None:
        self._seam.drop_users()

    def picture(self, consumers: Sequence[Consumer], broker: ExploredBroker, calls: Iterable[OutsideCall]) -> Picture:
        picture = Picture()
        self.ask(tables(picture, self._ours))
        self.ask(letters(picture, self.stores))
        events_out(picture, broker, list(broker.log.topics()))
        outside_calls(picture, calls)
        return picture


@contextmanager
def _transaction(driver: psycopg.Connection[Any]) -> Iterator[None]:
    try:
        yield
        driver.commit()
    finally:
        if not driver.closed:
            driver.rollback()


def _each(script: str) -> Steps[None]:
    yield Sql(script, rows=False)


def _rows(text: str) -> Steps[list[tuple[Any, ...]]]:
    result = yield Sql(text)
    return result.rows
