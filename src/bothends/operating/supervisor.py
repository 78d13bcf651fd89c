"""Supervisor: the parent of ``relay``, ``work`` and ``run``. It starts children as fresh interpreters, restarts those
that die, kills those that went silent, and stops them within a bound.

One thread, one loop over sockets: each child has a socket pair, on which it gets its task, then beats (one byte each
half second), says when it is ready, and sees the parent's end as end of file. Nothing of the work is known here.
"""

from __future__ import annotations

import contextlib
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bothends.operating.standby import StandBy, spawn
from bothends.telemetry import logs

__all__ = ["BEAT_S", "SILENCE_S", "Supervisor", "Task"]

BEAT_S = 0.5
SILENCE_S = 5.0
"""A child that has not beaten for so long is frozen, and is killed."""
START_S = 30.0
"""A child must beat for the first time within this: the interpreter starts on a busy machine."""
BACKOFF_FIRST_S, BACKOFF_CAP_S = 0.25, 4.0
SHORT_LIFE_S = 2.0
"""A child that dies sooner after it was ready (or before) is restarted with backoff, others at once."""
SPARE_AFTER_S, SPARE_AFTER_CAP_S = 0.5, 60.0
"""A spare is started when nothing was for so long: it must not take the processor from one that is coming up. Twice
as long each time after one that died by itself."""
IMPATIENT_S = 0.5
"""A signal that follows another sooner is the same wish to stop; later, it ends the drain."""
EXIT_WRONG_USE = 2
_TICK_S = 0.1
_log = logs.get("supervisor")


@dataclass(frozen=True, slots=True)
class Task:
    """What one child does: ``module`` is run with ``-m`` and gets ``task`` as a JSON line on its socket."""

    name: str
    task: Mapping[str, object]
    module: str = "bothends.operating.child"


@dataclass(eq=False, slots=True)
class _Child:
    task: Task
    process: subprocess.Popen[bytes] | None = None
    link: socket.socket | None = None
    heard_at: float = 0.0
    ready_at: float | None = None
    has_beaten: bool = False
    short_lives: int = 0
    start_at: float = 0.0
    finished: bool = False


