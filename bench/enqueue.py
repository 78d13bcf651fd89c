"""What ``add`` costs in a one-row business transaction [S4]: into the table, and as a message in the log."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psycopg

from bench import places
from bench.figures import figure, goal, percentile, report
from bothends import Service

ROUNDS, ROUNDS_QUICK = 100, 3
WARM_ROUNDS = 3
ROUND = 20
"""Transactions of each kind in a row."""
GROUPS = 5
"""The rounds are looked at in so many groups, for the spread."""
BODY = {"order_id": 17, "customer": "anna", "city": "girona", "note": "x" * 120}
Connection = psycopg.Connection[Any]


def measure(rounds: int | None = None, quick: bool = False) -> dict[str, Any]:
    rounds = rounds or (ROUNDS_QUICK if quick else ROUNDS)
    with places.database() as url:
        seconds = run(url, rounds)
    medians = {kind: _medians(times) for kind, times in seconds.items()}
    ratio = {
        name: figure([a / b for a, b in zip(medians[kind], medians[reference], strict=True)], f"of {reference}", 3)
        for name, kind, reference in (
            ("add_over_trip", "add", "bare+trip"), ("add_over_bare", "add", "bare"),
            ("pipelined_add_over_bare", "pipelined_add", "pipelined_bare"),
            ("message_over_trip", "message", "bare+trip"), ("message_over_bare", "message", "bare"),
            ("pipelined_message_over_bare", "pipelined_message", "pipelined_bare"),
        )
    }
    return report(
        "Enqueue: what add costs",
        f"""Transactions over psycopg, each BEGIN, one INSERT of the caller's, COMMIT: bare; with one more empty round trip
        (`select 1`); with one `add` to the table, or as a message (`relay_source` is `message`); and bare and with either
        `add` in a pipeline. The seven kinds alternate in turns of {ROUND},
        so that the machine's moods hit all alike. A figure is the median transaction; its spread that of {GROUPS} parts
        of the run.""",
        """Most of a transaction is the disk's answer to COMMIT: on a slower disk the ratios are smaller, on one that
        answers from memory they are larger. One connection: nothing is said about many writers.""",
        setting={"transactions_each": rounds * ROUND, "body_bytes": 170},
        figures={f"{kind}_us": figure([m * 1e6 for m in each], "µs", 1) for kind, each in medians.items()} | ratio,
        goals=[
            goal("S4", "add against one more empty round trip", ratio["add_over_trip"], "at most", 1.15),
            goal("S4", "pipelined add against the bare pipelined transaction", ratio["pipelined_add_over_bare"],
                 "at most", 1.10),
            goal("S4", "message against one more empty round trip", ratio["message_over_trip"], "at most", 1.08),
            goal("S4", "pipelined message against the bare pipelined transaction", ratio["pipelined_message_over_bare"],
                 "at most", 1.05),
        ],
    )


def _medians(times: list[float]) -> list[float]:
    size = max(1, len(times) // GROUPS)
    return [percentile(times[at:at + size], 50) for at in range(0, size * min(GROUPS, len(times)), size)]


def transactions() -> dict[str, Callable[[Connection], None]]:
    insert = "insert into orders (customer, amount) values ('anna', 14.50)"
    add = Service("bench", relay_source="poll").outbox.add
    emit = Service("bench", relay_source="message").outbox.add

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

    def message(connection: Connection) -> None:
        connection.execute(insert)
        emit(connection, BODY, type="order.created", key="17")
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

    def pipelined_message(connection: Connection) -> None:
        with connection.pipeline():
            connection.execute(insert)
            emit(connection, BODY, type="order.created", key="17")
            connection.commit()

    return {
        "bare": bare, "bare+trip": trip, "add": with_add, "message": message,
        "pipelined_bare": pipelined, "pipelined_add": pipelined_add, "pipelined_message": pipelined_message,
    }


def run(url: str, rounds: int) -> dict[str, list[float]]:
    kinds = transactions()
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    with psycopg.connect(url) as connection:
        connection.execute(
            "create table orders (id bigint generated always as identity primary key, customer text, amount numeric)")
        connection.commit()
        names = list(kinds)
        for number in range(-WARM_ROUNDS, rounds):
            for name in names[number % len(names):] + names[:number % len(names)]:
                for _ in range(ROUND):
                    began = time.perf_counter()
                    kinds[name](connection)
                    if number >= 0:
                        seconds[name].append(time.perf_counter() - began)
    return seconds
