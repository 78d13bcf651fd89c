"""Load: one writer process. State and event commit together; ``written`` is the truth that the audit compares with.

    python -m tests.acceptance.load --writer 0 [--count N] [--rate R] [--backlog N] [--keys K] [--strict] [--note TEXT]
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from contextlib import nullcontext
from typing import Any

import psycopg

from tests.acceptance.shop import Moved, MovedStrictly, service

LOOK_AGAIN_S = 0.2
"""Counting what waits is work for the database too."""
CONNECT_S = 10


def write_one(
    c: psycopg.Connection[Any], key: str, note: str, strict: bool, roll_back: bool, topic: str | None = None
) -> None:
    """One transaction of one change."""
    change(c, key, note, strict, topic)
    end(c, roll_back)


def change(c: psycopg.Connection[Any], key: str, note: str, strict: bool, topic: str | None = None) -> None:
    """State first and then ``add``, under the row's lock; with ``strict`` the other way round."""
    if strict:
        id = service.outbox.add(c, MovedStrictly(key, note), topic=topic)
    c.execute("update state set version = version + 1 where key = %s", (key,))
    if not strict:
        id = service.outbox.add(c, Moved(key, note), topic=topic)
    c.execute("insert into written (event_id, key, version) select %s, key, version from state where key = %s", (id, key))


def end(c: psycopg.Connection[Any], roll_back: bool) -> None:
    if roll_back:
        c.rollback()
    else:
        c.commit()


def waiting(c: psycopg.Connection[Any]) -> int:
    """Written and not yet taken effect."""
    row = c.execute("select (select count(*) from written) - (select count(*) from effects_log)").fetchone()
    c.rollback()
    assert row is not None
    return int(row[0])


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--writer", type=int, required=True)
    parser.add_argument("--count", type=int, default=1_000_000_000)
    parser.add_argument("--rate", type=float, default=0, help="per second; 0: as fast as it goes")
    parser.add_argument("--keys", type=int, default=64)
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--note", default="")
    parser.add_argument("--backlog", type=int, default=0, help="write only while so few wait; 0: always")
    parser.add_argument("--together", type=int, default=1, help="changes in one transaction, in a pipeline")
    parser.add_argument("--again", action="store_true", help="connect again when a connection is lost")
    parser.add_argument("--linger", type=float, default=0.0, help="hold the transaction open for up to so many seconds")
    options = parser.parse_args()
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
    rng = random.Random(options.writer)
    done, began = 0, time.monotonic()
    while done < options.count and not stopped:
        try:
            with psycopg.connect(os.environ["BOTHENDS_DATABASE_URL"], connect_timeout=CONNECT_S) as connection:
                done = write(connection, rng, options, stopped, done)
        except psycopg.OperationalError as error:
            if not options.again:
                raise
            print(f"writer {options.writer} connects again: {error}", file=sys.stderr, flush=True)
            time.sleep(LOOK_AGAIN_S)
    print(f"writer {options.writer}: {done} transactions in {time.monotonic() - began:.1f} s", flush=True)
    return 0


def write(
    connection: psycopg.Connection[Any], rng: random.Random, options: argparse.Namespace, stopped: list[int], done: int
) -> int:
    """Goes on from ``done`` transactions to the end; how many there are then."""
    began, first = time.monotonic(), done
    while done < options.count and not stopped:
        if options.backlog and done % max(1, 50 // options.together) == 0:
            while not stopped and waiting(connection) > options.backlog:
                time.sleep(LOOK_AGAIN_S)
        if options.rate:
            time.sleep(max(0.0, began + (done - first) / options.rate - time.monotonic()))
        # In one order, so that two writers never wait for each other.
        with connection.pipeline() if options.together > 1 else nullcontext():
            for key in sorted(rng.sample(range(options.keys), options.together)):
                change(connection, f"k{key}", options.note, options.strict)
            end(connection, roll_back=rng.random() < 0.02)
        if options.linger and rng.random() < 0.02:
            time.sleep(rng.random() * options.linger)
        done += 1
    return done


if __name__ == "__main__":
    sys.exit(main())
