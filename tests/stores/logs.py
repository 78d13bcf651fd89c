"""Log: what is in the write-ahead log, for tests of what goes there and nowhere else."""

from __future__ import annotations

import uuid
from typing import Any

import psycopg

from bothends.stores.postgresql.messages import prefix, unpack

__all__ = ["Log"]


class Log:
    """What transactions have left in the log since this was opened, by a slot that ends with it."""

    def __init__(self, url: str, schema: str = "bothends") -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._slot = f"test_{uuid.uuid4().hex}"
        self._prefix = prefix(schema).encode()
        self._connection.execute(f"create publication {self._slot}".encode())
        self._connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput', true)", [self._slot])

    def read(self) -> list[Any]:
        """The rows of the messages that were not read before."""
        found = self._connection.execute(
            "select data from pg_logical_slot_get_binary_changes(%s, null, null, 'proto_version', '1', "
            "'publication_names', %s, 'messages', 'true')", [self._slot, self._slot]).fetchall()
        rows = []
        for (data,) in found:
            if bytes(data[:1]) == b"M":  # kind, flags, position, prefix, length
                name, rest = bytes(data[10:]).split(b"\0", 1)
                assert (data[1], name) == (1, self._prefix)
                rows += unpack(rest[4:])
        return rows

    @property
    def ids(self) -> list[str]:
        return [row[0].decode() for row in self.read()]

    def close(self) -> None:
        self._connection.execute(f"drop publication {self._slot}".encode())
        self._connection.close()
