"""What slots may hold back of the log, and the slot that nobody wants any more: every relay but those of ``wal`` watches it, so
that it cannot fill the disk. See ADR 13."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from bothends.core.sources import over_budget
from bothends.stores.faults import Fault, fault_of
from bothends.stores.steps import Steps

__all__ = ["Leftover", "drop"]

LOG = logging.getLogger("bothends.relay")

WATCH_S = 5.0
PAUSE_S = 30.0
"""After a slot could not be dropped."""


def drop(run: Callable[[Steps[Any]], Any], slots: Any, slot: str, retained: int) -> bool:
    """Drops a slot of rows that keeps too much. False: the server refuses, and the log says so."""
    LOG.error("the slot %s keeps %.0f MB of the log, more than wal_budget_mb allows: it is dropped, and the table is read",
              slot, retained / 1e6)
    try:
        run(slots.free(slot))
        run(slots.drop(slot))
    except Exception as error:
        if fault_of(error) is not Fault.OTHER:
            raise
        LOG.error("the slot %s could not be dropped (%s): give the relay's role REPLICATION, or drop the slot yourself",
                  slot, str(error).partition("\n")[0])
        return False
    return True


class Leftover:
    """The slot of rows that is on record though no relay that lives wants it: what it keeps is in the table as well. One of
    messages is nobody's to drop."""

    def __init__(self, steps: Any, run: Callable[[Steps[Any]], Any], budget_mb: int) -> None:
        self._steps, self._run, self._budget_mb = steps.log(messages=False), run, budget_mb
        self._watch_at = 0.0

    def watch(self, now: float) -> None:
        """One statement each ``WATCH_S``; the slot goes when it holds back more than the budget."""
        if now < self._watch_at:
            return
        self._watch_at = now + WATCH_S
        slot, retained = self._run(self._steps.unwanted())
        if not over_budget(retained, self._budget_mb):
            return
        if drop(self._run, self._steps.slots, slot, retained):
            self._run(self._steps.forget(slot))
        else:
            self._watch_at = now + PAUSE_S
