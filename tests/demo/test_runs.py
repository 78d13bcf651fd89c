"""Whole runs: real processes, real signals, on files and on servers. Each is audited, and audited again here."""

import csv
import json
import os
import subprocess
import sys
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from bothends.demo.audit import plain_sums
from bothends.demo.export import read_export
from bothends.demo.orders import COLUMNS, Order
from bothends.demo.producer import Source
from bothends.demo.report import Report
from bothends.demo.run import Options, _Run, run_demo
from bothends.demo.seeded import make_orders
from bothends.stores import open_store
from bothends.stores.postgresql.slots import SlotSteps
from bothends.stores.steps import run

pytestmark = pytest.mark.timeout(300)  # ten seconds on two free cores; a crowded machine takes its time

ZEROS = (
    "lost", "double_effects", "order_violations", "conflicts", "parked", "dead", "unexpected", "wrong_sums",
)  # fmt: skip


def demo(*arguments: str, folder: Path, status: int = 0) -> dict[str, Any]:
    """Runs the command; what its last line says."""
    environ = os.environ | {"TMPDIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "-m", "bothends", "demo", "--json", *arguments],
        capture_output=True, text=True, env=environ, cwd=folder, timeout=280,
    )  # fmt: skip
    assert done.returncode == status, done.stdout[-3000:] + done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def assert_good(result: dict[str, Any], events: int) -> None:
    assert {name: result[name] for name in ZEROS} == dict.fromkeys(ZEROS, 0), result["problems"]
    assert result["ok"] is True
    assert result["events"] == events
    charged = result["charges"]
    assert result["published"] >= events + charged


