"""Counting: what an event asks of PostgreSQL. Messages of the protocol, bytes of write-ahead log, bytes of tables."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import psycopg
from psycopg.pq import Trace

from bench import places
from bench.child import consumer_of
from bench.enqueue import transactions
from bench.shop import backlog, records, sales, stock
from bothends.core.relaying import EVERY_LANE, Segment, Stream
from bothends.stores import open_store
from bothends.stores.steps import run
from bothends.worker.deliveries import read
from bothends.worker.engine import Plan
from bothends.worker.inbox import Batch
from bothends.worker.seats import Seat

__all__ = ["Cost", "counted", "measure"]

PAGE = 2_000
BATCH = 100
ROWS = 1_000


class Cost(NamedTuple):
    """Of one turn."""

    statements: float
    trips: float
    """Times that the client waited for the server."""
    wal_bytes: float
    """Of write-ahead log, the COMMIT's record included, full images of pages not."""
    image_bytes: float
    """Of full images of pages: what a page costs when it is changed for the first time after a checkpoint."""


def counted(driver: psycopg.Connection[Any], turn: Callable[[], None]) -> Counter[str]:
    """The protocol's messages while ``turn`` used this connection, as libpq saw them; to the server after ``F``."""
    with tempfile.TemporaryFile("w+") as file:
        driver.pgconn.trace(file.fileno())
        driver.pgconn.set_trace_flags(Trace.SUPPRESS_TIMESTAMPS)
        try:
            turn()
        finally:
            driver.pgconn.untrace()
        file.seek(0)
        return Counter(" ".join(line.split("\t")[0:3:2]) for line in file if line.count("\t") >= 2)


def measure(url: str, turns: int) -> dict[str, Cost]:
    """What one turn of each kind costs: a transaction, a page, a batch. Then sizes are what is in the tables."""
    with psycopg.connect(url, autocommit=True) as watching:
        watching.execute("create extension pg_walinspect")
        return {
            **_transactions(url, watching, turns), **_pages(url, watching, turns), **_batches(url, watching, turns),
        }


def _cost(
    watching: psycopg.Connection[Any], driver: psycopg.Connection[Any], turns: int, turn: Callable[[], None],
    together: int = 1, prepare: Callable[[], None] | None = None,
) -> Cost:
    """The mean of ``turns`` times ``together`` turns. What ``prepare`` writes before each is not counted."""
    wal = images = 0.0
    for _ in range(turns):
        if prepare is not None:
            prepare()
        before = _flushed(watching)
        for _ in range(together):
            turn()
        found = _written(watching, before, _flushed(watching))
        wal, images = wal + found[0], images + found[1]
    if prepare is not None:
        prepare()
    said = counted(driver, turn)
    times = turns * together
    return Cost(said["F Query"] + said["F Execute"], said["B ReadyForQuery"], wal / times, images / times)


def _flushed(watching: psycopg.Connection[Any]) -> str:
    """How far the log is on disk, everything before it included."""
    watching.execute("select pg_logical_emit_message(true, 'bench', '')")
    row = watching.execute("select pg_current_wal_flush_lsn()::text").fetchone()
    assert row is not None
    return str(row[0])


def _written(watching: psycopg.Connection[Any], begin: str, end: str) -> tuple[float, float]:
    """Bytes of records and of page images that transactions of this database wrote: others write to the same log."""
    row = watching.execute(
        "with r as materialized (select * from pg_get_wal_records_info(%s, %s)), ours as (select distinct xid from r where "
        "xid <> '0' and block_ref like '%%/' || (select oid from pg_database where datname = current_database()) || '/%%') "
        "select coalesce(sum(record_length - fpi_length), 0), coalesce(sum(fpi_length), 0) from r join ours using (xid)",
        [begin, end]).fetchone()
    assert row is not None
    return float(row[0]), float(row[1])


