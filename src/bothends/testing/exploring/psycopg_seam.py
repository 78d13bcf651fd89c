"""psycopg as an exploration sees it: every connection goes to the scratch database, every statement of the user's passes
the tape.

Watched are psycopg's own generators, which synchronous and asynchronous connections share: whatever cursor, engine or
pool the user has, its statements go through them. The product's pass the tape before (``connections.py``).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import generators, pq
from psycopg._connection_base import BaseConnection
from psycopg._cursor_base import BaseCursor
from psycopg._server_cursor_base import ServerCursorMixin
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from bothends.errors import ConfigError
from bothends.testing.exploring.boundaries import Crash, Fault, Kind
from bothends.testing.exploring.connections import Scene
from bothends.testing.exploring.server_clock import SET, lent
from bothends.testing.exploring.statements import kind_of, writes
from bothends.wakeup import postgresql_of

__all__ = ["Link", "Seam", "link_of", "lost"]

_CURSORS: tuple[tuple[Any, str], ...] = (
    (BaseCursor, "_execute_gen"), (BaseCursor, "_executemany_gen_pipeline"), (BaseCursor, "_executemany_gen_no_pipeline"),
    (BaseCursor, "_stream_send_gen"), (BaseCursor, "_start_copy_gen"), (ServerCursorMixin, "_declare_gen"),
)
_MARK = "bothends_link"
_FAILING = (
    "do $$ begin raise exception using errcode = 'XX000', message = 'a statement that fails (made by the crash explorer)'; "
    "end $$"
)
"""A statement of the user's that fails does so on the server, with what follows for its transaction."""
_GRAIN_US = 1_000
"""The server's clock may be so much behind: it is told when it matters."""
_GONE_S = 30.0
_AS_NEW = (
    b"close all; set session authorization default; reset all; deallocate all; unlisten *; "
    b"select pg_advisory_unlock_all(); discard sequences; discard temp"
)
"""DISCARD ALL, but for the plans of functions, which take longest to make."""
_OTHERS = ("asyncpg", "psycopg2")
_IDLE = pq.TransactionStatus.IDLE


class Link:
    """What the seam knows of one connection."""

    __slots__ = ("key", "ours", "users")

    def __init__(self, key: str, *, users: bool) -> None:
        self.key = key
        self.users = users
        """Whether the user's code has opened it."""
        self.ours = not users
        """Whether what is said on it has passed the tape, or need not."""


def link_of(driver: Any) -> Link:
    link: Link = getattr(driver, _MARK)
    return link


def lost() -> psycopg.OperationalError:
    return psycopg.OperationalError("the connection is lost (made by the crash explorer)")


def _addresses(params: dict[str, Any]) -> set[str]:
    """One name for each database of each server. Of several hosts the driver asks for one after the other."""
    environ = os.environ
    hosts = str(params.get("host") or params.get("hostaddr") or environ.get("PGHOST", "")).split(",")
    ports = str(params.get("port") or environ.get("PGPORT", "")).split(",")
    user = params.get("user") or environ.get("PGUSER", "")
    name = str(params.get("dbname") or environ.get("PGDATABASE") or user)
    if len(ports) == 1:
        ports *= len(hosts)
    return {postgresql_of(host, port, name) for host, port in zip(hosts, ports, strict=False)}


