"""Effecting: what ``ctx.once`` does next, from what is written down of an effect. A table, no I/O.

    written down                     if_unknown=hold   repeat    a function
    ──────────────────────────────   ───────────────   ───────   ─────────────────────────────
    nothing, not_sent, refused       CALL              CALL      CALL
    completed                        RETURN            RETURN    RETURN
    in_progress, its worker alive    WAIT              WAIT      WAIT
    in_progress, stale; unknown      HOLD              CALL      FIND_OUT, then RETURN or CALL

``refused`` and ``not_sent`` are definite: nothing has happened outside, so calling again (after a redrive, say) is safe.
"""

from __future__ import annotations

import enum
from typing import Literal

__all__ = ["EffectState", "IfUnknown", "Move", "next_move"]

IfUnknown = Literal["hold", "repeat", "find_out"]


class EffectState(enum.Enum):
    """``effects.state``, as stored."""

    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    REFUSED = "refused"
    NOT_SENT = "not_sent"
    UNKNOWN = "unknown"


class Move(enum.Enum):
    CALL = "call"
    RETURN = "return"
    WAIT = "wait"
    HOLD = "hold"
    FIND_OUT = "find_out"


_OPEN = {"hold": Move.HOLD, "repeat": Move.CALL, "find_out": Move.FIND_OUT}


def next_move(state: EffectState, *, leased: bool, if_unknown: IfUnknown) -> Move:
    """``leased``: another worker, alive by the database's clock, is in the middle of the call."""
    if state is EffectState.COMPLETED:
        return Move.RETURN
    if state in (EffectState.REFUSED, EffectState.NOT_SENT):
        return Move.CALL
    if state is EffectState.IN_PROGRESS and leased:
        return Move.WAIT
    return _OPEN[if_unknown]
