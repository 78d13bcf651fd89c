"""What the suites for stores work with: connections of their own, and whole transactions as workers run them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

from bothends.letters import Block, KeyOf, Letter, pack_headers
from bothends.stores import Store
from bothends.stores.connection import Connection
from bothends.stores.inboxes import Entry
from bothends.stores.steps import Sql, Steps, run
from bothends.testing.clock import clock_forward, table

__all__ = ["KEY", "LEASE_S", "OTHER", "Bench", "Work", "hash_of", "letter"]

T = TypeVar("T")

LEASE_S = 4.0
KEY = KeyOf("orders", True, b"17")
OTHER = KeyOf("orders", True, b"18")


def hash_of(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()


def letter(id: str, *, queue: KeyOf = KEY, body: bytes | None = b"{}", **more: Any) -> Letter:
    """One message as it was delivered."""
    values: dict[str, Any] = {
        "queue": queue, "source": "shop", "id": id, "type": "order.created", "hash": hash_of(body or b""), "partition": 0,
        "offset": int(hash_of(id.encode()).hex()[:6], 16), "timestamp_ms": 1_700_000_000_000,
        "record_key": queue.key if queue.keyed else None, "body": body, "headers": pack_headers([("ce_id", id.encode())]),
    }
    return Letter(**(values | more))


class Work:
    """One connection, and step functions run on it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.connection: Connection = store.connect(name="conformance")

    def do(self, steps: Steps[T]) -> T:
        return run(steps, self.connection)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.connection.begin()
        try:
            yield
            self.connection.commit()
        finally:
            self.connection.rollback()

    def rows(self, text: str, **parameters: Any) -> list[tuple[Any, ...]]:
        def steps() -> Steps[list[tuple[Any, ...]]]:
            return (yield Sql(text, parameters)).rows

        return self.do(steps())

    def count(self, name: str) -> int:
        return int(self.rows(f"select count(*) from {table(self.store, name)}")[0][0])


class Bench:
    """Fixtures and helpers. A subclass gives the fixture ``store``: open, with our schema, and no rows."""

    @pytest.fixture
    def workers(self, store: Store) -> Iterator[Callable[[], Work]]:
        """Makes connections; all are closed at the end."""
        made: list[Work] = []

        def make() -> Work:
            made.append(Work(store))
            return made[-1]

        yield make
        for work in made:
            work.connection.close()

    @pytest.fixture
    def work(self, workers: Callable[[], Work]) -> Work:
        return workers()

    @pytest.fixture
    def consumer(self, work: Work) -> int:
        with work.transaction():
            registered = work.do(work.store.inbox.register(
                name="shop.stock", service="shop", owner="team", start_at="earliest", topics=["orders"],
            ))
        return int(registered.id)

    @contextmanager
    def admitting(self, work: Work, consumer: int, *names: str) -> Iterator[set[tuple[str, str]]]:
        """A work transaction: admission first, the gate last; gives what was fresh."""
        entries = [Entry("shop", name, hash_of(b"{}")) for name in names]
        with work.transaction():
            admitted = work.do(work.store.inbox.admit(consumer, entries, lock_timeout_ms=50, lease_s=LEASE_S))
            yield set(admitted.fresh)
            work.do(work.store.inbox.gate(None, admitted.transaction, last=True))

    def process(self, work: Work, consumer: int, *names: str) -> set[tuple[str, str]]:
        """A whole work transaction with nothing in it."""
        with self.admitting(work, consumer, *names) as fresh:
            return fresh

    def park(self, work: Work, consumer: int, *letters: Letter, delay_s: float = 0.0, state: str = "retrying") -> None:
        """Admits and parks; keys that don't wait yet begin to."""
        queues = dict.fromkeys(one.queue for one in letters)
        with self.admitting(work, consumer, *(one.id for one in letters)):
            work.do(work.store.inbox.park(consumer, letters, [Block(queue, state, delay_s) for queue in queues]))

    def state(self, work: Work, consumer: int, id: str) -> str | None:
        known = work.do(work.store.inbox.known(consumer, [("shop", id)]))
        return known[("shop", id)].state if known else None

    def lease(self, work: Work, consumer: int, drainer: str = "d1", most: int = 10) -> list[Any]:
        with work.transaction():
            return list(work.do(work.store.inbox.lease_due(consumer, drainer, lease_s=LEASE_S, most=most)))

    def forward(self, work: Work, seconds: float) -> None:
        with work.transaction():
            work.do(clock_forward(work.store, seconds))
