"""Machine: on what it was measured, and how busy that was meanwhile with other things."""

from __future__ import annotations

import os
import platform
import threading
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psycopg

from bench.places import service_url

__all__ = ["Load", "describe"]

_LOOK_S = 1.0


def describe() -> dict[str, Any]:
    """Processor, memory, kernel, and the versions that matter."""
    with psycopg.connect(service_url("postgresql")) as server:
        row = server.execute("show server_version").fetchone()
    return {
        "cpu": _first("/proc/cpuinfo", "model name") or platform.machine(), "cores": os.cpu_count() or 0,
        "memory_gb": round(int((_first("/proc/meminfo", "MemTotal") or "0 kB").split()[0]) / 1024 / 1024, 1),
        "kernel": platform.release(), "python": platform.python_version(),
        "postgresql": str(row[0]).split()[0] if row else "?",
        **{name: version(name) for name in ("psycopg", "confluent-kafka", "bothends")},
    }


def _first(path: str, name: str) -> str:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


class Load:
    """Around a measurement: the load average (1 min).

    Load includes the measurement's own processes; ``before`` is what was there without them.
    """

    def __init__(self) -> None:
        self._over = threading.Event()
        self._seen: list[float] = []
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Load:
        self.before = os.getloadavg()[0]
        self.began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.monotonic() - self.began
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while True:
            self._seen.append(os.getloadavg()[0])
            if self._over.wait(_LOOK_S):
                return

    def figures(self) -> dict[str, float]:
        return {
            "before": round(self.before, 1), "mean": round(sum(self._seen) / len(self._seen), 1),
            "max": round(max(self._seen), 1), "seconds": round(self.seconds, 1),
        }
