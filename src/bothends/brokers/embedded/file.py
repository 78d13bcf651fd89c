"""LogFile: one connection to the SQLite file of a log, its schema, and what its errors mean.

A commit has reached the disk (WAL, synchronous=FULL). While somebody else holds the write lock, or the disk is full, the
log is out of reach: an outage of the broker, of which no record is guilty.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from bothends import wal
from bothends.errors import Blame, ConfigError, PublishError

__all__ = ["LogFile", "boot_clock", "boot_id"]

_FORMAT = 1
_APPLICATION_ID = 0x626F7468
_OPEN_TIMEOUT_S = 2.0
_SCHEMA = """
create table meta (name text primary key, value text not null) without rowid;
create table topics (id integer primary key autoincrement, name text not null unique, partitions integer not null);
create table partitions (
    topic integer not null, number integer not null, low integer not null default 0, high integer not null default 0,
    primary key (topic, number)
) without rowid;
create table records (
    topic integer not null, number integer not null, offset integer not null, key blob, value blob,
    headers blob not null, at_ms integer not null, primary key (topic, number, offset)
) without rowid;
create table members (
    grp text not null, name text not null, token text not null, topics text not null, boot text not null,
    seen real not null, joined integer not null, primary key (grp, name)
) without rowid;
create table claims (
    grp text not null, topic integer not null, number integer not null, member text not null,
    primary key (grp, topic, number)
) without rowid;
create table positions (
    grp text not null, topic integer not null, number integer not null, offset integer not null,
    primary key (grp, topic, number)
) without rowid;
"""


def boot_clock() -> float:
    """Seconds since the machine started, counted while it sleeps too: no change of the time of day moves it."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def boot_id() -> str:
    """Differs after a restart of the machine, where readings of the boot clock from before mean nothing."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


class LogFile:
    """Made without I/O; opened by its first use. One thread at a time."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._connection: sqlite3.Connection | None = None
        self._busy_ms = -1

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        with self._errors():
            yield self._open(_OPEN_TIMEOUT_S)

    @contextlib.contextmanager
    def writing(self, timeout_s: float = _OPEN_TIMEOUT_S) -> Iterator[sqlite3.Connection]:
        """One transaction. Waits for the write lock at most ``timeout_s``."""
        with self._errors():
            connection = self._open(timeout_s)
            connection.execute("begin immediate")
            try:
                yield connection
                connection.execute("commit")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("rollback")
                raise

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                reason, text = "locked", "another process holds the write lock; this goes on by itself when it is released"
            elif code == sqlite3.SQLITE_FULL:
                reason, text = "disk_full", "the disk is full; free some space"
            elif code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                reason, text = "corrupt", "the file is damaged or no log; restore it or name another one"
            elif isinstance(error, sqlite3.OperationalError):
                reason, text = "unavailable", "check that the folder exists and may be written"
            else:
                raise
            raise PublishError(f"the log {self.path!r}: {error}; {text}", blame=Blame.BROKER, reason=reason) from error

    def _open(self, timeout_s: float) -> sqlite3.Connection:
        if self._connection is None:
            # Autocommit; transactions are begun by name. The object may be made in one thread and used in another.
            connection = sqlite3.connect(
                self.path, timeout=timeout_s, isolation_level=None, check_same_thread=False, cached_statements=64
            )
            try:
                self._prepare(connection, timeout_s)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        busy_ms = int(timeout_s * 1000)
        if busy_ms != self._busy_ms:
            self._connection.execute(f"pragma busy_timeout = {busy_ms}")
            self._busy_ms = busy_ms
        return self._connection

    def _prepare(self, connection: sqlite3.Connection, timeout_s: float) -> None:
        wal.enter(connection, timeout_s)
        connection.execute("pragma synchronous = full")
        if self._format(connection) == 0:
            connection.execute("begin immediate")
            if self._format(connection) == 0:  # nobody else was faster
                for statement in filter(str.strip, _SCHEMA.split(";")):
                    connection.execute(statement)
                connection.execute("insert into meta values ('id', ?)", [uuid.uuid4().hex])
                connection.execute(f"pragma application_id = {_APPLICATION_ID}")
                connection.execute(f"pragma user_version = {_FORMAT}")
            connection.execute("commit")
        if connection.execute("pragma application_id").fetchone()[0] != _APPLICATION_ID:
            raise ConfigError(f"{self.path!r} is a database, but no bothends log: name a file of its own for the broker")
        if self._format(connection) != _FORMAT:
            raise ConfigError(f"the log {self.path!r} was written by another version of bothends (format "
                              f"{self._format(connection)}, this one has {_FORMAT})")

    @staticmethod
    def _format(connection: sqlite3.Connection) -> int:
        version = int(connection.execute("pragma user_version").fetchone()[0])
        if version == 0 and connection.execute("select 1 from sqlite_master limit 1").fetchone():
            return -1  # somebody's database
        return version

    def data_version(self) -> int:
        """Changes when another connection has committed. Costs no I/O."""
        with self.reading() as connection:
            return int(connection.execute("pragma data_version").fetchone()[0])

    def close(self) -> None:
        connection, self._connection = self._connection, None
        self._busy_ms = -1
        if connection is not None:
            connection.close()
