"""Rotation: whoever finds a child table that is done with truncates it. Any relay may, at any time; most find nothing."""

from __future__ import annotations

from typing import Any

from bothends.stores.faults import Fault, fault_of
from bothends.stores.steps import Executor, run

__all__ = ["rotate"]


def rotate(storage: Any, executor: Executor) -> list[str]:
    """Truncates what is done with; the children that were tried. One that somebody uses is left for another time."""
    tried: list[str] = []
    for child in run(storage.candidates(), executor):
        if not run(storage.done(child), executor):  # without the lock first: nearly always decided here
            continue
        tried.append(child)
        try:
            run(storage.truncate(child), executor)
        except Exception as error:
            if fault_of(error) is not Fault.CONTENTION:
                raise
    return tried
