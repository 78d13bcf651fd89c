"""A child's end of its supervisor's socket: the task comes in, beats go out, the parent's death is noticed.

Beats come from a thread of their own, so that an asynchronous handler that blocks the event loop is not taken for a
frozen process; they stop when the work's threads have stopped, or the whole process has.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["Link"]

_PR_SET_PDEATHSIG = 1
_TASK_MAX = 256 * 1024
_TASK_S = 10.0
ORPHANED = 75


class Link:
    """The socket to the parent, by file descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._received = b""
        self._thread: threading.Thread | None = None
        self._send_lock = threading.Lock()

    def task(self, *, wait: bool = False) -> dict[str, Any]:
        """What the parent says next: what to prepare for (``stand_by``), and the task; with ``wait`` however long it takes.
        From the first on this process ends when its parent does."""
        self._socket.settimeout(None if wait else _TASK_S)
        while b"\n" not in self._received and len(self._received) < _TASK_MAX:
            part = self._socket.recv(65536)
            if not part:
                break
            self._received += part
        line, newline, self._received = self._received.partition(b"\n")
        if not newline:
            raise SystemExit(0)  # the parent is gone, or needs no process that stands by any more
        task: dict[str, Any] = json.loads(line)
        _die_with(int(task["parent"]))
        return task

    def beat(self, every_s: float, alive: Callable[[], bool]) -> None:
        """Starts beating for as long as ``alive()``; ends the process when the parent is gone."""
        self._socket.settimeout(every_s)
        self._thread = threading.Thread(target=self._beats, args=(alive,), name="bothends-beats", daemon=True)
        self._thread.start()

    def _beats(self, alive: Callable[[], bool]) -> None:
        while True:
            if alive():
                self._send(b"b")
            try:
                gone = self._socket.recv(1) == b""
            except TimeoutError:  # nothing to hear is the rule: the timeout is the beat
                continue
            except OSError:
                gone = True
            if gone:
                os._exit(ORPHANED)

    def answer(self, what: bytes) -> None:
        """Tells the parent how it went with what it was told to prepare for."""
        self._send(what)

    def ready(self) -> None:
        """Tells the parent that the work has begun."""
        self._send(b"r")

    def _send(self, what: bytes) -> None:
        with self._send_lock:
            try:
                self._socket.send(what)
            except TimeoutError:
                return  # the parent is frozen and its buffer full; the kernel tells us if it dies
            except OSError:
                os._exit(ORPHANED)


def _die_with(parent: int) -> None:
    """The kernel kills this process when its parent dies (Linux); elsewhere the closed socket does."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except (OSError, AttributeError):
        pass  # not Linux
    if os.getppid() != parent:
        os._exit(ORPHANED)
