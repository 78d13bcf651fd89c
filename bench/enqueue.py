"""What ``add`` costs in a one-row business transaction [S4, table mode]: `python -m bench.enqueue POSTGRESQL_URL`.

Five kinds of transaction, alternating in small rounds so that the machine's moods hit all of them alike; each is BEGIN, one
INSERT, COMMIT, over psycopg, plus:

- bare: nothing;  bare+trip: one more empty round trip (`select 1`);  add: one `add`.
- pipelined bare and pipelined add: the same with all statements in one pipeline.

`add_over_trip` (at most 1.15) and `pipelined_add_over_bare` (at most 1.10) are ratios of the medians of transaction times.
Last line: one JSON object. The server must have fsync and synchronous_commit on; the program refuses others.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import psycopg

from bothends import Service
from bothends.stores import open_store
from bothends.stores.schema import apply

ROUND = 20
BODY = {"order_id": 17, "customer": "anna", "city": "girona", "note": "x" * 120}
Connection = psycopg.Connection[Any]


def transactions(service: Service) -> dict[str, Callable[[Connection], None]]:
    insert = "insert into orders (customer, amount) values ('anna', 14.50)"
    add = service.outbox.add

    def bare(connection: Connection) -> None:
        connection.execute(insert)
        connection.commit()

    def trip(connection: Connection) -> None:
        connection.execute(insert)
        connection.execute("select 1")
        connection.commit()

    def with_add(connection: Connection) -> None:
        connection.execute(insert)
        add(connection, BODY, type="order.created", key="17")
        connection.commit()

    def pipelined(connection: Connection) -> None:
        with connection.pipeline():
            connection.execute(insert)
            connection.commit()

    def pipelined_add(connection: Connection) -> None:
        with connection.pipeline():
            connection.execute(insert)
            add(connection, BODY, type="order.created", key="17")
            connection.commit()

    return {
        "bare": bare, "bare+trip": trip, "add": with_add, "pipelined_bare": pipelined, "pipelined_add": pipelined_add,
    }


def measure(url: str, rounds: int) -> dict[str, list[float]]:
    apply(open_store(url))
    kinds = transactions(Service("bench"))
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    with psycopg.connect(url) as connection:
        for setting in ("fsync", "synchronous_commit"):
            if connection.execute(f"show {setting}").fetchone() != ("on",):  # type: ignore[arg-type]
                sys.exit(f"{setting} is not on: the figures would mean nothing")
        connection.execute("create table orders (id bigint generated always as identity primary key, customer text, "
                           "amount numeric)")
        connection.commit()
        names = list(kinds)
        for number in range(-3, rounds):  # the first three warm up
            for name in names[number % 5:] + names[:number % 5]:
                for _ in range(ROUND):
                    began = time.perf_counter()
                    kinds[name](connection)
                    if number >= 0:
                        seconds[name].append(time.perf_counter() - began)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="a superuser's URL; a database is made and dropped")
    parser.add_argument("--rounds", type=int, default=100, help="rounds of 20 transactions of each kind (default 100)")
    arguments = parser.parse_args()
    name = f"bothends_bench_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(arguments.url, autocommit=True) as server:
        server.execute(f'create database "{name}"'.encode())
        try:
            seconds = measure(urlsplit(arguments.url)._replace(path=f"/{name}").geturl(), arguments.rounds)
        finally:
            server.execute(f'drop database "{name}" with (force)'.encode())
    median = {kind: statistics.median(times) for kind, times in seconds.items()}
    print(json.dumps({
        "bench": "enqueue", "transactions": len(seconds["bare"]),
        "median_us": {kind: round(value * 1e6, 1) for kind, value in median.items()},
        "mean_us": {kind: round(statistics.fmean(times) * 1e6, 1) for kind, times in seconds.items()},
        "add_over_trip": round(median["add"] / median["bare+trip"], 3), "add_over_trip_limit": 1.15,
        "pipelined_add_over_bare": round(median["pipelined_add"] / median["bare"], 3),
        "pipelined_add_over_pipelined_bare": round(median["pipelined_add"] / median["pipelined_bare"], 3),
        "pipelined_limit": 1.10,
    }))


if __name__ == "__main__":
    main()
