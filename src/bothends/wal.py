"""WAL: how a file of SQLite enters it while others open it too. The change answers BUSY at once, whatever the timeout."""

from __future__ import annotations

import sqlite3
import time

__all__ = ["PAUSE_S", "enter", "is_busy"]

PAUSE_S = 0.005


def is_busy(error: sqlite3.OperationalError) -> bool:
    return error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY


def enter(connection: sqlite3.Connection, timeout_s: float) -> None:
    """Changes the file to WAL; waits for others that do the same, at most ``timeout_s`` seconds. Raises what sqlite3
    raises."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            connection.execute("pragma journal_mode = wal")
            return
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() >= deadline:
                raise
        time.sleep(PAUSE_S)
