"""Which keys wait behind rows in ``held``: the lanes that may have such keys, and the keys that were found to be free."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bothends.core.lanes import lane
from bothends.core.relaying import BLOCKED
from bothends.relay.records import FLAG, KEY, TOPIC, Row
from bothends.stores.steps import Steps

__all__ = ["Blocked"]

FREE_MAX = 50_000


class Blocked:
    """Only the owner of a lane holds rows of it. So a key that was free stays free until this relay holds something; and
    because even that is looked at again every quarter of a second, so is this."""

    def __init__(self, steps: Any, run: Callable[[Steps[Any]], Any]) -> None:
        self._steps, self._run = steps, run
        self.lanes = 0
        """Lanes that may have held keys."""
        self._free: set[tuple[str, bytes]] = set()

    def forget(self) -> None:
        """Rows may have been held: every key is asked for again."""
        self._free.clear()

    def mark(self, rows: Sequence[Row]) -> list[Row]:
        """The rows, with those flagged that wait behind held rows of their key. One that is flagged already keeps its flag: an
        event that is due later waits for that first."""
        if not self.lanes:
            return list(rows)
        unknown = {(row[TOPIC], row[KEY]) for row in rows if row[KEY] is not None} - self._free
        asked = [(number, *key) for key in unknown if self.lanes >> (number := lane(key[1])) & 1]
        found: set[tuple[str, bytes]] = self._run(self._steps.held.blocked(sorted(asked))) if asked else set()
        if len(self._free) + len(unknown) > FREE_MAX:
            self._free.clear()
        self._free |= unknown - found
        if not found:
            return list(rows)
        return [
            (row[0], row[1], BLOCKED, *row[3:]) if not row[FLAG] and (row[TOPIC], row[KEY]) in found else row for row in rows
        ]
