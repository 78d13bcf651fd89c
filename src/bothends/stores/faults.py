"""Faults: what a driver's error means, read from its code (SQLSTATE, SQLite result code), never its text."""

from __future__ import annotations

import enum
import sqlite3

__all__ = ["Fault", "fault_of", "sqlstate_of"]


class Fault(enum.Enum):
    UNAVAILABLE = "unavailable"
    """The database cannot be reached or is going down: nobody's message is to blame."""
    CONTENTION = "contention"
    """Serialization failure, deadlock, lock not available, busy: run the transaction again, at no cost."""
    TIMED_OUT = "timed_out"
    """The server ended a transaction that was silent or ran too long."""
    OTHER = "other"
    """Anything else that the database says: the statement's author is to blame."""


_CONTENTION = frozenset({"40001", "40P01", "55P03"})
_TIMED_OUT = frozenset({"25P03", "25P04", "57014", "57P05"})
_UNAVAILABLE = frozenset({"57P01", "57P02", "57P03", "53100", "53300", "53400", "58000", "58030"})
_SQLITE_CONTENTION = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_SQLITE_UNAVAILABLE = frozenset({sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL})


def sqlstate_of(error: BaseException) -> str | None:
    """The SQLSTATE of a driver's error, also where SQLAlchemy has wrapped it."""
    inner = getattr(error, "orig", None)
    if isinstance(inner, BaseException):
        error = inner
    code = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return code if isinstance(code, str) else None


def fault_of(error: BaseException) -> Fault | None:
    """What ``error`` means, or None when it is no error of a database driver."""
    inner = getattr(error, "orig", None)
    if isinstance(inner, BaseException):
        error = inner
    if isinstance(error, sqlite3.Error):
        return _sqlite_fault(error)
    module = type(error).__module__.partition(".")[0]
    if module not in ("psycopg", "psycopg2", "asyncpg", "psycopg_pool"):
        return None
    code = sqlstate_of(error)
    if code is None:
        # No SQLSTATE: the server never answered (connection refused, reset, closed in between).
        names = {c.__name__ for c in type(error).__mro__}
        gone = names & {"OperationalError", "InterfaceError", "PoolTimeout", "ConnectionDoesNotExistError"}
        return Fault.UNAVAILABLE if gone else Fault.OTHER
    if code in _CONTENTION:
        return Fault.CONTENTION
    if code in _TIMED_OUT:
        return Fault.TIMED_OUT
    if code in _UNAVAILABLE or code.startswith("08"):
        return Fault.UNAVAILABLE
    return Fault.OTHER


def _sqlite_fault(error: sqlite3.Error) -> Fault:
    code = getattr(error, "sqlite_errorcode", None)
    primary = code & 0xFF if isinstance(code, int) else None  # the extended code keeps the primary one in its low byte
    if primary in _SQLITE_CONTENTION:
        return Fault.CONTENTION
    if primary in _SQLITE_UNAVAILABLE:
        return Fault.UNAVAILABLE
    return Fault.OTHER
