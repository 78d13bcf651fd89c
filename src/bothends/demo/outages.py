"""Outages: the absence of a broker or of a database, begun and ended without touching the servers.

Servers are behind the demo's proxies, which cut and refuse. A SQLite file is absent while a process holds its write lock
for longer than anybody's busy timeout: one file after another.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bothends.demo.proxies import Proxies

__all__ = ["CUT_S", "HOLD_S", "CutOutage", "LockOutage", "Outage"]

CUT_S = 4.0
HOLD_S = 6.5
"""Longer than the busy timeout of 5 s."""


class CutOutage:
    """Behind a proxy: ``ended`` lets clients in again when its time is over."""

    def __init__(self, proxies: Proxies, name: str, seconds: float = CUT_S) -> None:
        self._proxies, self._name = proxies, name
        self._until: float | None = time.monotonic() + seconds
        proxies.cut(name)

    def ended(self) -> bool:
        if self._until is not None and time.monotonic() >= self._until:
            self.end()
        return self._until is None

    def end(self) -> None:
        if self._until is not None:
            self._until = None
            self._proxies.restore(self._name)

    @property
    def happened(self) -> bool:
        return True


class LockOutage:
    """Of SQLite files: a process of its own holds the locks. It ``happened`` when each was held for its whole time."""

    def __init__(self, files: Sequence[Path], seconds: float | None = None) -> None:
        seconds = HOLD_S if seconds is None else seconds
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bothends.demo.lockholder", str(seconds), *map(str, files)],
            stdout=subprocess.DEVNULL,
        )

    def ended(self) -> bool:
        return self._process.poll() is not None

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    @property
    def happened(self) -> bool:
        return self._process.returncode == 0


Outage = CutOutage | LockOutage
