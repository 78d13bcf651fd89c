"""The embedded default, SQLite and the embedded broker, end to end: for orientation, no goal."""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.figures import figure, report
from bench.shop import Sold
from bothends import Service
from bothends.brokers import open_broker
from bothends.relay import Relay
from bothends.relay.events import Published
from bothends.stores import open_store
from bothends.stores.schema import apply
from bothends.worker import Worker
from bothends.worker.floor import Delivered

ROUNDS = 3
EVENTS, EVENTS_QUICK = 20_000, 600
ALONE, ALONE_QUICK = 1_000, 60
"""Events that are added in a transaction each."""
PER_TRANSACTION = 100
ROWS = 1_000
TOPIC = "bench.sales"
WAIT_S = 300


class Count:
    """Waits until relay or worker have done so many."""

    def __init__(self, events: int) -> None:
        self._left, self._over = events, threading.Event()

    def observe(self, event: object) -> None:
        if isinstance(event, Published):
            self._left -= event.records
        elif isinstance(event, Delivered):
            self._left -= event.outcomes.get("processed", 0)
        if self._left <= 0:
            self._over.set()

    def wait(self) -> None:
        if not self._over.wait(WAIT_S):
            raise SystemExit(f"{self._left} events left after {WAIT_S} s")


def measure(rounds: int | None = None, quick: bool = False) -> dict[str, Any]:
    events, alone = (EVENTS_QUICK, ALONE_QUICK) if quick else (EVENTS, ALONE)
    found = [one_round(events, alone) for _ in range(rounds or (1 if quick else ROUNDS))]
    return report(
        "Embedded: SQLite and the embedded broker",
        f"""In one process and one directory: `add` in transactions of one INSERT and one event, and of {PER_TRANSACTION}
        each; then the relay drains them all; then a worker with one slot handles them, an UPDATE each. SQLite commits with
        synchronous=FULL, in WAL mode.""",
        """It is not compared with anything. Steps run one after the other; together they share the file's one writer.""",
        setting={"events": events, "added_alone": alone, "rounds": len(found)},
        figures={name: figure([each[name] for each in found], "events/s") for name in found[0]},
    )


def one_round(events: int, alone: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="bothends-bench-") as folder:
        url = f"sqlite:///{folder}/service.db"
        store, broker = open_store(url), open_broker(f"embedded:///{folder}/log.db")
        apply(store)
        broker.create_topic(TOPIC, 4)
        service = Service("bench")
        rates = {
            "add_alone_per_s": add(service, Path(folder), alone, 1),
            "add_together_per_s": add(service, Path(folder), events - alone, PER_TRANSACTION, first=alone),
        }
        relayed = Count(events)
        relay = Relay(store, broker, observe=relayed.observe)
        with timed(lambda stop: relay.run(stop), relayed, events) as rate:
            rates["relay_per_s"] = rate()
        consumer = service.consumer("stock", topic=TOPIC)

        @consumer.handle(Sold)
        def take(sold: Sold, ctx: Any) -> None:
            ctx.connection.execute("update stock set amount = amount - 1 where sku = ?", (sold.sku,))

        handled = Count(events)
        worker = Worker(consumer, store, broker, observe=handled.observe)
        with timed(lambda stop: worker.run(stop, threading.Event()), handled, events) as rate:
            rates["worker_per_s"] = rate()
        broker.close()
        return rates


def add(service: Service, folder: Path, events: int, per_transaction: int, first: int = 0) -> float:
    with contextlib.closing(sqlite3.connect(folder / "service.db")) as connection:
        connection.execute("pragma synchronous = full")
        connection.execute("create table if not exists stock (sku integer primary key, amount integer not null)")
        connection.executemany("insert or ignore into stock values (?, 0)", [(n,) for n in range(ROWS)])
        connection.execute("create table if not exists orders (id integer primary key, sku integer)")
        connection.commit()
        began = time.perf_counter()
        for at in range(first, first + events, per_transaction):
            connection.execute("insert into orders (sku) values (1)")
            for n in range(at, min(at + per_transaction, first + events)):
                service.outbox.add(connection, Sold(n, n % ROWS))
            connection.commit()
        return events / (time.perf_counter() - began)


@contextmanager
def timed(run: Callable[[threading.Event], None], count: Count, events: int) -> Iterator[Callable[[], float]]:
    """Runs on a thread; what it gives waits for the count, and says the rate from the start on."""
    stop = threading.Event()
    thread = threading.Thread(target=run, args=(stop,))
    began = time.perf_counter()
    thread.start()

    def rate() -> float:
        count.wait()
        return events / (time.perf_counter() - began)

    try:
        yield rate
    finally:
        stop.set()
        thread.join()
