"""The inbox engine against one transaction per message in the same driver: inbox row and a one-row update.

    python bench/worker.py [--events 20000] [--batch 100] [--workers 1] [--rows 1000] [--url postgresql://...]

One JSON line: events per second of both, and their ratio. Records are decoded on both sides. ``--workers 4`` starts four
processes on the same hot rows.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import time
import uuid
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import psycopg

from bothends import Retry, Service, event
from bothends.deliveries import read
from bothends.engine import Plan
from bothends.inbox import Batch
from bothends.message import Origin, Record
from bothends.seats import Seat
from bothends.service import Consumer
from bothends.stores import open_store
from bothends.stores.schema import apply
from bothends.stores.steps import run


@event("stock.taken", key="sku", topic="stock.events")
@dataclass(frozen=True)
class Taken:
    sku: int
    quantity: int


def records(count: int, rows: int, seed: int) -> list[Record]:
    order = random.Random(seed)
    made = []
    for n in range(count):
        sku = order.randrange(rows)
        made.append(Record(
            Origin("stock.events", 0, n), str(sku).encode(), f'{{"sku":{sku},"quantity":1}}'.encode(),
            [("ce_specversion", b"1.0"), ("ce_id", str(uuid.uuid4()).encode()), ("ce_source", b"bench"),
             ("ce_type", b"stock.taken"), ("content-type", b"application/json")], 0,
        ))
    return made


def service() -> Consumer:
    consumer = Service("bench").consumer("stock", retry=Retry(attempts=1))

    @consumer.handle(Taken)
    def take(taken: Taken, ctx: Any) -> None:
        ctx.connection.execute("update stock set amount = amount - 1 where sku = %s", (taken.sku,))

    return consumer


def ours(url: str, number: int, some: list[Record], batch: int, worker: int) -> float:
    consumer = service()
    plan = Plan(consumer, number, open_store(url), f"w{worker}", 4.0, lambda: "", random.random)
    seat = Seat(plan)
    seat.connect()
    began = time.perf_counter()
    size, clean, at = float(batch), 0, 0
    while at < len(some):
        part = some[at:at + int(size)]
        at += len(part)
        work = Batch(plan, [read(consumer, record) for record in part])
        seat.drive(work.acts())
        if work.contended:
            size, clean = max(1.0, size / 2), 0
        else:
            clean += 1
            if clean >= 20:
                size, clean = min(batch, size * 1.25 + 1), 0
    return time.perf_counter() - began


def one_by_one(url: str, number: int, some: list[Record], batch: int, worker: int) -> float:
    consumer = service()
    connection = psycopg.connect(url)
    began = time.perf_counter()
    for record in some:
        delivery = read(consumer, record)
        fresh = connection.execute(
            "insert into naive_inbox values (%s, %s) on conflict do nothing returning 1", (number, delivery.name[1])
        ).fetchone()
        if fresh:
            connection.execute("update stock set amount = amount - 1 where sku = %s", (delivery.event.sku,))
        connection.commit()
    return time.perf_counter() - began


def measure(how: Any, url: str, number: int, count: int, rows: int, batch: int, workers: int, seed: int) -> float:
    parts = [records(count // workers, rows, seed + n) for n in range(workers)]
    if workers == 1:
        return count / float(how(url, number, parts[0], batch, 0))
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        took = pool.starmap(how, [(url, number, part, batch, n) for n, part in enumerate(parts)])
    return count / max(took)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rows", type=int, default=1_000)
    parser.add_argument("--url", default=os.environ.get("BOTHENDS_TEST_POSTGRESQL_URL"))
    options = parser.parse_args()
    name = f"bothends_bench_{uuid.uuid4().hex[:10]}"
    url = urlsplit(options.url)._replace(path=f"/{name}").geturl()
    with psycopg.connect(options.url, autocommit=True) as server:
        server.execute(f'create database "{name}"')
    try:
        store = open_store(url)
        apply(store)
        with psycopg.connect(url) as setup:
            setup.execute("create table naive_inbox (consumer int, id text, primary key (consumer, id))")
            setup.execute("create table stock (sku int primary key, amount bigint)")
            setup.execute("insert into stock select g, 0 from generate_series(0, %s) g", (options.rows - 1,))
        connection = store.connect()
        number = run(store.inbox.register(name="bench.stock", service="bench", owner="", start_at="", topics=[]), connection).id
        connection.close()
        arguments = (url, number, options.events, options.rows, options.batch, options.workers)
        naive = measure(one_by_one, *arguments, seed=1)
        engine = measure(ours, *arguments, seed=100)
        with psycopg.connect(url) as check:
            done = check.execute("select count(*) from bothends.inbox").fetchone()
            stock = check.execute("select -sum(amount) from stock").fetchone()
    finally:
        with psycopg.connect(options.url, autocommit=True) as server:
            server.execute(f'drop database "{name}" with (force)')
    assert done is not None
    assert stock is not None
    print(json.dumps({
        "bench": "worker", "events": options.events, "batch": options.batch, "workers": options.workers, "rows": options.rows,
        "one_by_one_per_s": round(naive), "engine_per_s": round(engine), "ratio": round(engine / naive, 2),
        "inbox_rows": done[0], "effects": int(stock[0]),
    }))


if __name__ == "__main__":
    main()
