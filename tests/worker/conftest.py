"""A desk: one consumer, its engine and a real database, driven by hand, without a broker and without threads."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bothends import Service, event
from bothends.message import Origin, Record
from bothends.service import Consumer
from bothends.stores import Store, open_store
from bothends.stores.connection import Connection
from bothends.stores.schema import apply
from bothends.stores.steps import Sql, Steps, run
from bothends.testing.clock import clock_forward
from bothends.worker.acts import Act, Acts
from bothends.worker.deliveries import Delivery, read
from bothends.worker.engine import Plan
from bothends.worker.inbox import Batch
from bothends.worker.parking import Drain
from bothends.worker.seats import Seat
from tests.conftest import fresh_database

TOPIC = "orders.events"


@event("order.placed", version=2, key="order", topic=TOPIC)
@dataclass(frozen=True)
class Placed:
    order: str
    amount: int = 1


@event("order.booked", key="order", topic="bookings.events")
@dataclass(frozen=True)
class Booked:
    order: str


def prepared(url: str) -> Store:
    store = open_store(url)
    apply(store)
    connection = store.connect()
    serial = "bigserial primary key" if store.dialect == "postgresql" else "integer primary key"
    connection.execute(Sql(f"create table log (seq {serial}, consumer text, id text, attempt int)", rows=False))
    connection.execute(Sql("create table stock (sku text primary key, amount int not null)", rows=False))
    connection.close()
    return store


@pytest.fixture(scope="module")
def pg_store(postgresql_url: str) -> Iterator[Store]:
    with fresh_database(postgresql_url) as url:
        yield prepared(url)


@pytest.fixture(scope="module")
def sqlite_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    path: Path = tmp_path_factory.mktemp("sqlite") / "service.db"
    return prepared(f"sqlite:///{path}")


@pytest.fixture(params=[pytest.param("postgresql", marks=pytest.mark.needs("postgresql")), "sqlite"])
def store(request: pytest.FixtureRequest) -> Store:
    found: Store = request.getfixturevalue("pg_store" if request.param == "postgresql" else "sqlite_store")
    return found


def go_on(acts: Acts[None], act: Act, seat: Seat) -> None:
    """Carries out ``act`` and what follows, as ``drive`` does from the start."""
    try:
        while True:
            try:
                answer = seat.perform(act)
            except Exception as error:
                act = acts.throw(error)
            else:
                act = acts.send(answer)
    except StopIteration:
        return


class Desk:
    """``handle(fn)`` declares the handler; ``deliver`` and ``drain`` do what a worker's slot does, on this thread."""

    def __init__(self, store: Store, worker: str = "worker-1") -> None:
        self.store = store
        self.worker = worker
        self.service = Service(f"shop-{uuid.uuid4().hex[:12]}")
        self.connection: Connection = store.connect()
        self.consumer: Consumer = self.service.consumer("stock")
        self._offset = 0
        self._plan: Plan | None = None

    def declare(self, handler: Callable[..., Any], *, effects: bool = False, event: type[Any] = Placed, **options: Any) -> Desk:
        self.service.consumers.clear()
        self.consumer = self.service.consumer("stock", **options)
        self.consumer.handle(event, effects=effects)(handler)
        return self

    def declare_batch(self, handler: Callable[..., Any], *, event: type[Any] = Placed, **options: Any) -> Desk:
        """``handler`` gets lists."""
        self.service.consumers.clear()
        self.consumer = self.service.consumer("stock", **options)
        self.consumer.handle(event, batch=True)(handler)
        return self

    @property
    def plan(self) -> Plan:
        if self._plan is None or self._plan.consumer is not self.consumer:
            registered = self.run(self.store.inbox.register(
                name=self.consumer.name, service=self.service.name, owner="team", start_at="earliest", topics=[TOPIC],
            ))
            self._plan = self.new_plan(registered.id)
        return self._plan

    def new_plan(self, number: int, worker: str | None = None) -> Plan:
        return Plan(
            self.consumer, number, self.store, worker or self.worker, 4.0, lambda: "2026-01-01T00:00:00Z", lambda: 0.0,
        )

    def seat(self, plan: Plan | None = None, **options: Any) -> Seat:
        return Seat(plan or self.plan, **options)

    def record(
        self, id: str, order: str | None = "o1", *, body: bytes | None = b"", version: int = 2, type: str = "order.placed",
        source: str = "orders", headers: Sequence[tuple[str, bytes]] = (), partition: int = 0,
    ) -> Record:
        self._offset += 1
        if body == b"":
            body = f'{{"order":"{order}"}}'.encode()
        return Record(
            Origin(TOPIC, partition, self._offset), None if order is None else order.encode(), body,
            [("ce_specversion", b"1.0"), ("ce_id", id.encode()), ("ce_source", source.encode()),
             ("ce_type", type.encode()), ("ce_dataversion", str(version).encode()), *headers], 1_700_000_000_000,
        )

    def read(self, *records: Record) -> list[Delivery]:
        return [read(self.consumer, record) for record in records]

    def deliver(self, *records: Record, seat: Seat | None = None) -> list[str]:
        deliveries = self.read(*records)
        at = seat or self.seat()
        try:
            at.drive(Batch(at.plan, deliveries).acts())
        finally:
            if seat is None:
                at.close()
        return [d.outcome.value if d.outcome else "open" for d in deliveries]

    def drain(self, *, forward_s: float = 400.0, seat: Seat | None = None) -> list[tuple[str, str]]:
        """Moves the clock and gives each key that is due one turn: (id, outcome) in order."""
        self.forward(forward_s)
        at = seat or self.seat()
        done: list[tuple[str, str]] = []
        try:
            for lease in self.run(self.store.inbox.lease_due(self.plan.number, "drainer", lease_s=4.0, most=100)):
                drain = Drain(self.plan, lease)
                at.drive(drain.acts())
                done += [(d.name[1], d.outcome.value) for d in drain.done if d.outcome]
        finally:
            if seat is None:
                at.close()
        return done

    def forward(self, seconds: float) -> None:
        self.connection.begin()
        self.run(clock_forward(self.store, seconds))
        self.connection.commit()

    def run(self, steps: Steps[Any]) -> Any:
        return run(steps, self.connection)

    def sql(self, text: str, **params: Any) -> list[tuple[Any, ...]]:
        return self.connection.execute(Sql(text, params)).rows

    def table(self, name: str) -> str:
        return f'"bothends".{name}' if self.store.dialect == "postgresql" else f"bothends_{name}"

    def rows(self, columns: str, table: str, order: str = "1") -> list[tuple[Any, ...]]:
        text = f"select {columns} from {self.table(table)} where consumer = :consumer order by {order}"
        return self.sql(text, consumer=self.plan.number)

    def note(self, ctx: Any) -> None:
        """The effect of a handler: a row without any unique constraint."""
        mark = "%s" if self.store.dialect == "postgresql" else "?"
        ctx.connection.execute(
            f"insert into log (consumer, id, attempt) values ({mark}, {mark}, {mark})",
            (self.service.name, ctx.message.id, ctx.attempt),
        )

    def note_all(self, ctx: Any) -> None:
        """The effect of a batch handler: such a row for each message."""
        mark = "%s" if self.store.dialect == "postgresql" else "?"
        ctx.connection.cursor().executemany(
            f"insert into log (consumer, id, attempt) values ({mark}, {mark}, {mark})",
            [(self.service.name, message.id, ctx.attempt) for message in ctx.messages],
        )

    def effects(self) -> list[str]:
        """Ids in the order of their effects."""
        return [id for (id,) in self.sql("select id from log where consumer = :name order by seq", name=self.service.name)]

    def attempts(self) -> list[tuple[str, int]]:
        found = self.sql("select id, attempt from log where consumer = :name order by seq", name=self.service.name)
        return [(id, attempt) for id, attempt in found]

    def close(self) -> None:
        self.connection.close()


@pytest.fixture
def desk(store: Store) -> Iterator[Desk]:
    desk = Desk(store)
    yield desk
    desk.close()
