"""Time and chance in an exploration: the clocks stand still unless they are moved, and every dice is loaded.

``installed`` replaces what the process asks: ``time``, ``os.urandom``, ``random``, the ids of events, and in the user's modules
``datetime``. SQLite's functions of time are replaced on each connection. One exploration at a time.
"""

from __future__ import annotations

import asyncio
import datetime as datetime_module
import logging
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, tzinfo
from types import ModuleType
from typing import Any

from bothends import ids

__all__ = ["EPOCH_S", "Clock", "installed", "lend_to_sqlite"]

EPOCH_S = 1_893_456_000.0
"""2030-01-01T00:00:00Z, where runs begin."""
_BOOT_S = 1_000_000.0
_READING_S = 1e-6
"""By so much each look moves the clock, so that two looks differ."""
_EPOCH_JULIAN = 2440587.5
_BUSY = threading.Lock()
_LOGS = ("bothends", "sqlalchemy.pool")


class Clock:
    """Unix time of one run; ``forward`` and each reading move it."""

    def __init__(self, start_s: float = EPOCH_S) -> None:
        self._start_s = start_s
        self._passed_s = 0.0
        self.plain = sqlite3.Connection(":memory:", check_same_thread=False)
        """A connection whose functions are SQLite's own."""

    def now_s(self) -> float:
        self._passed_s += _READING_S
        return self._start_s + self._passed_s

    def peek_s(self) -> float:
        """``now_s`` without moving it."""
        return self._start_s + self._passed_s

    def now(self) -> str:
        """RFC 3339."""
        return datetime.fromtimestamp(self.now_s(), UTC).isoformat(timespec="milliseconds")

    def monotonic_s(self) -> float:
        self._passed_s += _READING_S
        return _BOOT_S + self._passed_s

    def forward(self, seconds: float) -> None:
        self._passed_s += max(0.0, seconds)

    @property
    def passed_s(self) -> float:
        return self._passed_s

    def restart(self, start_s: float, passed_s: float = 0.0) -> None:
        self._start_s, self._passed_s = start_s, passed_s


@contextmanager
def installed(clock: Clock, chance: random.Random, modules: Iterable[ModuleType]) -> Iterator[None]:
    """The process lives by ``clock`` and ``chance`` until the end of the block. Raises RuntimeError where another
    exploration does already."""
    if not _BUSY.acquire(blocking=False):
        raise RuntimeError("an exploration runs in this process already; run one after another")
    undo: list[Callable[[], None]] = []

    def put(owner: Any, name: str, value: Any) -> None:
        before = getattr(owner, name)
        undo.append(lambda: setattr(owner, name, before))
        setattr(owner, name, value)

    state = random.getstate()
    levels = {log: log.level for log in map(logging.getLogger, _LOGS)}
    try:
        for log in levels:
            log.setLevel(logging.CRITICAL)  # thousands of outages that the explorer itself makes
        put(time, "time", clock.now_s)
        put(time, "time_ns", lambda: int(clock.now_s() * 1e9))
        put(time, "monotonic", clock.monotonic_s)
        put(time, "monotonic_ns", lambda: int(clock.monotonic_s() * 1e9))
        put(time, "clock_gettime", lambda _: clock.monotonic_s())
        put(time, "sleep", clock.forward)
        put(threading.Event, "wait", _waiting(clock, threading.Event.wait))
        _install_sleep(clock, modules, put)
        put(os, "urandom", chance.randbytes)
        put(random, "_urandom", chance.randbytes)
        _install_datetime(clock, modules, put)
        ids._start_afresh()
        yield
    finally:
        for one in reversed(undo):
            one()
        random.setstate(state)
        for log, level in levels.items():
            log.setLevel(level)
        ids._start_afresh()
        _BUSY.release()


def _waiting(clock: Clock, plain: Callable[..., bool]) -> Callable[..., bool]:
    """Waiting for an event with a limit is time passing: in one thread nobody else sets it."""

    def wait(event: threading.Event, timeout: float | None = None) -> bool:
        if timeout is None or threading.current_thread() is not threading.main_thread():
            return plain(event, timeout)
        clock.forward(timeout)
        return event.is_set()

    return wait