class Seam:
    """``name`` is the scratch database; connections to the databases of ``urls`` go there, all others are refused."""

    def __init__(self, scene: Scene, name: str, urls: list[str]) -> None:
        self._scene, self._name = scene, name
        places = [conninfo_to_dict(url) for url in urls]
        self._known: set[str] = set().union(*(_addresses(place) | _addresses(place | {"dbname": name}) for place in places))
        self._dead = pq.PGconn.connect_start(b"host=/")
        self._dead.finish()
        self._idle: dict[str, list[pq.abc.PGconn]] = {}
        self._records: list[Any] = []
        """SQLAlchemy's, each of one place in a pool."""
        self._told_us = 0
        self.anchor: Any = None
        """The explorer's own connection."""
        self.users: list[Any] = []
        """The user's connections that are open."""

    # Connections

    def _target(self, conninfo: str) -> str:
        params = conninfo_to_dict(conninfo)
        if not _addresses(params) <= self._known:
            raise ConfigError(
                f"a connection to the PostgreSQL database {params.get('dbname')!r} on {params.get('host') or 'this host'} was "
                f"asked for during an exploration, which touches the service's own alone (as a copy); name its URL with "
                f"database=, or stand in for the other one with bothends.testing.recorded"
            )
        return make_conninfo("", **params | {"dbname": self._name})

    def _connecting(self, cls: Any, conninfo: str) -> Generator[Any, Any, Any]:
        tape = self._scene.tape
        if tape.dead:
            raise Crash
        key = make_conninfo(self._target(conninfo), application_name="bothends explorer")
        idle = self._idle.get(key)
        pgconn = idle.pop() if idle else (yield from generators.connect(key))
        made = cls(pgconn)
        setattr(made, _MARK, Link(key, users=True))
        self.users.append(made)
        return made

    def adopt(self, driver: Any) -> None:
        """The explorer's, or the product's: the user has not opened it."""
        link = link_of(driver)
        link.users, link.ours = False, True
        self.users.remove(driver)

    def let_go(self, driver: Any) -> None:
        """An orderly end. The server's session is made as good as new for the next, where nothing is open in it."""
        pgconn, key = driver.pgconn, link_of(driver).key
        if pgconn.status != pq.ConnStatus.OK:
            return
        if pgconn.transaction_status != _IDLE or pgconn.pipeline_status:
            self.drop([driver])
            return
        if pgconn.exec_(_AS_NEW).status != pq.ExecStatus.COMMAND_OK:
            self.drop([driver])
            return
        driver.pgconn = self._dead
        self._idle.setdefault(key, []).append(pgconn)

    def drop(self, drivers: list[Any]) -> None:
        """The connections end; when this returns, the server has rolled back."""
        alive = [d for d in drivers if d.pgconn.status == pq.ConnStatus.OK]
        pids = [d.pgconn.backend_pid for d in alive]
        for driver in alive:
            driver.pgconn.finish()
        if pids:
            self._wait_for_the_end_of(pids)

    def _wait_for_the_end_of(self, pids: list[int]) -> None:
        asked = b"select count(*) from pg_stat_activity where pid = any($1::int[])"
        until = time.perf_counter() + _GONE_S
        while self.ask(asked, ["{" + ",".join(map(str, pids)) + "}"]) != "0":
            if time.perf_counter() > until:  # a server that is busy beyond measure
                raise RuntimeError(f"PostgreSQL does not end the sessions {pids} of a dead process")

    def ask(self, text: bytes, values: list[str]) -> str:
        """One value, on the explorer's own connection."""
        found = self.anchor.pgconn.exec_params(text, [value.encode() for value in values])
        if found.status != pq.ExecStatus.TUPLES_OK:
            raise psycopg.errors.error_from_result(found)
        return (found.get_value(0, 0) or b"").decode()

    def drop_users(self) -> None:
        """What the user's code has opened ends with its process; its pools begin anew."""
        users, self.users = self.users, []
        self.drop(users)
        for record in self._records:
            record.dbapi_connection = None  # SQLAlchemy connects again when it is next asked
        self._records.clear()

    def close(self) -> None:
        self.drop_users()
        for idle in self._idle.values():
            for pgconn in idle:
                pgconn.finish()
        self._idle.clear()

    # Time

    def restart_clock(self) -> None:
        self._told_us = 0

    def _tell_time(self) -> None:
        now_us = int(self._scene.clock.peek_s() * 1e6)
        if now_us >= self._told_us + _GRAIN_US and self.anchor is not None:
            self._told_us = now_us
            self.ask(SET.encode(), [str(now_us)])

    # Statements

    def _arrive(self, driver: Any, link: Link, text: str) -> Fault | None:
        self._tell_time()
        tape = self._scene.tape
        if link.ours or not tape.running:
            return None
        kind = kind_of(text)
        alone = driver.autocommit and driver.pgconn.transaction_status == _IDLE
        return tape.arrive(kind, text, users=True, durable=kind is Kind.COMMIT or (alone and writes(text)))

    def _through(
        self, driver: Any, text: str, do: Callable[[], Generator[Any, Any, Any]],
        fail: Callable[[], Generator[Any, Any, Any]] | None,
    ) -> Generator[Any, Any, Any]:
        link: Link | None = getattr(driver, _MARK, None)
        if link is None:
            raise ConfigError(
                "a connection that was opened before the exploration is used in it: it goes to your database itself. Open "
                "connections where they are used, in the service's lifespan, or use ctx.connection"
            )
        fault = self._arrive(driver, link, text)
        is_commit = kind_of(text) is Kind.COMMIT
        if fault is Fault.FAILS:
            if is_commit or fail is None:
                self.drop([driver])
                raise lost()
            yield from fail()
            return None
        result = yield from do()
        if fault is Fault.CRASH_AFTER:
            self._scene.tape.die()
        if fault is Fault.HAPPENED:
            self.drop([driver])
            raise lost()
        return result

    @contextmanager
    def installed(self) -> Iterator[None]:
        """psycopg is watched until the end of the block; other drivers are refused."""
        undo: list[Callable[[], None]] = []

        def put(owner: Any, name: str, value: Any) -> None:
            before = vars(owner)[name]
            undo.append(lambda: setattr(owner, name, before))
            setattr(owner, name, value)

        put(BaseConnection, "_connect_gen", classmethod(lambda cls, conninfo="": self._connecting(cls, conninfo)))
        put(BaseConnection, "_exec_command", _commands(self, BaseConnection._exec_command))
        execute = BaseCursor._execute_gen
        for owner, name in _CURSORS:
            put(owner, name, _statements(self, getattr(owner, name), execute))
        for module, name in (("asyncpg.connect_utils", "_connect"), ("psycopg2", "_connect")):
            if module in sys.modules:
                put(sys.modules[module], name, _refuse(module.partition(".")[0]))
        watching = "sqlalchemy" in sys.modules
        try:
            if watching:
                from sqlalchemy import Pool, event

                event.listen(Pool, "connect", self._on_pool)
            yield
        finally:
            if watching:
                event.remove(Pool, "connect", self._on_pool)
            for one in reversed(undo):
                one()

    def _on_pool(self, _: Any, record: Any) -> None:
        self._records.append(record)


