"""Timing: how long a relay's statements take, as it sees them itself, and what processes cost."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

__all__ = ["CLAIM", "LEASE", "SETTLE", "TICK_S", "TimedStore", "cpu_s"]

CLAIM, SETTLE, LEASE = "fetch", "settle", "renew"
"""Steps that are timed: a page of the outbox, storing the cursor, renewing the lease."""
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class TimedStore:
    """A store that notes of each of those steps when it ended (monotonic seconds) and how many seconds it took."""

    def __init__(self, store: Any, noted: dict[str, list[tuple[float, float]]]) -> None:
        self._store = store
        self.relay = _Relay(store.relay, noted)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class _Relay:
    def __init__(self, steps: Any, noted: dict[str, list[tuple[float, float]]]) -> None:
        self._steps = steps
        self.rows = _Timed(steps.rows, (CLAIM, SETTLE), noted)
        self.leases = _Timed(steps.leases, (LEASE,), noted)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._steps, name)


class _Timed:
    def __init__(self, steps: Any, names: tuple[str, ...], noted: dict[str, list[tuple[float, float]]]) -> None:
        self._steps, self._names, self._noted = steps, names, noted

    def __getattr__(self, name: str) -> Any:
        steps = getattr(self._steps, name)
        if name not in self._names:
            return steps
        noted = self._noted.setdefault(name, [])

        def timed(*args: Any, **named: Any) -> Generator[Any, Any, Any]:
            began = time.monotonic()
            answer = yield from steps(*args, **named)
            ended = time.monotonic()
            noted.append((ended, ended - began))
            return answer

        return timed


def cpu_s(pid: int) -> float:
    """Seconds that a process of this machine has run, in steps of ``TICK_S``; 0 for one that is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) * TICK_S
