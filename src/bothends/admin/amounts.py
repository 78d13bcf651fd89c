"""Amounts: numbers with their nouns, as people write them."""

from __future__ import annotations

__all__ = ["amount", "size"]


def amount(count: int, one: str, many: str | None = None) -> str:
    """``1 relay``, ``2 relays``, ``0 relays``; ``many`` where it is not ``one`` with an s: ``key is held``, ``keys are
    held``."""
    return f"{count} {one if count == 1 else many or f'{one}s'}"


def size(count: int) -> str:
    """``512 kB``, ``1.5 MB``, ``2.0 GB``: bytes, in thousands of them."""
    kilobytes = count / 1000
    if kilobytes < 1000:
        return f"{kilobytes:.0f} kB"
    return f"{kilobytes / 1000:.1f} MB" if kilobytes < 1_000_000 else f"{kilobytes / 1_000_000:.1f} GB"
