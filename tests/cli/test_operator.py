"""An operator's week, as written in tests/programs/operator.sh, against real processes on PostgreSQL and Kafka."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

SCRIPT = Path(__file__).parents[1] / "programs" / "operator.sh"
BIN = Path(sys.executable).parent
APP = '''
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
import psycopg
from bothends import Context, Retry, Service, event

TOPIC = os.environ["SHOP_TOPIC"]

@event("order.created", key="order_id", topic=TOPIC)
@dataclass(frozen=True)
class OrderCreated:
    order_id: str
    sku: str

inventory = Service("inventory")
stock = inventory.consumer("stock", owner="team-stock", retry=Retry(attempts=1, then="hold"))

@stock.handle(OrderCreated)
def deduct(order: OrderCreated, ctx: Context[psycopg.Connection[Any]]) -> None:
    if order.sku == "bad" and Path("broken").exists():
        raise ValueError("no such product")
    ctx.connection.execute("insert into handled (key, sku) values (%s, %s)", (order.order_id, order.sku))

if __name__ == "__main__":
    with psycopg.connect(os.environ["BOTHENDS_DATABASE_URL"]) as connection:
        connection.execute("create table handled (n bigserial, key text, sku text)")
        for key in ("k0", "k1", "k2", "7f3c-order"):
            inventory.outbox.add(connection, OrderCreated(key, "bad"))
        inventory.outbox.add(connection, OrderCreated("7f3c-order", "good"))
'''


class Shop:
    """The application's folder; commands run in it."""

    def __init__(self, folder: Path, database: str, broker: str, prefix: str) -> None:
        (folder / "shop").mkdir()
        (folder / "shop" / "__init__.py").touch()
        (folder / "shop" / "app.py").write_text(APP)
        (folder / "broken").touch()
        self.folder, self.database = folder, database
        keep = {name: value for name, value in os.environ.items() if not name.startswith("BOTHENDS_")}
        self.environ = {
            **keep, "PATH": f"{BIN}:{os.environ['PATH']}", "BOTHENDS_DATABASE_URL": database, "BOTHENDS_BROKER_URL": broker,
            "BOTHENDS_GROUP_PREFIX": prefix[:20], "SHOP_TOPIC": f"{prefix}orders", "BOTHENDS_APP": "shop.app",
            "PYTHONPATH": str(folder), "BOTHENDS_RUNTIME_DIR": str(folder / "run")}

    def run(self, *command: str, status: int = 0) -> str:
        done = subprocess.run(
            command, cwd=self.folder, env=self.environ, capture_output=True, text=True, timeout=250, check=False)
        assert done.returncode == status, (command, done.stdout[-4000:], done.stderr[-4000:])
        return done.stdout

    def rows(self, query: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.database) as connection:
            return connection.execute(query.encode()).fetchall()


@pytest.fixture
def shop(tmp_path: Path, pg_database: str, kafka_url: str, topic_prefix: str) -> Shop:
    return Shop(tmp_path, pg_database, kafka_url, topic_prefix)


def script(fingerprint: str) -> str:
    """The file without what is not there yet; the two processes in the background are stopped at the end."""
    lines = [
        line for line in SCRIPT.read_text("utf-8").splitlines() if not re.match(r"bothends (replay|consumers) ", line)]
    text = "\n".join(lines).replace("&& bothends doctor", "").replace("8f31", fingerprint)
    return f"set -euo pipefail\n{text}\npids=$(jobs -p)\nkill -TERM $pids\nfor pid in $pids; do wait $pid; done\n"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_script_runs_line_by_line(shop: Shop) -> None:
    shop.run("bothends", "schema", "apply")
    shop.run("bothends", "topics", "create")
    shop.run(sys.executable, "-m", "shop.app")
    command = [str(BIN / "bothends"), "run", "--stop-timeout", "5"]
    with subprocess.Popen(command, cwd=shop.folder, env=shop.environ, stderr=subprocess.DEVNULL) as week_before:
        try:
            deadline = time.monotonic() + 60
            dead = "select count(*) from bothends.dead_letters where state = 'open'"
            while shop.rows(dead) != [(4,)] or shop.rows("select count(*) from bothends.parked") != [(1,)]:
                assert time.monotonic() < deadline, json.loads(shop.run("bothends", "status", "--json"))
                time.sleep(0.2)
        finally:
            week_before.terminate()
            week_before.wait(30)
    [group] = json.loads(shop.run("bothends", "dead", "list", "--group", "fingerprint", "--json"))
    assert (group["count"], group["owner"]) == (4, "team-stock")
    (shop.folder / "broken").unlink()  # fixed in 4.2

    said = shop.run("bash", "-c", script(group["fingerprint"][:6]))

    assert '"waiting": 0' in said
    assert re.search(r"^7f3c-order\t", said, re.MULTILINE)  # keys list, before it was skipped
    assert "7f3c-order: the key goes on" in said
    assert re.search(r"^4: [34] ready, [01] overtaken$", said, re.MULTILINE)
    assert "grant" in (shop.folder / "0004.sql").read_text()
    handled = shop.rows("select key, sku, count(*) from handled group by 1, 2 order by 1, 2")
    assert [row for row in handled if row[:2] != ("7f3c-order", "bad")] == [
        ("7f3c-order", "good", 1), ("k0", "bad", 1), ("k1", "bad", 1), ("k2", "bad", 1)]
    acts = shop.rows("select verb, by, reason from bothends.audit order by id")
    assert acts[0] == ("keys skip", "anna", "test order")
    assert {verb for verb, _, _ in acts[1:]} == {"dead redrive"}
    assert {reason for _, _, reason in acts[1:]} == {"fixed in 4.2"}
    assert shop.rows("select count(*) from bothends.blocked_keys") == [(0,)]