def _refuse(module: str) -> Callable[..., Any]:
    def connect(*_: Any, **__: Any) -> Any:
        raise ConfigError(
            f"the explorer sees what psycopg says, not what {module} says: in an exploration open connections of your own "
            f"with psycopg (SQLAlchemy: postgresql+psycopg://, for coroutines as well), or use the handler's"
        )

    return connect


def _commands(seam: Seam, plain: Any) -> Any:
    """BEGIN, COMMIT, savepoints: what connections say by themselves."""

    def command(self: Any, command: Any, *arguments: Any, **options: Any) -> Generator[Any, Any, Any]:
        text = command.decode() if isinstance(command, bytes) else command
        text = text if isinstance(text, str) else text.as_string(self)
        return (yield from seam._through(self, text, lambda: plain(self, command, *arguments, **options), None))

    return command


def _statements(seam: Seam, plain: Any, execute: Any) -> Any:
    """What cursors say."""

    def statement(self: Any, query: Any, *arguments: Any, **options: Any) -> Generator[Any, Any, Any]:
        text = query.decode() if isinstance(query, bytes) else query
        if not isinstance(text, str) and hasattr(text, "as_string"):
            text = text.as_string(self)
        if not isinstance(text, str):  # a template string: what stands between its values
            text, said = "".join(query.strings), query
        else:
            said = lent(text)
        return (yield from seam._through(
            self._conn, text, lambda: plain(self, said, *arguments, **options), lambda: execute(self, _FAILING)))

    return statement
