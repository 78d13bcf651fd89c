"""payments.py against a gateway in a process of its own: charged once, whatever happens between the call and the commit."""

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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


def flow(folder: Path, gateway: str, database: str, token: str) -> dict[str, Any]:
    for name in ("events.py", "models.py"):
        shutil.copy(HERE / name, folder / name)
    program = (HERE / "payments.py").read_text().replace("https://pay.example", gateway)
    (folder / "payments.py").write_text(program)
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
