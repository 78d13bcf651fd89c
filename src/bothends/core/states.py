"""States of a message and of a key on the consuming side, and which may follow which. Tables, no I/O.

A message (its inbox row):

    (none) ── handler committed ──────────────▶ PROCESSED
    (none) ── failed, or its key waits ───────▶ PARKED ── handler committed ──▶ PROCESSED
    (none), PARKED ── given up ───────────────▶ DEAD ── redriven ─────────────▶ PARKED
    DEAD ── discarded ────────────────────────▶ DISCARDED ── redriven ────────▶ PARKED

A key (its row in ``blocked_keys``; no row: the key flows):

    (none) ── head failed ──▶ RETRYING ── nothing left ──▶ (none)
    (none), RETRYING ── head has a newer version ──▶ SCHEMA ── worker knows it ──▶ RETRYING
    RETRYING, SCHEMA ── head dead, policy ``hold`` ──▶ HELD ── operator: retry, skip, replace ──▶ RETRYING
"""

from __future__ import annotations

import enum

__all__ = ["KEY_MOVES", "MESSAGE_MOVES", "InboxState", "KeyState", "LetterState", "Outcome", "check_move"]


class Outcome(enum.Enum):
    """What became of one delivery. ``RELEASED`` is no outcome: the copy was given back, unsettled, at no cost."""

    PROCESSED = "processed"
    DUPLICATE = "duplicate"
    CONFLICT = "conflict"
    PARKED = "parked"
    DEAD = "dead"
    IGNORED = "ignored"
    FORWARDED = "forwarded"
    """To its retry topic (``mode="topic"``)."""
    RELEASED = "released"


class InboxState(enum.Enum):
    """``inbox.state``: one letter, as stored."""

    PROCESSED = "p"
    PARKED = "k"
    DEAD = "d"
    DISCARDED = "x"


class KeyState(enum.Enum):
    """``blocked_keys.state``."""

    RETRYING = "retrying"
    HELD = "held"
    SCHEMA = "schema"


class LetterState(enum.Enum):
    """``dead_letters.state``."""

    OPEN = "open"
    REDRIVEN = "redriven"
    DONE = "done"
    DISCARDED = "discarded"


MESSAGE_MOVES: dict[InboxState | None, frozenset[InboxState]] = {
    None: frozenset({InboxState.PROCESSED, InboxState.PARKED, InboxState.DEAD}),
    InboxState.PARKED: frozenset({InboxState.PROCESSED, InboxState.DEAD, InboxState.PARKED}),
    InboxState.DEAD: frozenset({InboxState.PARKED, InboxState.DISCARDED}),
    InboxState.DISCARDED: frozenset({InboxState.PARKED}),
    InboxState.PROCESSED: frozenset(),
}
KEY_MOVES: dict[KeyState | None, frozenset[KeyState | None]] = {
    None: frozenset({KeyState.RETRYING, KeyState.SCHEMA, KeyState.HELD}),
    KeyState.RETRYING: frozenset({None, KeyState.RETRYING, KeyState.SCHEMA, KeyState.HELD}),
    KeyState.SCHEMA: frozenset({None, KeyState.RETRYING, KeyState.SCHEMA, KeyState.HELD}),
    KeyState.HELD: frozenset({None, KeyState.RETRYING}),
}


def check_move(before: InboxState | None, after: InboxState) -> InboxState:
    """``after``, if a message in state ``before`` may get there; else a programming error of ours."""
    if after not in MESSAGE_MOVES[before]:
        raise AssertionError(f"a message does not go from {before} to {after}")
    return after
