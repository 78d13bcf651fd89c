"""Processes: the ones that a user would start (relays and workers), and what can be done to them.

Each is a supervisor with children, as ``bothends relay`` and ``bothends work`` start them. A kill hits the supervisor or
one of its children: a supervisor restarts its children by itself; a killed supervisor is started again by ``tend``.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Fleet", "Killed", "Process", "children_of", "end_with_us"]

STOP_S = 30.0
OUTCOMES = ("processed", "duplicate", "conflict", "parked", "dead", "ignored")
RESTARTS_MAX = 20
"""Deaths in a row, of a process that nobody killed, after which the run gives up."""
_LOG_TAIL = 64 * 1024
_LOOK_S = 0.02
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def end_with_us() -> None:
    """In a new process, before its program begins: SIGTERM as soon as the thread that started it has ended, however (Linux)."""
    with contextlib.suppress(AttributeError):
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def children_of(pid: int) -> list[int]:
    """Processes whose parent is ``pid``, from /proc; where there is none, none is known."""
    found: list[int] = []
    if not os.path.isdir("/proc/self"):
        return found
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
                if int(fields[1]) == pid and fields[0] != "Z":
                    found.append(int(entry.name))
    return found


@dataclass(frozen=True)
class Killed:
    name: str
    pid: int
    what: str


@dataclass(eq=False)
class Process:
    """One command, its log file, and whether it should be running."""

    name: str
    command: Sequence[str]
    environ: Mapping[str, str]
    log: Path
    folder: Path
    """The working directory."""
    own_session: bool = False
    """As a service manager or a container starts it: with a share of the processor of its own (Linux shares it out by
    sessions). A terminal's signals do not reach it."""
    tied: bool = False
    """Whether it ends with the thread that starts it, also where that is killed."""
    wanted: bool = False
    restarts: int = 0
    started: int = 0
    stop_by: float = 0.0
    running: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def start(self) -> None:
        self.wanted = True
        self.started += 1
        with self.log.open("ab") as log:
            self.running = subprocess.Popen(
                self.command, env=dict(self.environ), cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=self.own_session, preexec_fn=end_with_us if self.tied else None,
            )

    def begin_stop(self) -> None:
        """SIGTERM, once: a second one would cut the drain short."""
        self.wanted = False
        if self.running is not None and self.running.poll() is None:
            self.running.terminate()
            self.stop_by = time.monotonic() + STOP_S

    def has_stopped(self) -> bool:
        """Whether it has ended since ``begin_stop``; after 30 s it is killed."""
        if self.running is None or self.running.poll() is not None:
            return True
        if time.monotonic() > self.stop_by:
            self.running.kill()
            self.running.wait()
        return self.running.returncode is not None

    def kill(self, rng: random.Random) -> Killed | None:
        """SIGKILL to the supervisor (one time in three) or to one of its children. None: nothing was alive."""
        if self.running is None or self.running.poll() is not None:
            return None
        children = children_of(self.running.pid)
        supervisor = not children or rng.random() < 1 / 3
        pid = self.running.pid if supervisor else rng.choice(children)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:  # it ended by itself just now
            return None
        if supervisor:
            self.running.wait()
            self.restarts = -1  # this death is ours
        return Killed(self.name, pid, "supervisor" if supervisor else "child")

    def last_words(self, lines: int = 8) -> str:
        """The end of the log."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_TAIL))
                return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])
        except OSError as error:
            return str(error)

    def log_lines(self) -> Iterator[dict[str, Any]]:
        """The log's JSON lines; others (tracebacks of a dying interpreter) are passed over."""
        with contextlib.suppress(FileNotFoundError), self.log.open(encoding="utf-8", errors="replace") as log:
            for line in log:
                if line.startswith("{"):
                    with contextlib.suppress(ValueError):
                        yield json.loads(line)


class Fleet:
    """All relays and workers of a run."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self.processes: dict[str, Process] = {}

    def add(self, name: str, arguments: Sequence[str], environ: Mapping[str, str], folder: Path) -> Process:
        process = Process(name, [sys.executable, "-m", *arguments], environ, self._logs / f"{name}.log", folder)
        self.processes[name] = process
        return process

    def start(self) -> None:
        for process in self.processes.values():
            process.start()

    def tend(self) -> None:
        """Starts again whatever should run and does not. Raises RuntimeError for one that dies on and on by itself."""
        for process in self.processes.values():
            if process.wanted and process.running is not None and process.running.poll() is not None:
                process.restarts += 1
                if process.restarts > RESTARTS_MAX or (process.started == 1 and process.running.returncode == 2):
                    raise RuntimeError(
                        f"{process.name} ended with status {process.running.returncode}; its log ends:\n"
                        f"{process.last_words()}"
                    )
                process.start()

    def outcomes(self) -> Counter[str]:
        """What became of deliveries, summed over the lines ``counts`` of all workers: what those that were killed had
        not said yet is missing."""
        outcomes: Counter[str] = Counter()
        for process in self.processes.values():
            for line in process.log_lines():
                if line.get("event") == "counts" and "consumer" in line:
                    outcomes.update({name: line[name] for name in OUTCOMES if name in line})
        return outcomes

    def sources(self) -> dict[str, int]:
        """How often a relay has begun to read where: ``poll``, ``wal``, ``message``, ``standby``."""
        lines = (line for process in self.processes.values() for line in process.log_lines())
        return dict(sorted(Counter(str(line["source"]) for line in lines if line.get("event") == "source").items()))

    def stop(self) -> None:
        """All at once; SIGKILL for those that do not end in time."""
        for process in self.processes.values():
            if process.wanted:
                process.begin_stop()
        while not all([process.has_stopped() for process in self.processes.values()]):
            time.sleep(_LOOK_S)
