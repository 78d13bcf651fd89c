"""Losses: messages are nowhere but in the log. A slot of theirs that is not where it was left has lost some: said, and kept."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from bothends.stores.postgresql.slots import lsn_text
from bothends.stores.steps import Steps

__all__ = ["Losses", "undecodable"]

LOG = logging.getLogger("bothends.relay")

_UNDEFINED = "42704"


def undecodable(slot: str, sqlstate: str) -> str:
    """What is added to the server's words where it cannot decode a stretch of the log, for want of a publication then. Servers
    from 18 on can."""
    if sqlstate != _UNDEFINED:
        return ""
    return (
        ": the log cannot be decoded from where there was none, even if there is one again. What was added before now can be "
        f"given up by: select pg_replication_slot_advance('{slot}', pg_current_wal_insert_lsn())"
    )


class Losses:
    def __init__(self, run: Callable[[Steps[Any]], Any], steps: Any) -> None:
        self._run, self._steps = run, steps
        self._noticed: tuple[int, str] | None = None
        """Up to which place of the log all was done when the slot was found gone, and why."""

    def notice(self, slot: str, after: int, why: str) -> None:
        """The slot is gone; how much that loses is known when there is a new one, which waits for open transactions."""
        self._noticed = (after, why)
        LOG.error("the slot %s is not where it was left (%s): it is made anew; events that were added after %s and were not "
                  "relayed are lost", slot, why, lsn_text(after))

    def ends(self, slot: str, until: int) -> None:
        """A slot that was noticed to be gone is there again, and has all that commits from ``until`` on."""
        if self._noticed is not None:
            after, why = self._noticed
            self._noticed = None
            self._run(self._steps.confess(slot, after, until, why))

    def between(self, slot: str, after: int, until: int, why: str) -> None:
        """The slot is there, and begins later than it was left."""
        LOG.error("the slot %s is not where it was left (%s): events that were added between %s and %s of the log and were not "
                  "relayed are lost", slot, why, lsn_text(after), lsn_text(until))
        self._run(self._steps.confess(slot, after, until, why))
