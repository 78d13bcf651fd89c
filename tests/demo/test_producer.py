"""Producers against real databases, with COMMITs whose answer is lost."""

import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from bothends.demo.app import order_event
from bothends.demo.events import OrderCancelled, OrderCreated, OrderLine
from bothends.demo.orders import Order
from bothends.demo.producer import Share, Source, place_all
from bothends.demo.seeded import make_orders
from bothends.demo.shop import Connection, open_database
from bothends.demo.world import World
from tests.demo.conftest import outbox

ORDERS = make_orders(3, 60)


class BrokenLite(sqlite3.Connection):
    """Dies at one of its COMMITs, before or after the database has carried it out."""

    left, after = 7, False

    def execute(self, text: str, *values: Any) -> Any:
        if text == "commit":
            self.left -= 1
            if self.left == 0:
                if self.after:
                    super().execute(text)
                self.close()
                raise sqlite3.OperationalError("disk I/O error")
        return super().execute(text, *values)


class BrokenPostgres(psycopg.Connection[Any]):
    left, after = 7, False

    def execute(self, text: Any, *values: Any, **options: Any) -> Any:
        if text == "commit":
            self.left -= 1
            if self.left == 0:
                if self.after:
                    super().execute(text)
                self.close()
                raise psycopg.OperationalError("server closed the connection unexpectedly")
        return super().execute(text, *values, **options)


def broken(world: World, after: bool) -> Connection:
    if world.database is None:
        lite = sqlite3.connect(world.file_of("orders"), isolation_level=None, factory=BrokenLite)
        lite.after = after
        return lite
    postgres = BrokenPostgres.connect(world.database, autocommit=True)
    postgres.after = after
    return postgres


def rows(world: World) -> tuple[int, int]:
    """Orders and events."""
    with world.connected("orders") as db:
        (events,) = db.execute(f"select count(*) from {outbox(world, db, 'orders')}").fetchone()  # type: ignore[arg-type,misc]
        return world.shops["orders"].count_orders(db), int(events)


def test_every_order_and_one_event_each(world: World) -> None:
    assert place_all(iter(ORDERS), lambda: world.connect("orders")) == 0
    assert rows(world) == (60, 60)


@pytest.mark.parametrize("after", [False, True])
def test_an_unanswered_commit_is_looked_up(world: World, after: bool) -> None:
    connections = iter([broken(world, after), world.connect("orders")])
    found = place_all(iter(ORDERS), lambda: next(connections))
    assert found == (1 if after else 0)
    assert rows(world) == (60, 60)


def test_a_commit_that_ends_after_the_look_up_is_met_as_a_conflict(world: World) -> None:
    """The order is there, and the look-up did not see it: the primary key does."""
    with world.connected("orders") as db:
        world.shops["orders"].place(db, ORDERS[9].invoice, ORDERS[9].key, "", ORDERS[9].total)
    assert place_all(iter(ORDERS), lambda: world.connect("orders")) == 1
    assert rows(world) == (60, 59)


def test_a_database_that_stays_away_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError):
        place_all(iter(ORDERS), lambda: open_database(f"sqlite:///{tmp_path}/missing/x.db"), give_up_s=0)


def test_shares_are_whole_customers_in_order() -> None:
    source = Source([], 3, 500)
    shares = [list(Share(source, n, 3, "").orders()) for n in range(3)]
    assert all(shares)
    keys = [{order.key for order in share} for share in shares]
    assert len(keys[0] | keys[1] | keys[2]) == sum(map(len, keys))
    assert sorted((o for s in shares for o in s), key=lambda o: o.position) == make_orders(3, 500)
    assert all([o.position for o in s] == sorted(o.position for o in s) for s in shares)


def test_a_share_survives_its_command_line(tmp_path: Path) -> None:
    share = Share(Source([str(tmp_path / "a b.csv")], 3, 500), 1, 2, "sqlite:////tmp/x.db")
    assert Share.from_json(share.to_json()) == share


def test_two_processes_place_what_one_would(world: World) -> None:
    environ = world.environ({})
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "bothends.demo.producer",
             Share(Source([], 3, 60), n, 2, world.database_of("orders")).to_json()], env=environ,
        )
        for n in range(2)
    ]  # fmt: skip
    assert [process.wait(60) for process in processes] == [0, 0]
    assert rows(world) == (60, 60)


def test_events_say_what_the_order_says() -> None:
    def event_of(order: Order) -> OrderCreated | OrderCancelled:
        return order_event(order.invoice, order.key, order.country, [OrderLine(*line) for line in order.lines])

    for order in ORDERS:
        event = event_of(order)
        assert isinstance(event, OrderCancelled) is order.cancelled
        assert [tuple(vars(line).values()) for line in event.lines] == [tuple(line) for line in order.lines]
