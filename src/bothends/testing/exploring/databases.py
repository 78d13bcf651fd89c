"""The database of an exploration: opened once, put back to its start state before each run."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from bothends.config import resolve
from bothends.service import Consumer, Service
from bothends.stores import Store
from bothends.stores.steps import Steps
from bothends.testing.exploring.brokers import ExploredBroker
from bothends.testing.exploring.connections import Scene
from bothends.testing.exploring.outside import OutsideCall
from bothends.testing.exploring.pictures import Picture
from bothends.urls import normal_database

__all__ = ["Database", "opened", "own_url"]

T = TypeVar("T")


class Database(Protocol):
    """What a world needs of its database, whatever the system."""

    stores: Sequence[Store]
    """What relay and workers are given: one for each schema with our tables."""
    lease_s: float
    """How long workers hold a key; a database whose clock runs by itself must not end it in the middle of a run."""

    def store_of(self, service: Service) -> Store: ...

    def keep(self) -> Any:
        """A copy of what is in the database now; None where only the first can be kept, the start state."""
        ...

    def restore(self, copy: Any, *, noise: bool = False, afresh: bool = False) -> bool:
        """Back to that copy; nobody else is connected. ``noise``: what the database counts goes on elsewhere. ``afresh``:
        nothing of earlier runs may be left, not even where rows lie. False: it cannot be done for this copy any more, only
        for the first."""
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

    def due(self, store: Store) -> int:
        """How many events the relay could publish now."""
        ...

    def next_delayed_s(self, store: Store) -> float | None:
        """Seconds until the next event with a delay may be published; None where none waits."""
        ...

    def topics(self, store: Store) -> list[str]: ...

    def end(self, process: str, run_async: Callable[[Coroutine[Any, Any, Any]], Any], *, died: bool) -> None:
        """The connections of a process end; the database rolls back."""
        ...

    def drop_users(self) -> None:
        """Connections that the user's own code has opened end with the process."""
        ...

    def picture(self, consumers: Sequence[Consumer], broker: ExploredBroker, calls: Iterable[OutsideCall]) -> Picture: ...


@contextmanager
def opened(services: Sequence[Service], url: str, scene: Scene, token: str) -> Iterator[Database]:
    """Opens a database for ``url`` with our schema in it: SQLite's is used as it is, on PostgreSQL another one is made beside
    it, which ``token`` names. Raises ConfigError, StoreUnavailable."""
    where = normal_database(url)
    if where.startswith("sqlite:"):
        from bothends.testing.exploring.sqlite_database import SqliteDatabase

        with SqliteDatabase(services, where, scene).opened() as lite:
            yield lite
        return
    from bothends.testing.exploring.postgresql_database import PostgresqlDatabase

    with PostgresqlDatabase(services, where, scene, token).opened() as database:
        yield database


def own_url(services: Sequence[Service]) -> str | None:
    """The first PostgreSQL database that the services are configured with."""
    found = (resolve(service).database_url for service in services)
    return next((url for url in found if url is not None and url.startswith("postgresql:")), None)
