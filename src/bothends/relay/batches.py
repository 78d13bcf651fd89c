"""Batches in flight, and what their failures mean."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, NamedTuple

from bothends.core.lanes import lane
from bothends.core.relaying import Hold
from bothends.errors import Blame, PublishError
from bothends.relay.records import BODY, KEY, SEQ, TOPIC, Row

if TYPE_CHECKING:
    from bothends.stores.postgresql.pgoutput import LogPage

__all__ = ["Batch", "Failure", "culprit", "may_wait", "walk"]

ERROR_MAX = 1000
"""Characters of an error's text that are stored."""
WAITING_MAX = 2_400
"""Bytes of topic and key of a row that waits; PostgreSQL's indexes take 2,700. ``add`` takes 1,000 of a key."""
NOT_SENT = "not_sent"
"""A publisher's reason for records that went down with another one."""

Key = tuple[str, bytes]


class Failure(NamedTuple):
    topic: str
    error: PublishError


class Batch:
    """``kind`` says where its rows are: read from a ``stream`` of the table or from the ``log``, or lying in ``held`` or
    ``delayed``."""

    __slots__ = (
        "blocked", "blocked_lanes", "confirmed", "delays", "done", "failures", "forget", "holds", "kind", "number", "page",
        "rows", "segments", "size",
    )

    def __init__(self, kind: Literal["stream", "log", "held", "delayed"], rows: list[Row]) -> None:
        self.kind = kind
        self.rows = rows
        """Those that are sent, in the order of the records."""
        self.size = sum([len(row[BODY] or b"") for row in rows])
        """Bytes of their bodies."""
        self.number = 0
        self.segments: list[tuple[int, int, str]] = []
        self.holds: list[Hold] = []
        self.delays: list[int] = []
        self.forget: list[int] = []
        """Rows of the page whose end was known before."""
        self.confirmed = 0
        """How many of them the broker had confirmed."""
        self.blocked: set[Key] = set()
        """Keys of ``holds``."""
        self.blocked_lanes = 0
        self.page: LogPage | None = None
        """Of the log: as it was read."""
        self.done = False
        self.failures: dict[int, PublishError] = {}

    def hold(self, row: Row, state: str, *, reason: str = "", error: str = "") -> None:
        """This row goes to ``held``."""
        if not may_wait(row):
            state, reason = "passed", "invalid"
            error = (
                f"it cannot wait: its key has {len(row[KEY] or b''):,} bytes, its topic {len(row[TOPIC]):,} characters, and it "
                "was not written by add, which refuses such; write it with a shorter key, and discard this one"
            )
        if row[KEY] is not None and state != "passed":
            self.blocked.add((row[TOPIC], row[KEY]))
            self.blocked_lanes |= 1 << lane(row[KEY])
        self.holds.append(Hold(row[SEQ], state, reason, error[:ERROR_MAX]))


def may_wait(row: Row) -> bool:
    """Whether ``held`` can keep this row's key in order: one that somebody else wrote may be longer than an index takes."""
    return len(row[KEY] or b"") + 4 * len(row[TOPIC]) <= WAITING_MAX


def culprit(error: PublishError) -> PublishError | None:
    """``error``, unless it only says that its record went down with another one."""
    return None if error.reason == NOT_SENT else error


def walk(window: Iterable[Batch], away: set[str]) -> tuple[list[Hold], dict[int, bool], int]:
    """A window of streams that failed: what to hold, the rows whose end is known now (True: confirmed, False: held),
    and the lanes of the held ones.

    A rejected record blames nobody until it was tried alone, so it is held and tried alone. Of its key everything that
    is not confirmed is held too: what comes before it must go before it, what comes after it must wait. All rows of a
    place that is away are held. What is left is published again from the stored cursor.
    """
    batches = list(window)
    suspects = {
        (batch.rows[index][TOPIC], batch.rows[index][KEY])
        for batch in batches for index, error in batch.failures.items()
        if culprit(error) is not None and error.blame is Blame.EVENT and batch.rows[index][KEY] is not None
    }
    kept = Batch("stream", [])
    known: dict[int, bool] = {}
    for batch in batches:
        for index, row in enumerate(batch.rows):
            error = batch.failures.get(index)
            if batch.done and error is None:
                known[row[SEQ]] = True
                continue
            rejected = error is not None and culprit(error) is not None and error.blame is Blame.EVENT
            if row[TOPIC] in away:
                kept.hold(row, "place")
            elif rejected and error is not None:
                kept.hold(row, "retrying", reason=error.reason, error=str(error))
            elif (row[TOPIC], row[KEY]) in suspects:
                kept.hold(row, "behind")
            else:
                continue
            known[row[SEQ]] = False
    return kept.holds, known, kept.blocked_lanes