class Supervisor:
    """``run()`` returns the exit status: 0 after a stop in time, 1 where something had to be killed or the last child
    failed for good, 2 where a child found the configuration wrong before all were ready for the first time. ``early``:
    processes that stand by already, for the first children; they are taken out of the list. ``spares``: so many more stand
    by all the time, and take the places of the next children that die."""

    def __init__(
        self, tasks: Sequence[Task], *, stop_timeout_s: float = 20.0, silence_s: float = SILENCE_S,
        environ: Mapping[str, str] | None = None, early: list[StandBy] | None = None, spares: int = 0,
    ) -> None:
        if not tasks:
            raise ValueError("a supervisor without a task has nothing to do")
        self._children = [_Child(task) for task in tasks]
        self._stop_timeout_s = stop_timeout_s
        self._silence_s = silence_s
        self._environ = environ
        self._selector = selectors.DefaultSelector()
        self._signals = 0
        self._signalled_at = -IMPATIENT_S
        self._stop_by: float | None = None
        self._killed = 0
        self._wrong_use = False
        self._was_running = False
        self._standing_by = [] if early is None else early
        self._spares = spares
        self._spare_after_s = SPARE_AFTER_S
        self._started_at = 0.0

    def run(self) -> int:
        wake, woken = socket.socketpair()
        wake.setblocking(False)
        woken.setblocking(False)
        before = {s: signal.signal(s, self._signalled) for s in (signal.SIGTERM, signal.SIGINT)}
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        old_wake = signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        self._selector.register(woken, selectors.EVENT_READ)
        while len(self._standing_by) > len(self._children):
            self._standing_by.pop(0).drop()
        try:
            return self._loop()
        finally:
            signal.set_wakeup_fd(old_wake)
            for number, handler in before.items():
                signal.signal(number, handler)
            for child in self._children:
                self._kill(child)
            self._drop_spares()
            self._selector.close()
            wake.close()
            woken.close()

    def _loop(self) -> int:
        last = time.monotonic()
        while True:
            for key, _ in self._selector.select(_TICK_S):
                if isinstance(key.data, _Child):
                    self._hear(key.data)
                else:
                    with contextlib.suppress(BlockingIOError):
                        key.fileobj.recv(1024)  # type: ignore[union-attr]
            now = time.monotonic()
            # A parent that was frozen itself has not listened: nobody is silent because of that.
            excused, last = now - last > self._silence_s / 2, now
            for child in self._children:
                self._tend(child, now, excused)
            self._announce()
            self._keep_spares(now)
            if self._signals and self._stop_by is None:
                self._begin_stop(now)
            if self._stop_by is not None and (self._signals > 1 or now > self._stop_by):
                self._end_stop()
            if all(child.finished for child in self._children):
                return self._status()

    def _signalled(self, *_: object) -> None:
        # Some senders (timeout, process managers) signal the process and then its group: that is one wish, not two.
        now = time.monotonic()
        if now - self._signalled_at > IMPATIENT_S:
            self._signalled_at = now
            self._signals += 1

    def _tend(self, child: _Child, now: float, excused: bool) -> None:
        if child.finished:
            return
        if child.process is None:
            if self._stop_by is not None:
                child.finished = True
            elif now >= child.start_at:
                self._start(child, now)
            return
        code = child.process.poll()
        if code is not None:
            self._hear(child)
            self._ended(child, code, now)
        elif excused:
            child.heard_at = now
        elif now - child.heard_at > (self._silence_s if child.has_beaten else START_S):
            _log.error("child is silent: killed", extra={
                "child": child.task.name, "child_pid": child.process.pid, "silent_s": round(now - child.heard_at, 1)})
            child.process.kill()
            child.heard_at = now

    def _start(self, child: _Child, now: float) -> None:
        self._started_at = now
        try:
            started = self._stand_by() or spawn(child.task.module, self._environ)
        except OSError as error:  # no memory, no process slot: tried again like any other death
            self._again(child, now, f"cannot be started: {error}")
            return
        child.process, child.link = started.process, started.link
        child.heard_at, child.ready_at, child.has_beaten = now, None, False
        started.give(child.task.task)
        self._selector.register(started.link, selectors.EVENT_READ, child)

    def _stand_by(self) -> StandBy | None:
        """One that stands by and lives, if there is one."""
        while self._standing_by:
            found = self._standing_by.pop()
            if found.is_alive():
                self._spare_after_s = SPARE_AFTER_S
                return found
            found.drop()
        return None

    def _keep_spares(self, now: float) -> None:
        if not self._spares or not self._was_running or self._stop_by is not None:
            return
        if dead := [one for one in self._standing_by if not one.is_alive()]:
            self._standing_by = [one for one in self._standing_by if one not in dead]
            for one in dead:
                one.drop()
            self._spare_after_s = min(2 * self._spare_after_s, SPARE_AFTER_CAP_S)
        if len(self._standing_by) >= self._spares or now - self._started_at < self._spare_after_s:
            return
        self._started_at = now
        task = self._children[-1].task  # all have the application in common
        with contextlib.suppress(OSError):  # no memory for one more: children do without
            spare = spawn(task.module, self._environ)
            spare.prepare(task.task)
            self._standing_by.insert(0, spare)  # the one that has stood by for longest is taken first

    def _drop_spares(self) -> None:
        while self._standing_by:
            self._standing_by.pop().drop()

    def _hear(self, child: _Child) -> None:
        if child.link is None:
            return
        try:
            heard = child.link.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            heard = b""
        if not heard:
            self._hang_up(child)
            return
        child.heard_at, child.has_beaten = time.monotonic(), True
        if b"r" in heard and child.ready_at is None:
            child.ready_at = child.heard_at

    def _hang_up(self, child: _Child) -> None:
        if child.link is not None:
            self._selector.unregister(child.link)
            child.link.close()
            child.link = None

    def _ended(self, child: _Child, code: int, now: float) -> None:
        self._hang_up(child)
        pid = child.process.pid if child.process else 0
        child.process = None
        if self._stop_by is not None:
            child.finished = True
            self._killed += code == -signal.SIGKILL
            return
        if code == EXIT_WRONG_USE:
            child.finished = True
            if not self._was_running:  # said at the first start, loudly; later it takes nobody else along
                self._wrong_use = True
                self._signals = max(self._signals, 1)
            return
        lived_s = now - child.ready_at if child.ready_at is not None else 0.0
        child.short_lives = 0 if lived_s >= SHORT_LIFE_S else child.short_lives + 1
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit {code}"
        self._again(child, now, how, pid)

    def _again(self, child: _Child, now: float, how: str, pid: int = 0) -> None:
        # The first death restarts at once, so that work goes on; a child that dies on and on is slowed down.
        over = child.short_lives - 1
        delay_s = 0.0 if over < 1 else min(BACKOFF_CAP_S, BACKOFF_FIRST_S * 2.0 ** min(over - 1, 10))
        child.start_at = now + delay_s
        _log.warning("child died: restarting", extra={
            "child": child.task.name, "child_pid": pid, "how": how, "delay_s": delay_s})

    def _announce(self) -> None:
        if not self._was_running and all(c.ready_at is not None for c in self._children):
            self._was_running = True
            _log.info("running", extra={"children": len(self._children)})

    def _begin_stop(self, now: float) -> None:
        self._stop_by = now + self._stop_timeout_s
        if not self._wrong_use:
            _log.info("stopping", extra={"stop_timeout_s": self._stop_timeout_s})
        self._drop_spares()
        for child in self._children:
            if child.process is not None:
                with contextlib.suppress(ProcessLookupError):
                    child.process.terminate()

    def _end_stop(self) -> None:
        for child in self._children:
            if child.process is not None and child.process.poll() is None:
                _log.warning("child did not stop in time: killed", extra={
                    "child": child.task.name, "child_pid": child.process.pid})
                child.process.kill()
                child.process.wait()

    def _kill(self, child: _Child) -> None:
        if child.process is not None and child.process.poll() is None:
            child.process.kill()
            child.process.wait()
        self._hang_up(child)

    def _status(self) -> int:
        if self._wrong_use:
            return EXIT_WRONG_USE
        if self._stop_by is None:  # every child ended by itself, with wrong use after it had been ready
            return EXIT_WRONG_USE
        if self._killed:
            _log.warning("stopped; what was in hand is taken over by others", extra={"killed": self._killed})
            return 1
        _log.info("stopped")
        return 0
