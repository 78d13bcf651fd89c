"""Scratch databases: made on a service's own PostgreSQL server for one exploration, and gone after it.

The service's database itself is never connected to, except where the server has no other to give orders from. A scratch
database is recognised by its name; those of explorations that were killed are dropped by the next one.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import ExecStatus

from bothends.errors import ConfigError, StoreUnavailable
from bothends.stores.postgresql.connection import CONNECT_TIMEOUT_S, dsn
from bothends.urls import mask

__all__ = ["PREFIX", "Scratch", "in_database"]

PREFIX = "bothends_explored_"
_START = "_start"
_OURS = re.compile(rf"({PREFIX}[0-9a-f]+)(?:{_START})?")
_LEFT_MAX = 100
_GOOD = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


def in_database(url: str, name: str) -> str:
    """``url`` with another database's name."""
    head, _, query = dsn(url).partition("?")
    scheme, _, rest = head.partition("://")
    kept = [pair for pair in query.split("&") if pair and not pair.startswith("dbname=")]
    return f"{scheme}://{rest.partition('/')[0]}/{name}" + ("?" + "&".join(kept) if kept else "")


class Scratch:
    """The databases of one exploration on the server behind ``url``. ``token`` is lower-case hexadecimal, and nobody
    else's."""

    def __init__(self, url: str, token: str) -> None:
        self.name = f"{PREFIX}{token}"
        self.url = in_database(url, self.name)
        self._server = self._connect(url)
        try:
            self._sweep()
            self._create(self.name, "template0")
        except BaseException:
            self.close()
            raise

    def _connect(self, url: str) -> psycopg.Connection[tuple[object, ...]]:
        """Orders are given from ``postgres``, else from the service's own database."""
        last: psycopg.Error | None = None
        for where in (in_database(url, "postgres"), dsn(url)):
            timeout = conninfo_to_dict(where).get("connect_timeout", CONNECT_TIMEOUT_S)
            try:
                return psycopg.connect(where, autocommit=True, application_name=self.name, connect_timeout=timeout)
            except psycopg.Error as error:
                last = error
        raise StoreUnavailable(f"the explorer needs the PostgreSQL server of {mask(url)}: {last}") from last

    def _create(self, name: str, template: str) -> None:
        try:
            self._order("create database {} template {}", name, template)
        except psycopg.errors.InsufficientPrivilege as error:
            raise ConfigError(
                "the explorer makes a database of its own on PostgreSQL, never touching yours, and this role may not: "
                "alter role ... createdb, or give --database with the URL of a server for tests"
            ) from error

    def _order(self, text: str, *names: str) -> list[str]:
        """The first column of what the server answers. Past psycopg's cursors, which an exploration watches."""
        order = sql.SQL(text).format(*map(sql.Identifier, names)).as_bytes(self._server)
        found = self._server.pgconn.exec_(order)
        if found.status not in _GOOD:
            raise psycopg.errors.error_from_result(found)
        return [(found.get_value(row, 0) or b"").decode() for row in range(found.ntuples)]

    def settle(self) -> None:
        """What holds for every connection to the scratch database. Flushing matters to a machine's death only; and who waits
        for a lock in one thread waits for himself."""
        for setting in ("synchronous_commit = off", "lock_timeout = '5s'"):
            self._order(f"alter database {{}} set {setting}", self.name)

    def keep_start(self) -> None:
        """A copy of the scratch database as it is, to which nobody is connected."""
        self._create(self.name + _START, self.name)

    def back_to_start(self) -> None:
        """The scratch database is that copy again. Whoever is connected loses the connection."""
        self._order("drop database if exists {} with (force)", self.name)
        self._create(self.name, self.name + _START)
        self.settle()

    def close(self) -> None:
        try:
            for name in (self.name, self.name + _START):
                self._order("drop database if exists {} with (force)", name)
        finally:
            self._server.close()

    def _sweep(self) -> None:
        """Drops what killed explorations have left: databases whose exploration is not connected any more."""
        for name in list(self._left()):
            with contextlib.suppress(psycopg.Error):  # another role's, or somebody is sweeping as well
                self._order("drop database if exists {}", name)

    def _left(self) -> Iterator[str]:
        alive = set(self._order("select application_name from pg_stat_activity"))
        for name in self._order(
            f"select datname from pg_database where starts_with(datname, '{PREFIX}') order by 1 limit {_LEFT_MAX}"
        ):
            match = _OURS.fullmatch(name)
            if match and match[1] not in alive:
                yield name
