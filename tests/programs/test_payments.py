"""payments.py against a gateway in a process of its own: charged once, whatever happens between the call and the commit."""

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from bothends.brokers import open_broker
from bothends.stores import open_store
from bothends.stores.schema import apply
from tests.programs.processes import eventually, running

HERE = Path(__file__).parent

FLOW = """
import asyncio, json, os, sys
from decimal import Decimal
from uuid import UUID
from sqlalchemy import select
from bothends import Service
from bothends.testing import Harness
from events import OrderCreated, PaymentConfirmed
from models import Base, Card, Payment
from payments import payments

orders = Service("orders")
token = sys.argv[1]
order = OrderCreated(UUID(int=7), "anna", "brie", 2, Decimal("29.00"))

async def main():
    async with Harness(orders, payments, database=os.environ["DATABASE_URL"], deliver_twice=True) as h:
        session = h.session()
        Base.metadata.create_all(session.connection())
        session.add(Card(customer="anna", token=token))
        orders.outbox.add(session, order)
        session.commit()
        await h.settle_async()
        print(json.dumps({
            "confirmed": [[str(c.order_id), c.receipt] for c in h.published(PaymentConfirmed)],
            "booked": [[str(p.order_id), p.receipt] for p in session.scalars(select(Payment))],
            "dead": [[d.consumer, d.reason] for d in h.dead],
        }))

asyncio.run(main())
"""
ORDER_ID = "00000000-0000-0000-0000-000000000007"


@pytest.fixture
def gateway() -> Iterator[str]:
    """The URL of a running gateway."""
    process = subprocess.Popen([sys.executable, HERE / "gateway.py"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait(10)
        process.stdout.close()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.needs("postgresql"))])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/payments.db"
    url: str = request.getfixturevalue("pg_database")
    return url


def calls_of(gateway: str) -> list[str]:
    with urllib.request.urlopen(f"{gateway}/calls", timeout=10) as answer:
        found: list[str] = json.load(answer)
    return found


def prepare(folder: Path, gateway: str) -> None:
    """The user's files, with the gateway's URL."""
    for name in ("events.py", "models.py"):
        shutil.copy(HERE / name, folder / name)
    program = (HERE / "payments.py").read_text().replace("https://pay.example", gateway)
    (folder / "payments.py").write_text(program)


def flow(folder: Path, gateway: str, database: str, token: str) -> dict[str, Any]:
    prepare(folder, gateway)
    done = subprocess.run(
        [sys.executable, "-c", FLOW, token], cwd=folder, capture_output=True, text=True, timeout=100, check=False,
        env=os.environ | {"DATABASE_URL": database},
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


def test_an_order_is_charged_and_booked_once(tmp_path: Path, gateway: str, database: str) -> None:
    assert flow(tmp_path, gateway, database, "visa") == {
        "confirmed": [[ORDER_ID, "r-1"]], "booked": [[ORDER_ID, "r-1"]], "dead": [],
    }
    assert calls_of(gateway) == [f"charge-{ORDER_ID}"]


def test_a_declined_card_is_a_dead_letter(tmp_path: Path, gateway: str, database: str) -> None:
    assert flow(tmp_path, gateway, database, "declined") == {
        "confirmed": [], "booked": [], "dead": [["payments.charge", "card_declined"]],
    }
    assert calls_of(gateway) == [f"charge-{ORDER_ID}"]


def test_a_lost_answer_is_found_out_and_not_charged_again(tmp_path: Path, gateway: str, database: str) -> None:
    assert flow(tmp_path, gateway, database, "lost") == {
        "confirmed": [[ORDER_ID, "r-1"]], "booked": [[ORDER_ID, "r-1"]], "dead": [],
    }
    assert calls_of(gateway) == [f"charge-{ORDER_ID}"], "the second run asked, it did not call"


APP = """
from bothends import Service
from payments import payments

orders = Service("orders")
"""
PLACE = """
import os, sys
from decimal import Decimal
from uuid import UUID
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from app import orders
from events import OrderCreated
from models import Base, Card

with Session(create_engine(os.environ["DATABASE_URL"])) as session:
    Base.metadata.create_all(session.connection())
    session.add(Card(customer="anna", token=sys.argv[1]))
    orders.outbox.add(session, OrderCreated(UUID(sys.argv[2]), "anna", "brie", 2, Decimal("29.00")))
    session.commit()
"""


def test_a_death_between_the_gateway_and_the_commit_charges_once(
    tmp_path: Path, gateway: str, pg_database: str, kafka_url: str, topic_prefix: str,
) -> None:
    """Real processes on PostgreSQL and Kafka: killed while the gateway has charged and not answered, and started again."""
    prepare(tmp_path, gateway)
    (tmp_path / "app.py").write_text(APP)
    apply(open_store(pg_database))
    broker = open_broker(kafka_url)
    for topic in ("orders.events", "payments.events"):
        broker.create_topic(topic, 8)
    broker.close()
    order = str(uuid4())
    url = pg_database.replace("postgresql://", "postgresql+psycopg://")
    subprocess.run(
        [sys.executable, "-c", PLACE, "stuck", order], cwd=tmp_path, check=True, timeout=60,
        env=os.environ | {"DATABASE_URL": url},
    )
    settings = {
        "BOTHENDS_DATABASE_URL": pg_database, "BOTHENDS_BROKER_URL": kafka_url, "BOTHENDS_GROUP_PREFIX": topic_prefix[-20:],
    }
    key = f"charge-{order}"
    with running(tmp_path, "-m", "bothends", "run", "app", **settings) as first:
        first.wait_for("ready")
        eventually(lambda: key in calls_of(gateway), 60.0)
        first.process.send_signal(signal.SIGKILL)

    def booked() -> list[tuple[str]]:
        with psycopg.connect(pg_database) as connection:
            return connection.execute("select receipt from payments where order_id = %s", [order]).fetchall()

    assert booked() == []
    with running(tmp_path, "-m", "bothends", "run", "app", **settings) as second:
        (row,) = eventually(booked, 60.0)
        assert second.stop() == 0
    assert row[0].startswith("r-")
    assert calls_of(gateway).count(key) == 1
