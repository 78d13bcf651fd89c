"""Rhythm: whether what happens again and again went on, or paused for long."""

from __future__ import annotations

__all__ = ["Rhythm"]


class Rhythm:
    """``beat`` is called by one thread, ``broke`` by any; both are told the time by the same clock. A pause is long from
    ``long_s`` on."""

    def __init__(self, long_s: float, now_s: float) -> None:
        self._long_s = long_s
        self._last_s = now_s
        self._paused_until_s = float("-inf")

    def beat(self, now_s: float) -> None:
        if now_s - self._last_s >= self._long_s:
            self._paused_until_s = now_s
        self._last_s = now_s

    def broke(self, since_s: float, now_s: float) -> bool:
        """Whether a long pause ended after ``since_s``, or lasts."""
        return self._paused_until_s > since_s or now_s - self._last_s >= self._long_s
