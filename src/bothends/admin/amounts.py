"""Amounts: numbers with their nouns, as people write them."""

from __future__ import annotations

__all__ = ["amount"]


def amount(count: int, one: str, many: str | None = None) -> str:
    """``1 relay``, ``2 relays``, ``0 relays``; ``many`` where it is not ``one`` with an s: ``key is held``, ``keys are
    held``."""
    return f"{count} {one if count == 1 else many or f'{one}s'}"
