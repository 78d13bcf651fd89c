"""Processes of a test: started in a folder, waited for by what they say, ended with SIGTERM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

START_S = 60.0
STOP_S = 30.0


class Running:
    """One process. ``said`` grows with its lines; the whole of it is shown when something goes wrong."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.said.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def wait_for(self, text: str, timeout_s: float = START_S) -> str:
        """The first line with ``text``, waited for."""
        with self._news:
            self._news.wait_for(lambda: self._first(text) or not self._reader.is_alive(), timeout_s)
            found = self._first(text)
            assert found is not None, f"no {text!r} in:\n" + "\n".join(self.said)
            return found

    def _first(self, text: str) -> str | None:
        return next((line for line in self.said if text in line), None)

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(STOP_S)
        self._reader.join(STOP_S)
        return status


@contextmanager
def running(folder: Path, *arguments: str, **variables: str) -> Iterator[Running]:
    """Python with these arguments, in ``folder``; killed at the end if it still runs."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("BOTHENDS_", "PYTEST_"))}
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=folder, env=environment | variables | {"PYTHONUNBUFFERED": "1"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )
    try:
        yield Running(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(STOP_S)
        assert process.stdout is not None
        process.stdout.close()


def eventually(look: Callable[[], T], timeout_s: float = 30.0) -> T:
    """The first true answer of ``look``, which is asked until then."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {timeout_s} s: the last answer was {found!r}"
        threading.Event().wait(0.05)
