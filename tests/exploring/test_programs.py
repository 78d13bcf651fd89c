"""The programs that users write in their first week, explored: sync and async sessions, an outside gateway over httpx."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parents[1] / "programs"
CASES = '''
import json
from decimal import Decimal
from uuid import UUID

from bothends.testing import answering, case
from events import OrderCancelled, OrderCreated
from inventory import inventory
from models import Base, Card, Stock
from payments import payments


class Pay:
    def __init__(self):
        self.charges = {}

    def __call__(self, verb, path, headers, body):
        key = path.rpartition("/")[2] if verb == "GET" else headers["idempotency-key"]
        if verb == "GET" and key not in self.charges:
            return 404, b"{}"
        return 200, json.dumps({"id": self.charges.setdefault(key, f"receipt for {key}")}).encode()


pay = answering("https://pay.example", Pay())
ONE = UUID(int=1)


def shop(session, left):
    Base.metadata.create_all(session.connection())
    session.add_all([Stock(sku="brie", left=left), Card(customer="anna", token="t")])


@case
def an_order_and_its_cancellation(session):
    shop(session, 5)
    return [OrderCreated(ONE, "anna", "brie", 2, Decimal("29.00")), OrderCancelled(ONE, "brie", 2)]


@case
def too_little(session):
    shop(session, 1)
    return [OrderCreated(ONE, "anna", "brie", 2, Decimal("29.00"))]
'''


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("events.py", "models.py", "inventory.py", "payments.py"):
        shutil.copy(PROGRAMS / name, tmp_path)
    (tmp_path / "cases.py").write_text(CASES)
    return tmp_path


def check(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bothends", "check", "cases", *arguments], cwd=project, capture_output=True, text=True,
        timeout=110, check=False,
    )


def test_they_have_no_finding(project: Path) -> None:
    done = check(project, "--budget", "90", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert [len(case["findings"]) for case in told["cases"]] == [0, 0]
    assert told["cases"][1]["notes"] == [
        "undisturbed, 'order.created' ends as a dead letter of 'inventory.stock': 'out_of_stock'"]


def test_the_gateway_called_without_once_is_found(project: Path) -> None:
    program = project / "payments.py"
    text = program.read_text()
    once = text[text.index("    receipt = await ctx.once"):text.index("    db = await ctx.begin()")]
    program.write_text(text.replace(once, '    from uuid import uuid4\n    receipt = await call(str(uuid4()))\n'))
    done = check(project, "--case", "an_order_and_its_cancellation", "--budget", "40")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "payments.charge: an outside call gets another idempotency key on each run" in done.stdout
    assert "at payments.py:" in done.stdout
