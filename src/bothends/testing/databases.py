"""The databases of a harness: opened, given our schema, watched, and moved through time."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from bothends.errors import MissingExtra
from bothends.stores import Store, open_store
from bothends.stores.connection import Connection
from bothends.stores.schema import apply
from bothends.stores.sqlite.connection import BUSY_TIMEOUT_MS
from bothends.stores.steps import Steps, run
from bothends.testing.clock import clock_forward, seconds_to_next_retry
from bothends.testing.snapshots import Snapshot, snapshot

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.orm import Session

__all__ = ["Database", "memory_name", "memory_url"]

T = TypeVar("T")


def memory_name() -> str:
    """A name that nobody else has."""
    return f"harness-{uuid.uuid4().hex}"


def memory_url() -> str:
    """The URL of an in-memory database that nobody else has."""
    return f"sqlite:///:memory:{memory_name()}"


class Database:
    """One database by URL and schema. It lives from ``open`` to ``close``; an in-memory one is gone afterwards."""

    def __init__(self, url: str, schema: str) -> None:
        self.url = url
        self.store: Store = open_store(url, schema)
        self._anchor: Connection | None = None
        self._mine: Connection | None = None
        self._engine: Engine | None = None
        self._sessions: list[Session] = []

    def open(self) -> None:
        """Connects and applies our schema. The connection that stays open keeps an in-memory database alive."""
        self._anchor = self.store.connect(name="bothends-harness")
        apply(self.store, connection=self._anchor)

    def close(self) -> None:
        for session in self._sessions:
            session.close()
        self._sessions.clear()
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None
        for connection in (self._mine, self._anchor):
            if connection is not None:
                connection.close()
        self._mine = self._anchor = None

    @property
    def connection(self) -> Any:
        """A driver's connection for the test itself (``sqlite3`` or psycopg), in autocommit, closed at the end."""
        return self._own().driver

    def _own(self) -> Connection:
        if self._mine is None:
            self._mine = self.store.connect(name="bothends-test")
        return self._mine

    def session(self) -> Session:
        """A new SQLAlchemy session, closed at the end."""
        try:
            from sqlalchemy.orm import Session
        except ImportError as error:  # pragma: no cover - the extras are installed in our tests
            raise MissingExtra("Harness.session()", "sqlalchemy") from error
        if self._engine is None:
            self._engine = _engine(self.store)
        session = Session(self._engine)
        self._sessions.append(session)
        return session

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """A transaction on a connection of the test itself; gives the driver's connection."""
        connection = self._own()
        connection.begin()
        try:
            yield connection.driver
            connection.commit()
        finally:
            connection.rollback()

    def run(self, steps: Steps[T]) -> T:
        """Runs ``steps`` on the harness's own connection, each statement by itself."""
        return run(steps, self._open_connection())

    def forward(self, seconds: float) -> None:
        """Moves this database's clock forward."""
        connection = self._open_connection()
        connection.begin()
        try:
            run(clock_forward(self.store, seconds), connection)
            connection.commit()
        finally:
            connection.rollback()

    def next_retry_s(self, consumers: Sequence[int]) -> float | None:
        """Seconds until the next retry of one of these consumers (by number) is due; None where none waits."""
        return self.run(seconds_to_next_retry(self.store, consumers))

    def snapshot(self) -> Snapshot:
        return self.run(snapshot(self.store))

    def refuse_open_writers(self) -> None:
        """On SQLite an uncommitted write of the test would lock out every handler: say so before they wait for it."""
        if self.store.dialect != "sqlite":
            return
        connection = self._open_connection()
        try:
            connection.driver.execute("pragma busy_timeout = 0")
            connection.begin()
            connection.rollback()
            connection.driver.execute(f"pragma busy_timeout = {BUSY_TIMEOUT_MS}")
        except sqlite3.OperationalError as error:
            raise AssertionError(
                f"somebody holds a write transaction on {self.url}: commit (or roll back) the test's session "
                f"before settle() and advance()"
            ) from error

    def _open_connection(self) -> Connection:
        if self._anchor is None:
            raise RuntimeError("the harness is not open: use it as `with Harness(...) as h:`")
        return self._anchor


def _engine(store: Store) -> Engine:
    from sqlalchemy import create_engine
    from sqlalchemy.pool import NullPool

    if store.dialect == "postgresql":
        _, _, rest = store.url.partition("://")
        return create_engine(f"postgresql+psycopg://{rest}", poolclass=NullPool)
    from bothends.integrations.sqlalchemy import explicit_begin
    from bothends.stores.sqlite.connection import location

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            location(store.url), uri=True, check_same_thread=False, timeout=BUSY_TIMEOUT_MS / 1e3
        )
        # In a shared in-memory database a reader would lock the tables that it has read until its transaction ends.
        connection.execute("pragma read_uncommitted = true")
        return connection

    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool)
    explicit_begin(engine)
    return engine
