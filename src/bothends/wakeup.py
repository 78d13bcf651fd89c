"""Wake-up: after a commit somebody rings, and a relay that sleeps looks at once. Best effort; polling goes on underneath.

On one machine: a datagram, never waited for, to sockets in the user's runtime directory, one per relay, named by the
database. Elsewhere, and only where it is asked for: NOTIFY on a connection of its own, never in a business transaction.
"""

from __future__ import annotations

import hashlib
import os
import random
import select
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import parse_qsl, unquote

from bothends.errors import ConfigError
from bothends.runtime import directory
from bothends.urls import addresses, parts_of

__all__ = ["Bell", "channel", "database_of", "notify", "ring"]

RELAYS_MAX = 16
"""Sockets of one database that a ring reaches."""
RECONNECT_MIN_S = 0.5
RECONNECT_MAX_S = 10.0
_CHECK_S = 20.0


def database_of(url: str, schema: str = "bothends") -> str:
    """What names the outbox behind ``url`` in a socket's name: host, port, database and schema, or the file's path."""
    if url.startswith("sqlite"):
        path = url.partition("://")[2].partition("?")[0].removeprefix("/")
        memory = path == "" or path.startswith(":memory:")
        return f"sqlite {os.getpid()} {path}" if memory else f"sqlite {os.path.realpath(path)}"
    user, hosts, path, query = parts_of(url)
    options, named = dict(parse_qsl(query)), addresses(hosts)
    host = options.get("host") or ",".join(host for host, _ in named)
    port = options.get("port") or ",".join(port for _, port in named)
    name = unquote(path.removeprefix("/")) or options.get("dbname") or unquote(user.partition(":")[0])
    return postgresql_of(host, port, name, schema)


def postgresql_of(host: str, port: str, database: str, schema: str = "bothends") -> str:
    """The same from what a connection knows; host and port as libpq has them: several with commas, or one port for all. All
    names of this machine are one, and several hosts are one place in whatever order."""
    hosts, ports = host.split(","), port.split(",")
    if len(ports) == 1:
        ports *= len(hosts)
    places = {f"{'local' if _is_local(host) else host}:{port or 5432}" for host, port in zip(hosts, ports, strict=False)}
    return f"postgresql {','.join(sorted(places))}/{database}/{schema}"


def _is_local(host: str) -> bool:
    return host in ("", "localhost", "127.0.0.1", "::1") or host.startswith(("/", "@"))


def _prefix(database: str) -> str:
    # Short: with a directory of 80 characters the path of a socket must stay below 108.
    return "w" + hashlib.sha256(database.encode()).hexdigest()[:10] + "-"


class _Ringer:
    """One socket for all rings of this process, made anew after a fork."""

    def __init__(self) -> None:
        self._pid = 0
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()

    def send(self, path: str) -> None:
        with self._lock:
            if self._socket is None or self._pid != os.getpid():
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
                self._pid = os.getpid()
        try:
            self._socket.sendto(b"r", path)
        except BlockingIOError:
            return  # full: that relay has rings enough
        except ConnectionRefusedError:
            _remove(path)  # its relay is dead
        except OSError:
            return


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return


_ringer = _Ringer()


def ring(database: str, runtime_dir: str | None = None) -> None:
    """Wakes the relays of ``database`` (a name by ``database_of``) on this machine. Never waits, never raises."""
    prefix = _prefix(database)
    try:
        where = directory(runtime_dir)
        names = [entry.path for entry in os.scandir(where) if entry.name.startswith(prefix)]
    except (OSError, ConfigError):
        return  # nobody can be there
    for path in names[:RELAYS_MAX]:
        _ringer.send(path)


def channel(schema: str = "bothends") -> str:
    """The name that is notified."""
    return f"{schema}_outbox"


def notify(connection: object, schema: str = "bothends") -> None:
    """NOTIFY on ``connection``: a psycopg connection in autocommit mode that is used for nothing else. Without a payload,
    so that no event is too big for it."""
    connection.execute("select pg_notify(%s, '')", [channel(schema)])  # type: ignore[attr-defined]


class Readable(Protocol):
    """What ``select`` can wait for."""

    def fileno(self) -> int: ...


class Bell:
    """A relay's end: a socket in the runtime directory, and a listening connection where asked for."""

    def __init__(self, database: str, runtime_dir: str | None = None) -> None:
        self._inner, self._outer = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket: socket.socket | None = None
        self._path: Path | None = None
        self._closed = threading.Event()
        self._listener: threading.Thread | None = None
        for each in (self._inner, self._outer):
            each.setblocking(False)
        try:
            path = directory(runtime_dir) / f"{_prefix(database)}{os.getpid()}-{os.urandom(2).hex()}"
            door = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            door.bind(str(path))
        except (OSError, ConfigError):
            self._waits = [self._inner]  # no directory: polling alone
            return
        self._socket, self._path = door, path
        self._waits = [self._inner, door]

    def wait(self, timeout_s: float, also: Sequence[Readable] = ()) -> bool:
        """Waits for a ring, or until one of ``also`` can be read, at most ``timeout_s`` seconds. Whether one of it was."""
        readable, _, _ = select.select([*self._waits, *also], [], [], max(0.0, timeout_s))
        for each in self._waits:
            if each not in readable:
                continue
            try:
                while each.recv(16):
                    pass
            except BlockingIOError:
                continue
        return bool(readable)

    def rang(self) -> bool:
        return self.wait(0)

    def poke(self) -> None:
        """Rings from within this process; from any thread."""
        try:
            self._outer.send(b"r")
        except OSError:
            return

    def listen(self, url: str, schema: str) -> None:
        """Listens on a connection of its own, in a thread of its own. A connection that dies, or is half open, costs at
        most the poll interval; it is made anew, with pauses."""
        self._listener = threading.Thread(
            target=self._listening, args=(url, schema), name="bothends-listen", daemon=True
        )
        self._listener.start()

    def _listening(self, url: str, schema: str) -> None:
        import psycopg
        from psycopg.sql import SQL, Identifier

        from bothends.stores.postgresql.connection import dsn

        failures = 0
        while not self._closed.is_set():
            began = time.monotonic()
            try:
                with psycopg.connect(
                    dsn(url), autocommit=True, connect_timeout=5, keepalives_idle=10, keepalives_interval=5,
                    keepalives_count=3, tcp_user_timeout=15_000, application_name="bothends listen",
                ) as connection:
                    connection.execute(SQL("listen {}").format(Identifier(channel(schema))))
                    self.poke()  # what was missed meanwhile
                    self._hear(connection)
            except psycopg.Error:
                failures = 1 if time.monotonic() - began > _CHECK_S else failures + 1
                pause_s = min(RECONNECT_MIN_S * 2.0 ** min(failures - 1, 10), RECONNECT_MAX_S)
                self._closed.wait(pause_s * (1 - random.random() / 4))

    def _hear(self, connection: object) -> None:
        checked = time.monotonic()
        while not self._closed.is_set():
            for _ in connection.notifies(timeout=0.5, stop_after=1):  # type: ignore[attr-defined]
                self.poke()
            if time.monotonic() - checked > _CHECK_S:
                connection.execute("select 1")  # type: ignore[attr-defined]
                checked = time.monotonic()

    def close(self) -> None:
        self._closed.set()
        if self._listener is not None:
            self._listener.join(2.0)
        if self._socket is not None and self._path is not None:
            self._socket.close()
            _remove(str(self._path))
        self._inner.close()
        self._outer.close()
