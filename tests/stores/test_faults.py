"""What drivers' errors mean: real error classes with real codes."""

from __future__ import annotations

import sqlite3

import psycopg
import pytest

from bothends.stores.faults import Fault, fault_of


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("40001", Fault.CONTENTION), ("40P01", Fault.CONTENTION), ("55P03", Fault.CONTENTION),
        ("25P03", Fault.TIMED_OUT), ("57014", Fault.TIMED_OUT),
        ("08006", Fault.UNAVAILABLE), ("57P01", Fault.UNAVAILABLE), ("57P03", Fault.UNAVAILABLE),
        ("53100", Fault.UNAVAILABLE),  # the disk is full: no message is to blame, and there will be room again
        ("53300", Fault.UNAVAILABLE), ("58030", Fault.UNAVAILABLE),
        ("23505", Fault.OTHER), ("42P01", Fault.OTHER), ("22012", Fault.OTHER),
    ],
)
def test_codes_of_postgresql(code: str, fault: Fault) -> None:
    assert fault_of(psycopg.errors.lookup(code)("it says so")) is fault


def test_a_server_that_never_answered_has_no_code() -> None:
    assert fault_of(psycopg.OperationalError("connection refused")) is Fault.UNAVAILABLE
    assert fault_of(ValueError("of the handler")) is None


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (sqlite3.SQLITE_BUSY, Fault.CONTENTION), (sqlite3.SQLITE_BUSY_SNAPSHOT, Fault.CONTENTION),
        (sqlite3.SQLITE_FULL, Fault.UNAVAILABLE), (sqlite3.SQLITE_IOERR_WRITE, Fault.UNAVAILABLE),
        (sqlite3.SQLITE_CANTOPEN, Fault.UNAVAILABLE), (sqlite3.SQLITE_CONSTRAINT_UNIQUE, Fault.OTHER),
    ],
)
def test_codes_of_sqlite(code: int, fault: Fault) -> None:
    error = sqlite3.OperationalError("it says so")
    error.sqlite_errorcode = code
    assert fault_of(error) is fault
