"""``init``: a project to begin with: settings, one event with a handler, and a test."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from bothends.cli.output import as_json, say

__all__ = ["register"]

_TABLE = """\
[tool.bothends]
app = "shop"
database_url = "sqlite:///shop.db"
broker_url = "embedded:///events.db"
create_topics = true
"""

_PROJECT = """\
[project]
name = "shop"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["bothends"]

"""

_SHOP = '''\
"""A service that takes orders, and a consumer that reserves stock for them."""

import sqlite3
from dataclasses import dataclass

from bothends import Context, Service, event

TABLES = """
create table if not exists orders (id text primary key, sku text not null, quantity integer not null);
create table if not exists reserved (sku text primary key, quantity integer not null);
"""


@event("order.placed", key="order_id", topic="shop.events")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str
    sku: str
    quantity: int


shop = Service("shop")
stock = shop.consumer("stock", owner="you")


def place(connection: sqlite3.Connection, order: OrderPlaced) -> None:
    """State and event commit together, or not at all."""
    with connection:
        connection.execute("insert into orders values (?, ?, ?)", (order.order_id, order.sku, order.quantity))
        shop.outbox.add(connection, order)


@stock.handle(OrderPlaced)
def reserve(order: OrderPlaced, ctx: Context[sqlite3.Connection]) -> None:
    """Runs once per order, however often it is delivered."""
    ctx.connection.execute(
        "insert into reserved values (?, ?) on conflict (sku) do update set quantity = quantity + excluded.quantity",
        (order.sku, order.quantity),
    )


if __name__ == "__main__":  # python shop.py: tables, and one order; then `bothends run` publishes and handles it
    import uuid

    connection = sqlite3.connect("shop.db")
    connection.executescript(TABLES)
    place(connection, OrderPlaced(str(uuid.uuid4()), "brie", 2))
'''

_TEST = '''\
"""What the handler does, without a broker and without a worker."""

import sqlite3

from bothends.testing import context

from shop import TABLES, OrderPlaced, reserve


def test_orders_of_one_product_add_up() -> None:
    connection = sqlite3.connect(":memory:")
    connection.executescript(TABLES)
    for n in range(2):
        reserve(OrderPlaced(f"o{n}", "brie", 2), context(connection))
    assert connection.execute("select * from reserved").fetchall() == [("brie", 4)]
'''


def register(app: typer.Typer) -> None:
    app.command()(init)


def init(
    directory: Annotated[Path, typer.Argument(metavar="[DIR]", help="Made where it is missing.")] = Path("."),
    json: Annotated[bool, typer.Option("--json", help="One JSON document instead of text.")] = False,
) -> None:
    """Write a project table, one event with its handler, and a test. Nothing that exists is changed, but
    pyproject.toml gets its table."""
    directory.mkdir(parents=True, exist_ok=True)
    written: list[str] = []
    kept: list[str] = []
    for name, text in (("shop.py", _SHOP), ("test_shop.py", _TEST)):
        (kept if not _write(directory / name, text) else written).append(name)
    project = directory / "pyproject.toml"
    if not project.exists():
        _write(project, _PROJECT + _TABLE)
        written.append(project.name)
    elif "[tool.bothends" not in project.read_text("utf-8"):
        with project.open("a", encoding="utf-8") as file:
            file.write("\n" + _TABLE)
        written.append(project.name)
    else:
        kept.append(project.name)
    if json:
        as_json({"directory": str(directory), "written": written, "kept": kept})
        return
    for name in written:
        say(f"wrote {directory / name}")
    for name in kept:
        say(f"kept {directory / name}: it was there")
    there = "" if directory.resolve() == Path.cwd() else f"cd {shlex.quote(str(directory))} && "
    say(f"next: {there}bothends schema apply && python shop.py && bothends run")


def _write(path: Path, text: str) -> bool:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return False
    return True
