"""Children: processes that are measured, and what they have said so far."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Child", "Sample", "child", "until"]

WAIT_S = 900.0
"""Longer takes nothing that is measured here."""
_STOP_S = 30.0
ROOT = Path(__file__).parents[1]
_said = threading.Condition()


class Sample(NamedTuple):
    at: float
    """Monotonic seconds, of the last event of ``done``."""
    done: int
    rss_kb: int


@dataclass(eq=False)
class Child:
    process: subprocess.Popen[str]
    assigned: int = 0
    source: str = "poll"
    done: int = 0
    duplicates: int = 0
    at: float = 0.0
    samples: list[Sample] = field(default_factory=list)
    """Whenever ``done`` had grown, at most each 20 ms."""
    final: dict[str, Any] | None = None
    ended: bool = False

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            with _said:
                if "final" in said:
                    self.final = said["final"]
                else:
                    if said["done"] > self.done:
                        self.samples.append(Sample(said["at"], said["done"], said["rss_kb"]))
                    self.assigned, self.done, self.at = said["assigned"], said["done"], said["at"]
                    self.source = said["source"]
                    self.duplicates = said["duplicates"]
                _said.notify_all()
        with _said:
            self.ended = True
            _said.notify_all()

    def stop(self) -> dict[str, Any]:
        """Ends it; what it said at its end."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        until(lambda: self.final is not None, self, timeout_s=_STOP_S)
        assert self.final is not None
        return self.final


def until(what: Callable[[], bool], *children: Child, timeout_s: float = WAIT_S) -> None:
    """Waits until ``what``, which is asked again whenever a child has said something."""
    deadline = time.monotonic() + timeout_s
    with _said:
        while not what():
            if any(one.ended and one.final is None for one in children):
                raise SystemExit("a process that was measured broke; what it said is above")
            left = deadline - time.monotonic()
            if left <= 0:
                raise SystemExit(f"not done within {timeout_s:.0f} s: {[(one.assigned, one.done) for one in children]}")
            _said.wait(min(left, 1.0))


@contextlib.contextmanager
def child(role: str, **task: Any) -> Iterator[Child]:
    """A process that plays ``role`` (see ``child.py``); killed on the way out, if it is still there."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.child", json.dumps({"role": role, **task})],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )
    started = Child(process)
    reader = threading.Thread(target=started.read, daemon=True)
    reader.start()
    try:
        yield started
    finally:
        process.kill()
        process.wait()
        reader.join()
