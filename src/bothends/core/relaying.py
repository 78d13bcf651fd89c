"""Relaying: the decisions of a relay, without I/O. Lanes are bits of a mask; lanes with one cursor are one stream.

The cursor is (hwm, snapshot S): everything visible in S with ``seq <= hwm`` has been handed out. A row that becomes
visible later is *late* (``seq <= hwm``: its transaction was running in S, or had not begun) or *new* (``seq > hwm``).
Nothing else exists, whatever the order of transaction ids and sequence values. Stores whose sequence is their commit
order (SQLite) leave the snapshot empty: they have no late rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from bothends.core.lanes import LANES

__all__ = [
    "BLOCKED", "DELAYED", "EVERY_LANE", "PAGE_BYTES", "UNREADABLE", "Cursor", "Hold", "HeldWork", "Page", "Segment", "Stream",
    "advance", "fair_share", "is_full", "lanes_of", "mask_of", "merge", "newest", "pause_s", "signed", "surplus",
]

EVERY_LANE = (1 << LANES) - 1

DELAYED = 1
"""Flag of a fetched row: it is due later."""
BLOCKED = 2
"""Flag of a fetched row: its key has rows in ``held``."""
UNREADABLE = 4
"""Flag of a fetched row: a message with our prefix that is not one of ours; its body is what it holds."""

Row = tuple[Any, ...]


class Cursor(NamedTuple):
    hwm: int
    snapshot: str


class Stream(NamedTuple):
    """Lanes that are read together. While a large late transaction is read page by page, ``target`` is the snapshot
    that is being caught up with, and ``after`` the last late row handed out."""

    lanes: int
    hwm: int
    snapshot: str
    target: str | None = None
    after: int = 0


class Segment(NamedTuple):
    """A step of the stored cursor: these lanes are done up to here."""

    lanes: int
    hwm: int
    snapshot: str
    published: int


class Hold(NamedTuple):
    """A row that the cursor passes without publishing it."""

    seq: int
    state: str
    reason: str = ""
    error: str = ""


class HeldWork(NamedTuple):
    """What waits outside the stream, as far as this relay's lanes go."""

    blocked_lanes: int
    """Lanes with a held key."""
    delayed_in_s: float | None
    """Seconds until the first delayed event is due, 0 or less: now; None: there is none within a day."""
    requests: bool
    """Whether operators have asked for something."""


PAGE_BYTES = 8 * 1024 * 1024
"""Bodies of one page: the row that goes beyond is the last."""


def is_full(rows: Sequence[Row], limit: int, body: int) -> bool:
    """Whether a page of at most ``limit`` rows and ``PAGE_BYTES`` may have been cut; ``body`` is the bodies' position."""
    return len(rows) >= limit or sum([len(row[body] or b"") for row in rows]) >= PAGE_BYTES


class Page(NamedTuple):
    rows: list[Row]
    streams: list[Stream]
    """The streams after this page, in the order they were asked for."""
    full: bool
    """Whether there may be more."""


def advance(
    stream: Stream, late: Sequence[Row], new: Sequence[Row], *, late_full: bool, new_full: bool, now: str, last: int,
    seq: int,
) -> tuple[Stream, bool]:
    """The stream after one page, and whether ``new`` counts. ``now`` is the snapshot of the page, ``last`` the
    sequence's last value as read in it, ``seq`` the position of a row's sequence value; ``late_full`` and ``new_full``
    whether there may be more rows of that kind.

    Late rows go first, all of them before any new row. When the page of new rows is not full, the hwm moves on to the
    sequence's last value, so that a bulk insert that has not committed is not looked at again at every poll.
    """
    target = stream.target or now
    if late_full:
        return stream._replace(target=target, after=late[-1][seq]), False
    hwm = max(stream.hwm, new[-1][seq]) if new else stream.hwm
    if not new_full and target == now:
        hwm = max(hwm, last)
    return Stream(stream.lanes, hwm, target), True


def newest(segments: Sequence[Segment]) -> list[Segment]:
    """One segment per place: where batches follow each other, the last of the same lanes counts."""
    kept: dict[int, Segment] = {}
    for segment in segments:
        before = kept.pop(segment.lanes, None)
        published = segment.published + (before.published if before else 0)
        kept[segment.lanes] = segment._replace(published=published)
    return list(kept.values())


def merge(streams: Iterable[Stream]) -> list[Stream]:
    """Streams that stand at the same place become one. Those without lanes go."""
    lanes: dict[tuple[int, str, str | None, int], int] = {}
    for stream in streams:
        if stream.lanes:
            place = (stream.hwm, stream.snapshot, stream.target, stream.after)
            lanes[place] = lanes.get(place, 0) | stream.lanes
    return [Stream(mask, *place) for place, mask in lanes.items()]


def fair_share(relays: int, lanes: int = LANES) -> int:
    """Lanes that one of ``relays`` live relays may hold."""
    return -(-lanes // max(1, relays))


def surplus(mine: int, relays: int, lanes: int = LANES) -> int:
    """Which lanes of mine (a mask) to give up, so that ``relays`` live relays have a fair share each: the highest."""
    given = 0
    for lane in sorted(lanes_of(mine, lanes), reverse=True)[: max(0, mine.bit_count() - fair_share(relays, lanes))]:
        given |= 1 << lane
    return given


LOOK_SHARE = 2
"""A look that took long is not repeated before so many times that has passed."""
TRICKLE = 4
"""Where looks find nothing although rows came lately, pauses grow to so many of the shortest."""


def pause_s(last_s: float, *, took_s: float, rows: int, busy: bool, busy_s: float, idle_s: float) -> float:
    """Seconds from the beginning of a look at the outbox that found no full page to the next. ``last_s`` is the pause
    before, ``took_s`` how long the look took, ``rows`` how many it found, ``busy`` whether rows came lately.

    About as many looks as rows: looks that find nothing are what a trickle costs, and a database with many relays pays
    them all. Where the processors are short a look takes long, and looking as often would make it worse; the page that is
    fetched later is fuller.
    """
    if not busy:
        return min(max(last_s, busy_s) * 1.5, idle_s)
    wished_s = last_s / 2 if rows > 1 else last_s if rows else last_s * 1.5
    longest_s = max(busy_s, idle_s)
    return min(max(busy_s, min(wished_s, TRICKLE * busy_s), LOOK_SHARE * took_s), longest_s)


def lanes_of(mask: int, lanes: int = LANES) -> Iterator[int]:
    """The lanes of a mask, in order. ``lanes``: how many there are (an outbox has ``LANES``)."""
    return (lane for lane in range(lanes) if mask >> lane & 1)


def mask_of(lanes: Iterable[int]) -> int:
    mask = 0
    for lane in lanes:
        mask |= 1 << lane
    return mask


def signed(mask: int) -> int:
    """``mask`` as the signed 64-bit integer that databases have."""
    return mask - (1 << LANES) if mask >> (LANES - 1) else mask
