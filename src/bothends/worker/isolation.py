"""Isolation: while one suspect runs, nothing else runs in this process. A lock for readers and writers, per process."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["PROCESS", "Isolation"]

_LOOK_S = 0.1


class Isolation:
    """``share`` and ``seclude`` give up (False) as soon as ``stop()`` says so; a waiting ``seclude`` goes first."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._sharing = 0
        self._waiting = 0
        self._secluded = False

    def share(self, stop: Callable[[], bool]) -> bool:
        with self._condition:
            while self._secluded or self._waiting:
                if stop():
                    return False
                self._condition.wait(_LOOK_S)
            self._sharing += 1
            return True

    def unshare(self) -> None:
        with self._condition:
            self._sharing -= 1
            self._condition.notify_all()

    def seclude(self, stop: Callable[[], bool]) -> bool:
        with self._condition:
            self._waiting += 1
            try:
                while self._secluded or self._sharing:
                    if stop():
                        return False
                    self._condition.wait(_LOOK_S)
                self._secluded = True
                return True
            finally:
                self._waiting -= 1
                self._condition.notify_all()

    def unseclude(self) -> None:
        with self._condition:
            self._secluded = False
            self._condition.notify_all()


PROCESS = Isolation()
"""The one of this process: a death is the whole process's, whatever services and consumers run in it."""
