"""Several processes of the product in one thread: each thread of theirs is a greenlet, and the test says who goes on.

Where a real process would give others their turn (a statement, the broker, waiting), a greenlet goes back to the test. So a
process is frozen by not letting it go on, dies at any such point, and time is what the test makes of it. (greenlet comes with
``sqlalchemy[asyncio]``.)
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import random
import sqlite3
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from greenlet import getcurrent, greenlet

from bothends.relay import term
from bothends.stores import Store
from bothends.stores.postgresql import inbox as postgresql_inbox
from bothends.stores.sqlite import connection as sqlite_connection
from bothends.stores.sqlite import inbox as sqlite_inbox
from bothends.stores.steps import Result, Sql
from bothends.testing.exploring.clock import EPOCH_S, Clock, installed, lend_to_sqlite
from bothends.worker import isolation, keeper, member, slots

BUSY_S = 5.0
"""How long a connection to SQLite waits for the file, as the product's do."""
PAUSE_S = 0.01


class Dead(BaseException):
    """The process is gone: nothing of it happens any more."""


class Thread(greenlet):
    """One thread of a process; stands in for ``threading.Thread`` there."""

    def __init__(self, target: Callable[..., Any], args: tuple[Any, ...] = (), *, process: Process | None = None, **_: Any):
        self.process = process or here().process
        super().__init__(self._live, parent=self.process.simulation.hub)
        self._target, self._args = target, args
        self.wake_at: float | None = None
        self.ready: Callable[[], Any] | None = None

    def start(self) -> None:
        self.process.threads.append(self)

    def is_alive(self) -> bool:
        return not self.dead

    def join(self, timeout: float | None = None) -> None:
        self.process.simulation.wait(timeout, lambda: self.dead)

    def _live(self) -> None:
        try:
            self._target(*self._args)
        except Dead:
            pass
        except BaseException as error:
            self.process.failed(error)

    def may_go_on(self, now_s: float) -> bool:
        return self.wake_at is None or self.wake_at <= now_s or bool(self.ready and self.ready())


class Condition:
    """Stands in for ``threading.Condition``: nobody else runs between two points, so nothing is locked."""

    def __init__(self) -> None:
        self._told = 0

    def __enter__(self) -> Condition:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def notify_all(self) -> None:
        self._told += 1

    def wait(self, timeout: float | None = None) -> bool:
        before = self._told
        return bool(here().process.simulation.wait(timeout, lambda: self._told != before))


class Threading:
    """What the worker's modules know as ``threading``."""

    Thread, Condition = Thread, Condition
    Event, Lock, RLock = threading.Event, threading.Lock, threading.RLock


def here() -> Thread:
    current = getcurrent()
    assert isinstance(current, Thread), "not in a simulated process"
    return current


class Process:
    def __init__(self, simulation: Simulation, name: str, main: Callable[[Process], Any]) -> None:
        self.simulation, self.name = simulation, name
        self.gone = False
        self.error: BaseException | None = None
        self.stopping = threading.Event()
        self.connections: list[SimulatedConnection] = []
        self.threads: list[Thread] = []
        Thread(main, (self,), process=self).start()

    def failed(self, error: BaseException) -> None:
        """A thread has ended with an error that nobody caught."""
        if self.gone:  # what a dead process still says is its death
            return
        self.error = self.error or error
        self.simulation.errors.append("".join(traceback.format_exception(error))[-3000:])

    @property
    def writes(self) -> bool:
        """Whether it is within a transaction."""
        return any(connection.in_transaction() for connection in self.connections)

    @property
    def over(self) -> bool:
        return self.gone or all(thread.dead for thread in self.threads)

    def step(self, points: int) -> None:
        """Goes on for so many points; where everything in it waits, time passes."""
        simulation = self.simulation
        for _ in range(points):
            alive = self.threads = [thread for thread in self.threads if not thread.dead]
            if self.gone or not alive:
                return
            now_s = simulation.clock.monotonic_s()
            ready = [thread for thread in alive if thread.may_go_on(now_s)]
            if not ready:
                first = min(alive, key=lambda thread: thread.wake_at or 0.0)
                simulation.forward((first.wake_at or now_s) - now_s)
                ready = [first]
            thread = ready[0] if len(ready) == 1 else simulation.chance.choice(ready)
            thread.wake_at = thread.ready = None
            thread.switch()

    def kill(self) -> None:
        """As ``kill -9``: connections end, the database rolls back."""
        self.gone = True
        for connection in self.connections:
            connection.drop()
        for thread in self.threads:
            if thread:  # it has begun, and is not over
                thread.throw(Dead)


