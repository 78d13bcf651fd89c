"""Programs of a user's first week, each run in a process and a folder of its own, unchanged but for its URLs."""

import csv
import io
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from bothends.stores import open_store
from bothends.stores.schema import apply

HERE = Path(__file__).parent
PROGRAMS = (
    "drivers.py", "events.py", "fastapi_orders.py", "import_with_savepoints.py", "inventory.py", "models.py", "payments.py",
    "test_inventory.py", "two_consumers.py",
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the user's files."""
    for name in PROGRAMS:
        shutil.copy(HERE / name, tmp_path / name)
    shutil.copy(HERE / "project_conftest.py", tmp_path / "conftest.py")
    return tmp_path


def run(project: Path, *arguments: str, stdin: str = "", **variables: str) -> str:
    """Runs Python in the project; its output. The test fails with what it said."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("BOTHENDS_", "PYTEST_"))}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=project, input=stdin, env=environment | variables, text=True,
        capture_output=True, timeout=100, check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_tests_of_the_inventory(project: Path) -> None:
    said = run(
        project, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(project), "-p", "no:cacheprovider",
        "test_inventory.py", DATABASE_URL=f"sqlite+aiosqlite:///{project}/app.db",
    )
    assert "4 passed" in said


HOW_TO = HERE.parents[1] / "docs" / "how-to" / "test-your-handlers.md"
PRELUDE = """
from decimal import Decimal
from uuid import UUID
import pytest
from bothends import Permanent
from events import OrderCreated, PaymentConfirmed, Receipt, StockUpdated
from fastapi_orders import orders
from inventory import deduct, inventory
from models import Base, Card, Stock
from payments import charge

ORDER = OrderCreated(UUID(int=1), "anna", "brie", 2, Decimal("29.00"))
"""


def test_the_how_to_on_testing(project: Path) -> None:
    """Every block of the page, in one test module of the user's project."""
    blocks = re.findall(r"```python\n(.*?)```", HOW_TO.read_text(), re.DOTALL)
    (project / "test_how_to.py").write_text(PRELUDE + "\n\n".join(blocks))
    said = run(
        project, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(project), "-p", "no:cacheprovider",
        "-o", "asyncio_mode=auto", "test_how_to.py", DATABASE_URL=f"sqlite+aiosqlite:///{project}/app.db",
    )
    assert "5 passed" in said


ORDERS_TABLE = (
    "create table orders (id {id} primary key, customer varchar not null, sku varchar not null, quantity integer not null,"
    " amount numeric not null, check (quantity > 0))"
)
ROWS = [
    {"customer": "anna", "sku": "brie", "n": "2", "eur": "29.00"},
    {"customer": "berta", "sku": "feta", "n": "0", "eur": "1.00"},  # refused by the table: skipped with its event
    {"customer": "carla", "sku": "brie", "n": "1", "eur": "14.50"},
]


def as_csv(rows: list[dict[str, str]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def test_an_import_with_savepoints_on_sqlite(project: Path) -> None:
    file = project / "import.db"
    apply(open_store(f"sqlite:///{file}"))
    with sqlite3.connect(file) as connection:
        connection.execute(ORDERS_TABLE.format(id="char(32)"))
    run(project, "import_with_savepoints.py", stdin=as_csv(ROWS), DATABASE_URL=f"sqlite:///{file}")
    with sqlite3.connect(file) as connection:
        assert connection.execute("select customer from orders order by 1").fetchall() == [("anna",), ("carla",)]
        added = connection.execute("select type, topic, body from bothends_outbox order by seq").fetchall()
    assert [(type, topic) for type, topic, _ in added] == [("order.created", "orders.events")] * 2
    assert [b'"anna"' in body for _, _, body in added] == [True, False]


def test_an_import_with_savepoints_on_postgresql(project: Path, pg_database: str) -> None:
    apply(open_store(pg_database))
    with psycopg.connect(pg_database) as connection:
        connection.execute(ORDERS_TABLE.format(id="uuid"))
    url = pg_database.replace("postgresql://", "postgresql+psycopg://")
    run(project, "import_with_savepoints.py", stdin=as_csv(ROWS), DATABASE_URL=url)
    with psycopg.connect(pg_database) as connection:
        assert connection.execute("select customer from orders order by 1").fetchall() == [("anna",), ("carla",)]
        added = connection.execute("select type, key, body from bothends.outbox order by seq").fetchall()
        ids = {str(id).encode() for (id,) in connection.execute("select id from orders")}
    assert [type for type, _, _ in added] == ["order.created"] * 2
    assert {bytes(key) for _, key, _ in added} == ids


DRIVERS = """
import asyncio, os, asyncpg, psycopg
from decimal import Decimal
from uuid import UUID
from bothends import NoTransaction
from drivers import legacy, orders, place, place_async
from events import OrderCreated

url = os.environ["DATABASE_URL"]
def order(n):
    return OrderCreated(UUID(int=n), "anna", "brie", 2, Decimal("29.00"))

async def main():
    async with asyncpg.create_pool(url, min_size=1, max_size=2) as pool:
        print(await place_async(pool, order(2)))
        async with pool.acquire() as conn:
            try:
                await orders.outbox.add_async(conn, order(4))
            except NoTransaction as error:
                print("refused:", "transaction" in str(error))

print(place(url, order(1)))
asyncio.run(main())
with psycopg.connect(url) as conn:
    print(legacy(conn, b"<order/>"))
"""


def test_every_driver_adds_in_its_own_transaction(project: Path, pg_database: str) -> None:
    apply(open_store(pg_database))
    with psycopg.connect(pg_database) as connection:
        connection.execute("create table orders (id uuid primary key, amount numeric not null)")
    said = run(project, "-c", DRIVERS, DATABASE_URL=pg_database).split("\n")
    first, second, refused, third = said[:4]
    assert refused == "refused: True"
    with psycopg.connect(pg_database) as connection:
        rows = connection.execute("select id, type, body, content_type, key from bothends.outbox order by seq").fetchall()
        assert connection.execute("select count(*), sum(amount) from orders").fetchone() == (2, 58)
    assert [row[0] for row in rows] == [first, second, third]
    assert rows[2][1:] == ("order.imported", b"<order/>", "application/xml", b"17")