def _install_sleep(clock: Clock, modules: Iterable[ModuleType], put: Callable[[Any, str, Any], None]) -> None:
    plain = asyncio.sleep

    async def sleep(delay: float, result: Any = None) -> Any:
        clock.forward(delay)
        return await plain(0, result)

    for module in (asyncio, asyncio.tasks, *modules):
        for name, value in list(vars(module).items()):
            if value is plain:
                put(module, name, sleep)


def _install_datetime(clock: Clock, modules: Iterable[ModuleType], put: Callable[[Any, str, Any], None]) -> None:
    """``datetime`` cannot be changed itself: the user's modules get classes that ask the clock instead."""
    moment, day = _datetime_class(clock), _date_class(clock)
    lent = ModuleType("datetime")
    lent.__dict__.update(vars(datetime_module), datetime=moment, date=day)
    for module in modules:
        for name, value in list(vars(module).items()):
            if value is datetime:
                put(module, name, moment)
            elif value is date:
                put(module, name, day)
            elif value is datetime_module:
                put(module, name, lent)


class _AsDatetime(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, datetime)


class _AsDate(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, date)


def _datetime_class(clock: Clock) -> type[datetime]:
    class Lent(datetime, metaclass=_AsDatetime):
        """Makes ordinary ``datetime`` objects."""

        def __new__(cls, *arguments: Any, **options: Any) -> Any:
            return datetime(*arguments, **options)

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return datetime.fromtimestamp(clock.now_s(), tz)

        @classmethod
        def utcnow(cls) -> Any:
            return datetime.fromtimestamp(clock.now_s(), UTC).replace(tzinfo=None)

        @classmethod
        def today(cls) -> Any:
            return datetime.fromtimestamp(clock.now_s())

    for name in ("fromtimestamp", "fromisoformat", "strptime", "combine", "fromordinal", "utcfromtimestamp"):
        setattr(Lent, name, staticmethod(getattr(datetime, name)))
    return Lent


def _date_class(clock: Clock) -> type[date]:
    class Lent(date, metaclass=_AsDate):
        def __new__(cls, *arguments: Any, **options: Any) -> Any:
            return date(*arguments, **options)

        @classmethod
        def today(cls) -> Any:
            return datetime.fromtimestamp(clock.now_s()).date()

    for name in ("fromtimestamp", "fromisoformat", "fromordinal", "fromisocalendar"):
        setattr(Lent, name, staticmethod(getattr(date, name)))
    return Lent


# SQLite

_HELPER_FUNCTIONS = ("datetime", "date", "time", "strftime", "unixepoch")
_WORDS = {"current_timestamp": "%Y-%m-%d %H:%M:%S", "current_date": "%Y-%m-%d", "current_time": "%H:%M:%S"}


def lend_to_sqlite(driver: sqlite3.Connection, clock: Clock) -> None:
    """The connection's functions of time ask ``clock`` wherever they would ask the system."""
    plain = clock.plain

    def julianday(*values: Any) -> Any:
        if not values or values == ("now",):
            return clock.now_s() / 86400.0 + _EPOCH_JULIAN
        return _ask(plain, "julianday", _without_now(values, 0, clock))

    driver.create_function("julianday", -1, julianday)
    for name in _HELPER_FUNCTIONS:
        driver.create_function(name, -1, _asking(plain, name, clock))
    for name, format in _WORDS.items():
        driver.create_function(name, 0, _saying(format, clock))


def _asking(plain: sqlite3.Connection, name: str, clock: Clock) -> Callable[..., Any]:
    place = 1 if name == "strftime" else 0

    def ask(*values: Any) -> Any:
        return _ask(plain, name, _without_now(values, place, clock))

    return ask


def _saying(format: str, clock: Clock) -> Callable[[], str]:
    return lambda: datetime.fromtimestamp(clock.now_s(), UTC).strftime(format)


def _without_now(values: tuple[Any, ...], place: int, clock: Clock) -> list[Any]:
    given = list(values)
    if len(given) == place:
        given.append("now")
    if len(given) > place and given[place] == "now":
        given[place] = datetime.fromtimestamp(clock.now_s(), UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    return given


def _ask(plain: sqlite3.Connection, name: str, values: list[Any]) -> Any:
    marks = ", ".join("?" * len(values))
    return plain.execute(f"select {name}({marks})", values).fetchone()[0]
