"""A replication connection: psycopg's low-level connection, which never blocks once it is open.

Source: PostgreSQL documentation, 55.4 (streaming replication protocol).
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import Any

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from bothends.stores.postgresql.connection import CONNECT_TIMEOUT_S, dsn
from bothends.stores.postgresql.pgoutput import LogEnded, LogPage, PgOutput
from bothends.stores.postgresql.slots import FAILOVER_MIN, lsn_text

__all__ = ["Replication", "ReplicationFailed"]

SENDER_TIMEOUT = "3s"
"""A reader that is frozen does not keep its slot for longer. One that lives answers each second."""
OPTIONS_MIN = 150_000
"""The first server whose commands have options in parentheses."""
_STATUS = Struct(">cqqqqB").pack
_GOOD = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COPY_BOTH, pq.ExecStatus.SINGLE_TUPLE)


class ReplicationFailed(Exception):
    """The server refused, or the connection is gone. ``sqlstate`` is empty where it said nothing."""

    def __init__(self, text: str, sqlstate: str = "") -> None:
        super().__init__(text)
        self.sqlstate = sqlstate


class Replication:
    """One connection, to the database behind ``url``. Opening it blocks, for seconds at most; nothing else does."""

    def __init__(self, url: str, name: str) -> None:
        given = conninfo_to_dict(dsn(url))
        options = f"{given.get('options', '')} -c wal_sender_timeout={SENDER_TIMEOUT}".strip()
        info = make_conninfo(
            dsn(url), replication="database", application_name=name[:63], options=options, client_encoding="UTF8",
            connect_timeout=given.get("connect_timeout", CONNECT_TIMEOUT_S), keepalives_idle=10, keepalives_interval=5,
            keepalives_count=3, tcp_user_timeout=15_000,
        )
        self._connection: Any = pq.PGconn.connect(info.encode())
        if self._connection.status != pq.ConnStatus.OK:
            text = self._connection.get_error_message().strip()
            self._connection.finish()
            raise ReplicationFailed(text)
        self._connection.nonblocking = 1
        self._decoder: PgOutput | None = None
        self._todo: deque[str] = deque()
        self._rows: list[tuple[str | None, ...]] = []

    def fileno(self) -> int:
        """For ``select``. Raises ReplicationFailed where the connection is gone."""
        try:
            return int(self._connection.socket)
        except psycopg.Error as error:
            raise ReplicationFailed(str(error)) from error

    # Commands

    def send(self, *commands: str) -> None:
        """Sends commands, one after the other; ``answer`` has what comes of them. Raises ReplicationFailed."""
        self._todo, self._rows = deque(commands), []
        self._next()

    def _next(self) -> None:
        try:
            self._connection.send_query(self._todo.popleft().encode())
        except psycopg.Error as error:
            raise ReplicationFailed(str(error)) from error

    def answer(self) -> list[tuple[str | None, ...]] | None:
        """The rows of all commands, as text; None: not yet. Raises ReplicationFailed."""
        connection = self._connection
        try:
            connection.flush()
            connection.consume_input()
            while not connection.is_busy():
                result = connection.get_result()
                if result is None:
                    if not self._todo:
                        return self._rows
                    self._next()
                    return None
                if result.status not in _GOOD:
                    sqlstate = result.error_field(pq.DiagnosticField.SQLSTATE) or b""
                    raise ReplicationFailed(result.get_error_message().strip(), sqlstate.decode())
                self._rows += [
                    tuple(_text(result.get_value(row, column)) for column in range(result.nfields))
                    for row in range(result.ntuples)
                ]
                if result.status == pq.ExecStatus.COPY_BOTH:
                    return self._rows
        except psycopg.Error as error:
            raise ReplicationFailed(str(error)) from error
        return None

    def create(self, slot: str, *, keeps: bool) -> None:
        """Makes a slot, and takes its snapshot; ``answer`` ends with ((slot, consistent point, ...), (snapshot,)). Waits for
        all transactions of the server that have written and are open now. ``keeps``: it outlives this connection."""
        kind = "" if keeps else "TEMPORARY "
        options = "SNAPSHOT 'use'" + (", FAILOVER" if keeps and self._connection.server_version >= FAILOVER_MIN else "")
        plain = self._connection.server_version < OPTIONS_MIN
        self.send(
            "BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ",
            f'CREATE_REPLICATION_SLOT "{slot}" {kind}LOGICAL pgoutput {"USE_SNAPSHOT" if plain else f"({options})"}',
            "SELECT pg_current_snapshot()",
            "COMMIT",
        )

    def start(self, slot: str, position: int, publication: str, decoder: PgOutput) -> None:
        """Begins to stream from ``position``; ``answer`` is an empty list when it does."""
        self._decoder = decoder
        name = publication.replace("'", "''").replace('"', '""')
        self.send(
            f'START_REPLICATION SLOT "{slot}" LOGICAL {lsn_text(position)} '
            f"(proto_version '1', publication_names '\"{name}\"', binary 'true', messages 'true')"
        )

    # The stream

    def page(self, limit: int) -> LogPage:
        """What has arrived, at most ``limit`` rows. Raises ReplicationFailed and LogUnreadable."""
        assert self._decoder is not None
        connection = self._connection
        try:
            return self._decoder.page(connection.get_copy_data, connection.consume_input, limit)
        except LogEnded as ended:
            raise self._reason() from ended
        except psycopg.Error as error:
            raise ReplicationFailed(str(error)) from error

    def _reason(self) -> ReplicationFailed:
        """Why the server ended the stream, as far as it said so."""
        try:
            result = self._connection.get_result()
        except psycopg.Error as error:
            return ReplicationFailed(str(error))
        if result is None or result.status in _GOOD:
            return ReplicationFailed("the server ended the stream")
        sqlstate = result.error_field(pq.DiagnosticField.SQLSTATE) or b""
        return ReplicationFailed(result.get_error_message().strip(), sqlstate.decode())

    def feed(self, position: int) -> None:
        """Tells the server that everything before ``position`` is done, and that we live. Raises ReplicationFailed."""
        try:
            self._connection.put_copy_data(_STATUS(b"r", position, position, position, 0, 0))
            self._connection.flush()
        except psycopg.Error as error:
            raise ReplicationFailed(str(error)) from error

    def close(self) -> None:
        self._connection.finish()


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()
