"""Bugs that the explorer found in this package while it was built, each as the history that showed it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bothends import Context, Service
from bothends.testing import recorded
from bothends.testing.exploring.boundaries import Boundary, Fault, Kind
from bothends.testing.exploring.databases import Database
from bothends.testing.exploring.sqlite_database import LEASE_S
from bothends.testing.exploring.worlds import Ending, World
from tests.exploring.planted.events import ONE, STOCK, Paid


class Desk:
    def told(self, order: str) -> None:
        """Somebody outside, who keeps nothing."""


desk = recorded(Desk())


@contextmanager
def shop() -> Iterator[World]:
    service = Service("found")

    @service.consumer("stock").handle(Paid)
    def take(paid: Paid, ctx: Context[sqlite3.Connection]) -> None:
        ctx.connection.execute("update stock set units = units - ?", [paid.units])

    def prepare(db: Any, database: Database) -> None:
        db.executescript(STOCK)
        database.publish(db, [service], [ONE])

    with World([service], prepare).opened() as world:
        yield world


def numbers(ending: Ending, kind: Kind, *, users: bool = False) -> list[Boundary]:
    return [b for b in ending.tape.boundaries if b.kind is kind and b.users == users and b.consumer == "found.stock"]


def test_a_drain_whose_commit_fails_is_done_again_at_once() -> None:
    """It took the key for free before its COMMIT, and left it to its lease when the COMMIT failed."""
    with shop() as world:
        statement = numbers(world.run({}), Kind.SQL, users=True)[0].number
        parked = world.run({statement: Fault.FAILS})
        usual_s = world.clock.passed_s
        drained = numbers(parked, Kind.COMMIT)[-1].number
        for fault in (Fault.FAILS, Fault.HAPPENED):
            ending = world.run({statement: Fault.FAILS, drained: fault})
            assert ending.picture.rows["stock"] == [("8",)]
            assert ending.picture.rows["waiting keys"] == []
            assert world.clock.passed_s - usual_s < LEASE_S / 2


def test_a_drained_effects_message_that_is_done_is_not_called_again() -> None:
    """After a COMMIT whose answer was lost, a drained message was handled once more up to ``ctx.begin()``."""
    service = Service("found")

    @service.consumer("stock").handle(Paid, effects=True)
    def take(paid: Paid, ctx: Context[sqlite3.Connection]) -> None:
        desk.told(paid.order)
        ctx.begin().execute("update stock set units = units - ?", [paid.units])

    def prepare(db: Any, database: Database) -> None:
        db.executescript(STOCK)
        database.publish(db, [service], [ONE])

    with World([service], prepare).opened() as world:
        call = numbers(world.run({}), Kind.CALL, users=True)[0].number
        drained = numbers(world.run({call: Fault.FAILS}), Kind.COMMIT)[-1].number
        ending = world.run({call: Fault.FAILS, drained: Fault.HAPPENED})
        assert ending.picture.rows["stock"] == [("8",)]
        calls = numbers(ending, Kind.CALL, users=True)
    assert len(calls) == 2  # the one that failed, and the one that was committed
