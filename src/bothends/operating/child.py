"""Child: the process in which relays and workers run, started by ``supervisor.py`` as a fresh interpreter.

``python -m bothends.operating.child FD``: the task comes over the socket FD; one that stands by imports the application
first, and waits for it. Exit 0: drained; 2: the configuration is wrong, and a restart would not help; 1: something broke,
and a restart may.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from typing import Any

from bothends.operating.beats import Link
from bothends.operating.standby import CANNOT, IDLE, WORKS
from bothends.operating.supervisor import BEAT_S
from bothends.telemetry import logs

__all__ = ["main", "settle_memory"]

EXIT_BROKEN, EXIT_WRONG_USE = 1, 2
GC_DEFAULT = gc.get_threshold()
GC_THRESHOLDS = (50_000, 20, 100)
"""Containers made and not freed before the youngest are looked at, and how many times that is before older ones are."""
_log = logs.get("child")


def main(arguments: list[str]) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which tells us
    link = Link(int(arguments[0]))
    task = link.task()
    if task.get("stand_by"):
        link.answer(_prepare(task))
        task = link.task(wait=True)
    logs.setup(task["log_format"], task["log_level"], role=task["role"], pid=os.getpid())
    state = _State()
    link.beat(BEAT_S, state.is_alive)
    from bothends.errors import BothendsError, ConfigError

    try:
        return asyncio.run(_run(task, link, state))
    except (ConfigError, ImportError) as error:
        _log.error("%s", error, exc_info=error if not isinstance(error, BothendsError) else None)
        return EXIT_WRONG_USE
    except Exception as error:
        _log.critical("broke", exc_info=error)
        return EXIT_BROKEN


def _prepare(task: Mapping[str, Any]) -> bytes:
    """Imports the application and what it will run with; says whether it can have what the parent wants."""
    logs.setup(task["log_format"], task["log_level"], role="spare", pid=os.getpid())
    from bothends.operating.apps import load
    from bothends.operating.roles import prepare

    try:
        app = load(task["app"], task["flags"])
        prepare(app)
        return WORKS if "check" in task and app.check(**task["check"]) else IDLE
    except BaseException as error:
        # The parent, or who is given the task, meets it again and says it aloud.
        _log.debug("cannot be prepared", exc_info=error)
        return CANNOT


def settle_memory() -> None:
    """What was imported stays, and pages and batches are thousands of small tuples that die by themselves: the collector
    need not walk over them for a tenth of our time. An application that has set its own thresholds keeps them."""
    if gc.get_threshold() == GC_DEFAULT:
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)


class _State:
    """What the beats ask. While the application is being imported there is nothing to ask."""

    def __init__(self) -> None:
        self.crew: Any = None

    def is_alive(self) -> bool:
        return self.crew is None or self.crew.is_alive()


async def _run(task: Mapping[str, Any], link: Link, state: _State) -> int:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    changed = asyncio.Event()
    # Before the first import of the application: a stop in the middle of a start is a stop.
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    from bothends.errors import ConfigError
    from bothends.operating.apps import load
    from bothends.operating.roles import Roles

    app = load(task["app"], task["flags"])
    settle_memory()

    def tell() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is gone: nobody listens any more
            loop.call_soon_threadsafe(changed.set)

    async with Roles(app, loop).crew(task, tell) as crew:
        state.crew = crew
        crew.start()
        told = False
        while not stopping.is_set() and crew.has_work():
            if not crew.is_alive():
                _exit_with_threads(EXIT_BROKEN)
            if not told and isinstance(crew.first_error(), ConfigError):
                break  # said at the start, loudly; later one member takes no other along
            if not told and crew.is_ready():
                told = True
                link.ready()
                stopped = [member.name for member in crew.members if member.error is not None]
                _log.info("ready", extra={"host": socket.gethostname(), **crew.describes, "stopped": stopped or None})
            changed.clear()
            waiting = [asyncio.ensure_future(stopping.wait()), asyncio.ensure_future(changed.wait())]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for one in waiting:
                one.cancel()
        drained = await asyncio.to_thread(crew.stop, task["stop_timeout_s"])
        error = crew.first_error()
    if isinstance(error, ConfigError):
        return EXIT_WRONG_USE
    if error is not None or not drained:
        _exit_with_threads(EXIT_BROKEN if error is not None else 0)
    return 0


def _exit_with_threads(status: int) -> None:
    """Ends the process though a handler's thread is still running: its transaction is rolled back by the database."""
    if any(t is not threading.current_thread() and not t.daemon for t in threading.enumerate()):
        _log.warning("a handler is still running: its message is released and will run again")
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
