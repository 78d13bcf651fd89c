"""StandBy: a fresh interpreter on its way to becoming a child. What it is told goes over a socket pair, a JSON line each.

The last line is the task. A line before it that says ``stand_by`` lets it import the application meanwhile, so that it is
at work in a moment when its task comes; it answers whether the application can have what ``check`` in it asks for.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["CANNOT", "IDLE", "WORKS", "StandBy", "spawn", "standing_by"]

WORKS, IDLE, CANNOT = b"w", b"i", b"x"
"""Answers to ``check``: there are consumers to work for; there are none, and relays suffice; it cannot be, or breaks."""
_SEND_S = 1.0
_ANSWER_S = 30.0


@dataclass(eq=False, slots=True)
class StandBy:
    """The process, and our end of its socket."""

    process: subprocess.Popen[bytes]
    link: socket.socket

    def prepare(self, task: Mapping[str, object]) -> None:
        """Lets it import what a child with such a task needs."""
        self._say({**task, "stand_by": True})

    def answer(self) -> bytes:
        """What it says when it is prepared; CANNOT where it says nothing, within 30 s."""
        self.link.settimeout(_ANSWER_S)
        with contextlib.suppress(OSError):  # it died, or is stuck in the application: who asks finds out by trying
            return self.link.recv(1) or CANNOT
        return CANNOT

    def give(self, task: Mapping[str, object]) -> None:
        """It becomes the child that does this."""
        self._say(task)
        self.link.setblocking(False)

    def _say(self, what: Mapping[str, object]) -> None:
        self.link.settimeout(_SEND_S)
        with contextlib.suppress(OSError):  # it died at once: its exit says so
            self.link.sendall(json.dumps({**what, "parent": os.getpid()}).encode() + b"\n")

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def drop(self) -> None:
        """It is not needed."""
        if self.is_alive():
            self.process.kill()
        self.link.close()
        self.process.wait()


def spawn(module: str, environ: Mapping[str, str] | None = None) -> StandBy:
    """``python -m module FD``, with an environment of its own if given. Raises OSError: no memory, no process slot.

    In a session of its own: a terminal's signals reach the parent only, and Linux shares the processor out by sessions, so
    that one that starts need not make do with what the others of its parent leave.
    """
    ours, theirs = socket.socketpair()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(theirs.fileno())],
            pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, start_new_session=True,
            env=dict(os.environ if environ is None else environ),
        )
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    return StandBy(process, ours)


@contextmanager
def standing_by(modules: Sequence[str]) -> Iterator[list[StandBy]]:
    """One process for each module, started. Who takes one takes it out of the list: what is left in the end is dropped."""
    started: list[StandBy] = []
    try:
        for module in modules:
            with contextlib.suppress(OSError):  # no memory, no process slot: the supervisor tries again, and tells
                started.append(spawn(module))
        yield started
    finally:
        while started:
            started.pop().drop()
