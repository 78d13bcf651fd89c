"""Lanes: which one an event with a key goes through. One lane is relayed by one relay, in order."""

from __future__ import annotations

import hashlib

__all__ = ["LANES", "lane"]

LANES = 64


def lane(key: bytes) -> int:
    """The lane (0 to 63) of a key, by its bytes. PostgreSQL computes the same in its function `lane`; this one
    is for the relay, and for the stores that have no sha256."""
    return hashlib.sha256(key).digest()[0] % LANES
