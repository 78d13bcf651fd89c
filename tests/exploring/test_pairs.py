"""Depth 2: what one fault does not bring to light."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

import pytest

from bothends import Context, Service
from bothends.testing import explore
from bothends.testing.exploring.boundaries import Boundary, Fault, Kind
from bothends.testing.exploring.searching import Candidate, pairs, singles
from tests.exploring.planted.events import ONE, STOCK, Paid


def gives_up(wrong: bool) -> Service:
    """Counts its tries on a connection of its own, and takes the third for one too many."""
    service = Service("gives-up")

    @service.consumer("stock").handle(Paid, effects=True)
    def take(paid: Paid, ctx: Context[sqlite3.Connection]) -> None:
        with contextlib.closing(sqlite3.connect(os.environ["PLANTED_DATABASE"])) as other, other:
            other.execute("insert into tries values (?, 1) on conflict (no) do update set n = n + 1", [paid.order])
            (tries,) = other.execute("select n from tries where no = ?", [paid.order]).fetchone()
        db = ctx.begin()
        db.execute("delete from tries where no = ?", [paid.order])
        if not wrong or tries < 3:
            db.execute("update stock set units = units - ?", [paid.units])

    return service


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PLANTED_DATABASE", str(tmp_path / "tries.db"))
    return f"sqlite:///{tmp_path / 'tries.db'}"


def start(db: sqlite3.Connection) -> None:
    db.executescript(STOCK + "create table tries (no text primary key, n integer);")


def test_two_deaths_are_needed(database: str) -> None:
    assert explore(gives_up(True), [ONE], start=start, database=database).ok
    report = explore(gives_up(True), [ONE], start=start, database=database, depth=2, budget=400)
    assert report.findings, str(report)
    finding = report.findings[0]
    assert len(finding.faults) == 2
    assert any(fault.is_crash for fault, _ in finding.faults)
    assert "stock: units is 10 instead of 8" in finding.ending
    assert [line.kind for line in finding.story].count("fault") == 2


def test_its_twin_survives_pairs_within_the_budget(database: str) -> None:
    report = explore(gives_up(False), [ONE], start=start, database=database, depth=2, budget=250)
    assert report.ok, str(report)
    assert report.runs <= 250
    assert not report.complete


# The order of the search


def boundary(number: int, kind: Kind, process: str = "worker", *, durable: bool = False, users: bool = False,
             consumer: str = "shop.stock") -> Boundary:
    return Boundary(number, kind, process, kind.value, consumer, "paid #1", users, durable)


TRACE = [
    boundary(0, Kind.PUBLISH, "relay", durable=True, consumer=""),
    boundary(1, Kind.DELIVER),
    boundary(2, Kind.BEGIN),
    boundary(3, Kind.SQL, users=True),
    boundary(4, Kind.SQL),
    boundary(5, Kind.COMMIT, durable=True),
    boundary(6, Kind.ACK, durable=True),
]


def test_the_telling_ones_come_first() -> None:
    found = singles(TRACE, set())
    assert found[:3] == [Candidate(5, Fault.CRASH_AFTER), Candidate(5, Fault.HAPPENED), Candidate(5, Fault.FAILS)]
    kinds = [TRACE[c.number].kind for c in found]
    assert kinds.index(Kind.ACK) < kinds.index(Kind.PUBLISH) < kinds.index(Kind.SQL) < kinds.index(Kind.BEGIN)


def test_each_crash_point_is_tried_and_none_twice() -> None:
    """Before the next boundary of a process is after this one: one crash for each gap, and one at each end."""
    points = set()
    for candidate in singles(TRACE, set()):
        if candidate.fault.is_crash:
            before = candidate.number - (candidate.fault is Fault.CRASH_BEFORE)
            assert before not in points
            points.add(before)
    assert points == {-1, 0, 2, 3, 4, 5, 6}  # 1, a delivery, changes nothing: it is 0 for the worker


def test_only_statements_of_the_users_fail() -> None:
    failing = {c.number for c in singles(TRACE, set()) if c.fault is Fault.FAILS}
    assert failing == {0, 3, 5}


def test_a_lossy_consumer_is_left_alone() -> None:
    assert {c.number for c in singles(TRACE, {"shop.stock"})} == {0}


def test_a_second_fault_comes_after_the_first_and_idle_crashes_are_one() -> None:
    found = pairs(Candidate(2, Fault.CRASH_AFTER), TRACE, set())
    assert all(c.number > 2 for c in found)
    idle = [c for c in found if c.fault.is_crash and not TRACE[c.number].durable]
    assert len(idle) <= 1
