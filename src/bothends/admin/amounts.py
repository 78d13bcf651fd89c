"""Amounts: numbers with their nouns, as people write them."""

from __future__ import annotations

__all__ = ["amount"]


def amount(count: int, noun: str) -> str:
    """``1 relay``, ``2 relays``, ``0 relays``. For nouns whose plural only takes an s."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
