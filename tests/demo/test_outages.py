"""Outages of SQLite files: the writers wait, the readers do not."""

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bothends.demo.outages import LockOutage


def until(condition: Callable[[], object], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.005)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    files = [tmp_path / "a.db", tmp_path / "b.db"]
    for file in files:
        db = sqlite3.connect(file, isolation_level=None)
        db.execute("pragma journal_mode = wal")
        db.execute("create table t (x)")
        db.close()
    return files


def can_write(file: Path) -> bool:
    db = sqlite3.connect(file, isolation_level=None, timeout=0)
    try:
        db.execute("begin immediate")
        db.execute("rollback")
        return True
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
            raise
        return False
    finally:
        db.close()


def test_one_file_after_another_is_away(files: list[Path]) -> None:
    outage = LockOutage(files, seconds=0.3)
    for file in files:
        until(lambda file=file: not can_write(file))  # type: ignore[misc]
        db = sqlite3.connect(file)
        assert db.execute("select count(*) from t").fetchone() == (0,)
        db.close()
    until(outage.ended)
    assert outage.happened
    assert all(map(can_write, files))


def test_it_can_be_ended_early_and_then_did_not_happen(files: list[Path]) -> None:
    outage = LockOutage(files, seconds=60)
    until(lambda: not can_write(files[0]))
    assert not outage.ended()
    outage.end()
    assert outage.ended()
    assert not outage.happened
    assert can_write(files[0])


def test_a_lock_that_cannot_be_had_did_not_happen(tmp_path: Path) -> None:
    outage = LockOutage([tmp_path / "missing" / "a.db"], seconds=0.01)
    until(outage.ended)
    assert not outage.happened
