"""Planted bugs, each with a twin that is right. The explorer knows none of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bothends import Service
from bothends.testing.exploring.causes import Cause

__all__ = ["Plant"]


@dataclass(frozen=True)
class Plant:
    """``make(wrong)`` gives the service with the bug, or its twin."""

    name: str
    make: Callable[[bool], Service]
    start: Callable[[Any], Sequence[object] | None]
    events: Sequence[object]
    causes: tuple[Cause, ...]
    """What may be said to be behind it."""
    own_connections: bool = False
    """Whether the handler opens connections of its own, so that the database has to be a file."""

    def __str__(self) -> str:
        return self.name
