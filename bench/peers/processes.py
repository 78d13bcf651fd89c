"""Processes: a relay as a group of its own, and what it and the servers have used of the machine."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg

from bench.peers.peer import Unavailable

__all__ = ["Group", "Servers", "group"]

_TICKS = os.sysconf("SC_CLK_TCK")
_STOP_S = 15.0
_TAIL, _SAID_MAX = 6, 600


def _stats() -> Iterator[tuple[int, list[str]]]:
    """Of each process: its id, and the fields of /proc/PID/stat from the state on."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                yield int(entry), Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()


def _seconds(fields: Sequence[str], *, waited_for: bool = True) -> float:
    """utime and stime; with ``waited_for`` also those of children that have ended."""
    return sum(int(value) for value in fields[11:15 if waited_for else 13]) / _TICKS


class Group:
    """A relay's processes, by their process group."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self._log = process, log

    def check(self) -> None:
        """Raises Unavailable with the log's end where the relay has ended by itself."""
        if self.process.poll() is not None:
            raise Unavailable(f"its relay ended with status {self.process.returncode}: {self.said()}")

    def said(self) -> str:
        """The end of its log, without stack traces."""
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines()]
        told = [line for line in lines if line and not line.startswith(("at ", "... ", "File "))]
        return " / ".join(told[-_TAIL:])[-_SAID_MAX:]

    def _members(self) -> Iterator[tuple[int, list[str]]]:
        return ((pid, fields) for pid, fields in _stats() if int(fields[2]) == self.process.pid)

    def cpu_s(self) -> float:
        return sum(_seconds(fields) for _, fields in self._members())

    def peak_mb(self) -> float:
        """The most that each process has ever had resident, added up."""
        kilobytes = 0
        for pid, _ in self._members():
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                    if line.startswith("VmHWM:"):
                        kilobytes += int(line.split()[1])
        return kilobytes / 1024

    def end(self) -> None:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, sign)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        deadline, pause = time.monotonic() + _STOP_S, threading.Event()
        while any(fields[0] not in "ZX" for _, fields in self._members()) and time.monotonic() < deadline:
            pause.wait(0.01)  # nobody can wait for the children of another process


@contextmanager
def group(command: Sequence[str | Path], folder: Path, environment: Mapping[str, str], cwd: Path) -> Iterator[Group]:
    """Starts a relay; its input stays open, its output goes to a file. Ended on the way out."""
    log = folder / "log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.PIPE, stdout=output, stderr=output, cwd=cwd,
            env=os.environ | environment, start_new_session=True,
        )
    running = Group(process, log)
    try:
        yield running
    finally:
        running.end()
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


class Servers:
    """What PostgreSQL and Kafka have used, where they run on this machine; otherwise nothing is known."""

    def __init__(self, connection: psycopg.Connection[Any], kafka: str) -> None:
        backend = connection.info.backend_pid
        found = {pid: fields for pid, fields in _stats() if pid == backend}
        self._postmaster = int(found[backend][1]) if backend in found and _name(backend) == "postgres" else 0
        self._kafka = _listener(urlsplit(f"//{kafka}").port or 0)

    def cpu_s(self) -> tuple[float, float]:
        """Of PostgreSQL with all its backends, and of Kafka."""
        database = broker = 0.0
        for pid, fields in _stats():
            if self._postmaster and pid == self._postmaster:
                database += _seconds(fields)  # backends that have ended
            elif self._postmaster and int(fields[1]) == self._postmaster:
                database += _seconds(fields, waited_for=False)
            elif pid == self._kafka:
                broker += _seconds(fields)
        return database, broker


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _listener(port: int) -> int:
    """The process that listens on ``port``; 0 where it cannot be seen."""
    sockets = {f"socket:[{inode}]" for table in ("tcp", "tcp6") for inode in _listening(table, port)}
    for entry in os.listdir("/proc") if sockets else ():
        if entry.isdigit() and any(target in sockets for target in _targets(f"/proc/{entry}/fd")):
            return int(entry)
    return 0


def _listening(table: str, port: int) -> list[str]:
    try:
        lines = Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    except OSError:
        return []
    rows = [line.split() for line in lines]
    return [row[9] for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port]


def _targets(folder: str) -> Iterable[str]:
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                yield os.readlink(f"{folder}/{name}")