class Simulation:
    """The clocks, the dice and the processes of one example; ``open`` it first, ``close`` it at the end."""

    def __init__(self, seed: int = 0) -> None:
        self.hub = getcurrent()
        self.clock = Clock(EPOCH_S)
        self.chance = random.Random(seed)
        self.processes: dict[str, Process] = {}
        self.errors: list[str] = []
        self.on_forward: Callable[[float], None] = lambda seconds: None
        """Told when time passes (a database with a clock of its own)."""
        self._numbers = itertools.count(1)
        self._stack = contextlib.ExitStack()

    def open(self) -> None:
        enter = self._stack.enter_context
        enter(installed(self.clock, self.chance, ()))
        enter(self._listening())
        random.seed(self.chance.random())
        for owner, name, value in (
            (time, "sleep", self.wait), (threading.Event, "wait", lambda *arguments: self._wait_for(*arguments)),
            (sqlite_connection, "BUSY_TIMEOUT_MS", 0),  # ``SimulatedConnection`` waits
            (slots, "threading", Threading), (keeper, "threading", Threading), (isolation, "threading", Threading),
            (term, "this_process", self._name), (member, "this_process", self._name),
            (term, "lives", self.lives), (sqlite_inbox, "lives", self.lives), (postgresql_inbox, "lives", self.lives),
        ):
            self._stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)

    def close(self) -> None:
        try:
            for process in self.processes.values():
                process.kill()
        finally:
            self._stack.close()

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        """What the product takes for its own error is one."""
        heard = self

        class Handler(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                current = getcurrent()
                if not (isinstance(current, Thread) and current.process.gone):
                    heard.errors.append(self.format(record))

        log, handler = logging.getLogger("bothends"), Handler(logging.CRITICAL)
        propagates, log.propagate = log.propagate, False
        log.addHandler(handler)
        try:
            yield
        finally:
            log.removeHandler(handler)
            log.propagate = propagates

    # Processes

    def start(self, kind: str, main: Callable[[Process], Any]) -> Process:
        name = f"{kind}:{next(self._numbers)}:1"
        process = self.processes[name] = Process(self, name, main)
        return process

    def lives(self, name: str) -> bool:
        found = self.processes.get(name)
        return found is not None and not found.over

    def _name(self) -> str:
        return here().process.name

    # Points

    def point(self) -> None:
        """Here others may go on, and here a process may die."""
        self.wait(None)

    def wait(self, timeout: float | None, ready: Callable[[], Any] | None = None) -> Any:
        """Not sooner than ``timeout`` seconds later, or when it is ``ready()``."""
        current = getcurrent()
        if not isinstance(current, Thread):
            self.forward(timeout or 0.0)
            return ready and ready()
        if current.process.gone:
            raise Dead
        current.ready = ready
        if timeout:
            current.wake_at = self.clock.monotonic_s() + timeout
        elif ready is not None and timeout is None:
            current.wake_at = float("inf")
        self.hub.switch()
        if current.process.gone:
            raise Dead
        return ready and ready()

    def _wait_for(self, event: threading.Event, timeout: float | None = None) -> bool:
        return event.is_set() or bool(self.wait(timeout, event.is_set))

    def forward(self, seconds: float) -> None:
        if 0 < seconds < float("inf"):
            self.clock.forward(seconds)
            self.on_forward(seconds)


class SimulatedConnection:
    """A connection of our own where each statement is a point, and where waiting for a lock lets others go on."""

    def __init__(self, inner: Any, simulation: Simulation) -> None:
        self.inner, self.driver, self._simulation = inner, inner.driver, simulation
        self._closed = False
        here().process.connections.append(self)
        if isinstance(self.driver, sqlite3.Connection):
            self.driver.execute("pragma synchronous = off")
            self.driver.execute("pragma busy_timeout = 0")
            lend_to_sqlite(self.driver, simulation.clock)

    def execute(self, statement: Sql, /) -> Result:
        if statement.text.startswith("pragma synchronous"):
            return Result([], 0)
        return self._patiently(lambda: self.inner.execute(statement))

    def begin(self) -> None:
        self._patiently(self.inner.begin)

    def begin_with(self, first: Sql, /) -> Result:
        return self._patiently(lambda: self.inner.begin_with(first), again=self.inner.rollback)

    def commit(self) -> None:
        self._patiently(self.inner.commit)

    def commit_with(self, gate: Sql, /) -> None:
        self._patiently(lambda: self.inner.commit_with(gate))

    def rollback(self) -> None:
        if not self._closed:
            self._simulation.point()
            self.inner.rollback()

    def _patiently(self, do: Callable[[], Any], again: Callable[[], Any] = lambda: None) -> Any:
        simulation = self._simulation
        simulation.point()
        until_s = simulation.clock.monotonic_s() + BUSY_S
        while True:
            try:
                return do()
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or simulation.clock.monotonic_s() > until_s:
                    raise
                again()
            simulation.wait(PAUSE_S)

    def in_transaction(self) -> bool:
        return not self._closed and bool(self.inner.in_transaction())

    def usable(self) -> bool:
        return not self._closed and bool(self.inner.usable())

    def cancel(self) -> None:
        self.inner.cancel()

    def close(self) -> None:
        self.drop()

    def drop(self) -> None:
        if self._closed:
            return
        self._closed = True
        driver = self.driver
        if isinstance(driver, sqlite3.Connection):
            driver.set_authorizer(None)
            sqlite3.Connection.rollback(driver)
            sqlite3.Connection.close(driver)
        else:
            driver.pgconn.finish()


class SimulatedStore:
    """``inner`` for simulated processes."""

    def __init__(self, inner: Store, simulation: Simulation) -> None:
        self._inner, self._simulation = inner, simulation

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def connect(self, **options: Any) -> SimulatedConnection:
        self._simulation.point()
        return SimulatedConnection(self._inner.connect(**options), self._simulation)


def scratch() -> str | None:
    """A folder in memory for files of databases, where there is one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