def _transactions(url: str, watching: psycopg.Connection[Any], turns: int) -> dict[str, Cost]:
    kinds = transactions()
    with psycopg.connect(url) as connection:
        connection.execute(
            "create table orders (id bigint generated always as identity primary key, customer text, amount numeric)")
        connection.commit()
        found = {}
        for kind in ("bare", "add", "pipelined_add"):
            turn = kinds[kind]
            for _ in range(20):  # psycopg prepares what comes often
                turn(connection)
            found[kind] = _cost(watching, connection, turns, lambda turn=turn: turn(connection), together=20)
        return found


def _pages(url: str, watching: psycopg.Connection[Any], turns: int) -> dict[str, Cost]:
    """Reading and settling a page of one row, and a full one, as a relay does."""
    store = open_store(url)
    steps = store.relay
    connection = store.connect(factory=steps.connection_factory)
    executor = steps.executor(connection)
    me = run(steps.leases.register(
        name="bench", pid=0, host="bench", lease_s=600.0, former=None, now=0.0, boot=""), executor)
    streams = run(steps.rows.fetch([Stream(EVERY_LANE, 0, "1:1:")], limit=10_000), executor).streams
    used = 1_000_000

    def wait(rows: int) -> None:
        nonlocal used
        backlog(watching, "topic", rows, first=used)
        used += rows

    def page() -> None:
        nonlocal streams
        read = run(steps.rows.fetch(streams, limit=PAGE), executor)
        streams = read.streams
        stream = streams[0]
        run(steps.rows.settle(me, [Segment(stream.lanes, stream.hwm, stream.snapshot, len(read.rows))], [], []), executor)

    try:
        while run(steps.rows.fetch(streams, limit=PAGE), executor).rows:
            page()
        return {
            "page_of_1": _cost(watching, connection.driver, turns, page, prepare=lambda: wait(1)),
            f"page_of_{PAGE}": _cost(watching, connection.driver, turns, page, prepare=lambda: wait(PAGE)),
        }
    finally:
        run(steps.leases.leave(me), executor)
        connection.close()


def _batches(url: str, watching: psycopg.Connection[Any], turns: int) -> dict[str, Cost]:
    with psycopg.connect(url) as connection:
        stock(connection, ROWS)
    with seat(url, "topic") as one:
        consumer = one.plan.consumer
        seed = 0

        def batch(size: int) -> Callable[[], None]:
            def turn() -> None:
                nonlocal seed
                seed += 1
                some = records(sales(size, ROWS, seed), "topic")
                one.drive(Batch(one.plan, [read(consumer, record) for record in some]).acts())
            return turn

        for size in (1, BATCH):
            batch(size)()
        assert one.connection is not None
        driver = one.connection.driver
        return {
            "batch_of_1": _cost(watching, driver, turns, batch(1), together=5),
            f"batch_of_{BATCH}": _cost(watching, driver, turns, batch(BATCH)),
        }


@contextmanager
def seat(url: str, topic: str) -> Iterator[Seat]:
    """The inbox engine of the consumer that is measured, without a broker."""
    store = open_store(url)
    consumer = consumer_of(topic, failing=None, concurrency=1)
    ours = store.connect()
    number = run(store.inbox.register(
        name=consumer.name, service="bench", owner="", start_at="", topics=[topic]), ours).id
    ours.close()
    made = Seat(Plan(consumer, number, store, "bench", 60.0, lambda: "", random.random))
    made.connect()
    try:
        yield made
    finally:
        made.close()


def row_bytes(url: str) -> dict[str, float]:
    """Bytes on disk of a row, its indexes included."""
    found = {}
    with psycopg.connect(url, autocommit=True) as watching:
        for table, parts in (("outbox", "outbox_[0-9]"), ("inbox", "inbox")):
            size = watching.execute(
                "select sum(pg_total_relation_size(oid)) from pg_class where relnamespace = 'bothends'::regnamespace and "
                "relkind = 'r' and relname ~ %s", [f"^{parts}$"]).fetchone()
            rows = watching.execute(f"select count(*) from bothends.{table}".encode()).fetchone()
            assert size is not None
            assert rows is not None
            found[table] = float(size[0]) / max(1, rows[0])
    return found


if __name__ == "__main__":
    with places.database() as place:
        for name, cost in measure(place, 10).items():
            print(name, cost)
        print(row_bytes(place))