def written(path: Path, orders: list[Order]) -> Path:
    """The orders as a file, their lines taken in turns where neighbours allow it."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for order in orders:
            for line in order.lines:
                writer.writerow([
                    order.invoice, line.product, "a, \"b\"", line.quantity, order.at, line.price,
                    order.customer or "", order.country,
                ])  # fmt: skip
    return path


def test_kills_on_files(tmp_path: Path) -> None:
    export = tmp_path / "out" / "sums.csv"
    export.parent.mkdir()
    result = demo("--events", "150", "--seed", "11", "--export", str(export), folder=tmp_path)
    assert_good(result, 150)
    assert result["kills"] >= 5
    assert read_export(export) == plain_sums(make_orders(11, 150))
    assert list(tmp_path.iterdir()) == [export.parent]  # nothing else stays


def test_lost_acknowledgements_on_files_with_orders_from_a_file(tmp_path: Path) -> None:
    orders = make_orders(12, 150)
    file = written(tmp_path / "orders.csv", orders)
    result = demo("--orders", str(file), "--faults", "acks", folder=tmp_path)
    assert_good(result, 150)
    assert result["acks_lost"] >= 3
    assert result["duplicates"] >= 1
    assert result["kills"] == 0


@pytest.mark.slow
def test_outages_of_files(tmp_path: Path) -> None:
    result = demo("--events", "100", "--faults", "outage", folder=tmp_path)
    assert_good(result, 100)
    assert result["outages"] == 2


@pytest.mark.parametrize("source", ["wal", "message"])
def test_the_log_is_read_while_relays_are_killed(tmp_path: Path, pg_database: str, source: str) -> None:
    result = demo("--events", "100", "--seed", "14", "--source", source, "--database", pg_database, folder=tmp_path)
    assert_good(result, 100)
    assert result["kills"] >= 5
    assert result["sources"][source] >= 1
    with psycopg.connect(pg_database) as db:
        assert db.execute(
            "select slot_name from pg_replication_slots where database = current_database()").fetchall() == []
        assert db.execute("select pubname from pg_publication").fetchall() == []


@pytest.mark.slow
@pytest.mark.parametrize("source", ["poll", "wal", "message"])
def test_everything_on_servers(tmp_path: Path, pg_database: str, kafka_url: str, source: str) -> None:
    export = tmp_path / "sums.csv"
    result = demo(
        "--events", "150", "--seed", "13", "--faults", "all", "--database", pg_database, "--broker", kafka_url,
        "--source", source, "--export", str(export), folder=tmp_path,
    )  # fmt: skip
    assert_good(result, 150)
    assert result["kills"] >= 5
    assert result["acks_lost"] >= 3
    assert result["outages"] == 2
    assert read_export(export) == plain_sums(make_orders(13, 150))
    with psycopg.connect(pg_database) as db:
        assert db.execute("select nspname from pg_namespace where nspname like 'demo%'").fetchall() == []


def test_what_is_kept_is_named_and_there(tmp_path: Path) -> None:
    environ = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "bothends", "demo", "--events", "20", "--faults", "none", "--keep"],
        capture_output=True, text=True, env=environ, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = tmp_path.iterdir()
    assert str(folder) in done.stdout.replace("\n", "").replace("  ", "")
    assert {"orders.db", "inventory.db", "payments.db", "analytics.db", "log.db", "charges.jsonl"} <= {
        path.name for path in folder.iterdir()
    }


def test_what_is_kept_on_a_server_keeps_no_slot_and_what_killed_runs_left_goes(
    tmp_path: Path, pg_database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with psycopg.connect(pg_database, autocommit=True) as db:
        db.execute("create schema demo_0123abcd_orders")
        connection = open_store(pg_database).connect()
        slot = run(SlotSteps("demo_0123abcd_orders").name(), connection)
        connection.close()
        db.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
        with Report(as_json=True) as report:
            result = run_demo(Options(Source([], 1, 20), "none", pg_database, keep=True, relay_source="wal"), report)
        assert result.ok
        assert f"dropped {slot}" in capsys.readouterr().err.replace("\n", "")
        assert db.execute("select nspname from pg_namespace where nspname like %s", [f"%{result.run[5:]}%"]).fetchall()
        assert db.execute(
            "select slot_name from pg_replication_slots where database = current_database()").fetchall() == []


class Crippled(_Run):
    """Without the workers of payments: nothing is ever charged."""

    def _begin(self) -> None:
        super()._begin()
        del self._fleet.processes["work-payments"]

    def _counts(self) -> tuple[int, int]:
        placed, effects = super()._counts()
        if effects == 2 * len(self._orders):  # all that can happen has happened: no need to wait for two minutes
            self._stuck_s = 0.5
        return placed, effects


def test_what_never_settles_is_not_ok_and_says_what_waits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bothends.demo.run._Run", Crippled)
    with Report(as_json=True) as report:
        result = run_demo(Options(Source([], 1, 30), "none"), report)
        report.show(result)
    charged = sum(order.charge is not None for order in make_orders(1, 30))
    assert not result.ok
    assert result.lost == 30 + 2 * charged  # payments' effects, the charges, the confirmations
    assert result.wrong_sums == 0
    assert any("nothing has moved" in problem and "lag=" in problem for problem in result.problems)


def test_a_worker_that_adds_twice_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The audit looks at what the databases hold: here they are falsified before it does."""

    class Falsified(_Run):
        def _audit(self, settled: bool) -> None:
            with self._world.connected("inventory") as db:
                db.execute("update stock set units = units + 1 where product = (select min(product) from stock)")
                db.execute("insert into effects_log (consumer, event_id, invoice, key)"
                           " select consumer, event_id, invoice, key from effects_log where seq = 1")  # fmt: skip
            super()._audit(settled)

    monkeypatch.setattr("bothends.demo.run._Run", Falsified)
    with Report(as_json=True) as report:
        result = run_demo(Options(Source([], 1, 30), "none"), report)
    assert (result.ok, result.double_effects, result.wrong_sums, result.lost) == (False, 1, 1, 0)


def test_prices_of_three_decimals_are_in_the_made_orders() -> None:
    assert any((line.price * 100) % 1 for order in make_orders(11, 150) for line in order.lines if line.price > Decimal(0))
