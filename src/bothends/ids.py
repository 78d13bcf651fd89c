"""Ids of events: time-ordered ones made here, and derived ones that come out the same when a handler runs again."""

from __future__ import annotations

import os
import random
import threading
import time
import uuid

import msgspec

__all__ = ["derived_id", "uuid7"]

_DERIVED = uuid.UUID("6f2d35bb-5a0f-5f0b-9d5c-0d5a0c2f7e11")
_COUNTER_BITS = 74  # rand_a and rand_b of RFC 9562, used as one counter
_SEED_BITS = 72  # each millisecond begins below a quarter of the counter, so it has room to count
_STEP_BITS = 32


class _Clock:
    """The last id's millisecond and counter. One per process; a forked child starts its own."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.ms = 0
        self.counter = 0
        # Ids are no secrets: a generator of our own, seeded by the system, is enough to keep processes apart.
        self.bits = random.Random(os.urandom(64)).getrandbits


_clock = _Clock()


def _start_afresh() -> None:
    # A child that went on with its parent's counter and generator would make the parent's ids again, and the lock
    # may be held by a thread that the child does not have.
    global _clock
    _clock = _Clock()


os.register_at_fork(after_in_child=_start_afresh)


def uuid7() -> str:
    """A UUIDv7 (RFC 9562). Within a process each one is greater than the one before, whatever the clock does."""
    clock = _clock
    now_ms = time.time_ns() // 1_000_000
    with clock.lock:
        if now_ms > clock.ms:
            clock.ms = now_ms
            clock.counter = clock.bits(_SEED_BITS)
        else:
            clock.counter += 1 + clock.bits(_STEP_BITS)
            if clock.counter >> _COUNTER_BITS:
                clock.ms += 1
                clock.counter = clock.bits(_SEED_BITS)
        ms, counter = clock.ms, clock.counter
    high, low = counter >> 62, counter & 0x3FFF_FFFF_FFFF_FFFF
    return (
        f"{ms >> 16:08x}-{ms & 0xFFFF:04x}-{0x7000 | high:04x}-{0x8000 | low >> 48:04x}-{low & 0xFFFF_FFFF_FFFF:012x}"
    )


def derived_id(source: str, id: str, consumer: str, ordinal: int) -> str:
    """The id of the ``ordinal``-th event (from 0) that ``consumer`` emits for the event (``source``, ``id``): UUIDv5,
    the same on every run. The four are joined as a JSON array, so no two of them can be confused."""
    return str(uuid.uuid5(_DERIVED, msgspec.json.encode([source, id, consumer, ordinal]).decode()))
