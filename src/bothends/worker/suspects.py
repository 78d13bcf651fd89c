"""Suspects: messages that were running when a process died. Each runs alone in its process, so that a death says whose
it was. One object per consumer and process; slots share it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from bothends.stores.inboxes import OpenRun

__all__ = ["Suspect", "Suspects"]

Name = tuple[str, str]


@dataclass(slots=True)
class Suspect:
    """``crashes``: deaths charged to the message so far. ``alone``: marks of runs in which nothing else ran."""

    crashes: int = 0
    alone: list[int] = field(default_factory=list)
    shared: set[int] = field(default_factory=set)


class Suspects:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_name: dict[Name, Suspect] = {}
        self._by_run: dict[int, set[Name]] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def load(self, runs: Iterable[OpenRun]) -> None:
        """Takes in marks that were left open. A death is charged only where the message ran alone, and where the
        worker's connection is gone: one that still stands belongs to a worker that lives."""
        with self._lock:
            self._by_name.clear()
            self._by_run.clear()
            for run in runs:
                for source, id in json.loads(run.messages):
                    suspect = self._by_name.setdefault((source, id), Suspect())
                    if run.alone:
                        suspect.alone.append(run.id)
                        suspect.crashes = max(suspect.crashes, run.crashes + (0 if run.alive else 1))
                    else:
                        suspect.shared.add(run.id)
                        self._by_run.setdefault(run.id, set()).add((source, id))

    def get(self, name: Name) -> Suspect | None:
        return self._by_name.get(name) if self._by_name else None

    def any_of(self, names: Iterable[Name]) -> bool:
        return bool(self._by_name) and any(name in self._by_name for name in names)

    def settled(self, name: Name) -> Sequence[int]:
        """The message is done. The marks that say nothing about any other message any more."""
        with self._lock:
            suspect = self._by_name.pop(name, None)
            if suspect is None:
                return ()
            finished = list(suspect.alone)
            for run in suspect.shared:
                left = self._by_run[run]
                left.discard(name)
                if not left:
                    del self._by_run[run]
                    finished.append(run)
            return finished
