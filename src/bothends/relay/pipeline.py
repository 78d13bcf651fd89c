"""The pipeline of one registration: pages on their way to the broker, settled in the order they were fetched.

The streams in memory run ahead of the stored cursors by the window of batches in flight. Whatever goes wrong, the window
is dropped and the streams are read again from the store.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bothends.core.relaying import BLOCKED, DELAYED, UNREADABLE, Cursor, Hold, Segment, newest
from bothends.errors import Blame, PublishError
from bothends.ports import BatchReport, Broker, Publisher
from bothends.relay.batches import Batch, Failure, culprit, may_wait, walk
from bothends.relay.blocked import Blocked
from bothends.relay.pages import Pages
from bothends.relay.records import FLAG, KEY, SEQ, TOPIC, Row, judged, outgoing
from bothends.relay.settings import RelaySettings
from bothends.stores.steps import Executor, Steps, run

if TYPE_CHECKING:
    from bothends.stores.postgresql.pgoutput import LogPage

__all__ = ["FencedOff", "Pipeline"]

WINDOW_BYTES = 32 * 1024 * 1024
"""Bodies in flight: with so many, no further page is handed over."""
SMALL_PAGES_MAX = 256
"""Pages in flight that together have no more rows than one page may have."""
_REPORTS_S = 2.0


class FencedOff(Exception):
    """The registration is gone: somebody else has our lanes."""


class Pipeline:
    def __init__(
        self, me: int, steps: Any, executor: Executor, broker: Broker, settings: RelaySettings, name: str,
    ) -> None:
        self._me, self._steps, self._executor, self._broker = me, steps, executor, broker
        self._settings, self._name = settings, name
        self._publisher: Publisher | None = None
        self._number = 0
        self.pages = Pages(steps, executor, settings)
        self.window: deque[Batch] = deque()
        self.away: set[str] = set()
        """Topics whose place is away: their rows are held without an attempt."""
        self.blocked = Blocked(steps, self._run)
        self.delayed_soon = False
        """Whether rows went to ``delayed`` since this was last reset."""
        self._known: dict[int, bool] = {}
        """Rows above the stored cursor whose end is known from a window that failed: confirmed (True), or held."""
        self.last_report = time.monotonic()
        self.failure: PublishError | None = None
        self.published = 0
        """Records confirmed and recorded since this was last read."""
        self.again: deque[LogPage] = deque()
        """Pages of the log whose batches failed: they go out again before anything that follows."""
        self.log_position, self.log_published = 0, 0
        """How far the log is done; records of it confirmed since that was stored."""
        self.log_cursor: Cursor | None = None
        """A cursor that the stream has passed, to be stored."""
        self.fresh = False
        """Whether records were handed over since a wait for reports."""

    def _run(self, steps: Steps[Any]) -> Any:
        return run(steps, self._executor)

    # Fetching and sending

    @property
    def room(self) -> bool:
        if len(self.window) >= self._settings.in_flight_max and (
            len(self.window) >= SMALL_PAGES_MAX or sum([len(b.rows) for b in self.window]) > self._settings.batch_max
        ):
            return False
        return sum([b.size for b in self.window]) < WINDOW_BYTES

    def fetch(self) -> bool:
        """Takes one page of the table and hands it over; the next one is asked for before. Whether there may be more at
        once."""
        found = self.pages.next()
        if found is None:
            return False
        page, more = found
        if not page.rows:
            return more
        rows = self.blocked.mark(page.rows)
        batch = Batch("stream", rows)
        batch.segments = [
            (stream.lanes, stream.hwm, stream.snapshot) for stream in page.streams if stream.target is None
        ]
        if self.away or self._known or any([row[FLAG] for row in rows]) or self._copying():
            self._deal(batch)
        if more:
            self.pages.ask()
        if not self.send(batch):
            self.pages.undo()
        return more

    def take(self, page: LogPage, rows: list[Row]) -> bool:
        """Hands over a page of the log; ``rows`` are its rows, flagged. False: there was no room, nothing was done."""
        batch = Batch("log", rows)
        batch.page = page
        if self.away or self._known or page.flagged or self.blocked.lanes or self._copying():
            self._deal(batch)
        return self.send(batch)

    def back_to_polling(self) -> None:
        """From the stored cursors on; what is in flight goes on."""
        self.again.clear()
        self.pages.reload()

    def _copying(self) -> set[tuple[str, bytes]]:
        """Keys with rows that a batch in flight copies to ``held``: the table does not show them yet."""
        return set().union(*[batch.blocked for batch in self.window])

    def _deal(self, batch: Batch) -> None:
        """Decides which rows of a page are sent, and what becomes of the others."""
        copying = self._copying()
        send: list[Row] = []
        for row in batch.rows:
            key = (row[TOPIC], row[KEY])
            if row[SEQ] in self._known:
                batch.forget.append(row[SEQ])
                batch.confirmed += self._known[row[SEQ]]
            elif row[FLAG] == UNREADABLE:
                batch.hold(row, "passed", reason="unreadable", error="a message with our prefix that is none of ours")
            elif row[FLAG] == DELAYED:  # first: what is held no longer knows when it is due
                batch.delays.append(row[SEQ])
            elif row[TOPIC] in self.away:
                batch.hold(row, "place")
            elif row[FLAG] == BLOCKED or (row[KEY] is not None and (key in copying or key in batch.blocked)):
                batch.hold(row, "behind")
            else:
                send.append(row)
        batch.rows = send

    def send(self, batch: Batch) -> bool:
        """Hands one batch to the publisher. False: there was no room, nothing was done."""
        try:
            records = outgoing(batch.rows)
        except ValueError:
            self._part(batch)
            records = outgoing(batch.rows)
        if records:
            publisher = self._publisher or self._connect()
            if not publisher.pending():
                self.last_report = time.monotonic()
            self._number += 1
            try:
                publisher.send(self._number, records)
                self.fresh = True
            except PublishError as error:
                if error.reason == "full":
                    self._number -= 1
                    return False
                batch.failures = dict.fromkeys(range(len(records)), error)
                self.failure = error
                batch.done = True
            batch.number = self._number
        else:
            batch.done = True
        self.window.append(batch)
        return True

    def _part(self, batch: Batch) -> None:
        """Rows that cannot be read are dead. What follows them of their keys waits: in ``held``, or where it lies."""
        good: list[Row] = []
        waits: set[tuple[str, bytes]] = set()
        for row, error in judged(batch.rows):
            key = (row[TOPIC], row[KEY])
            if not error and key not in waits:
                good.append(row)
            elif not error:
                if batch.kind in ("stream", "log"):
                    batch.hold(row, "behind")
            else:
                passed = self._settings.publish.then == "pass" or not may_wait(row)
                if batch.kind == "held":
                    self.fenced(self._steps.held.retry(
                        self._me, row[SEQ], attempts=1, delay_s=None, passed=passed, reason="unreadable", error=error))
                else:
                    batch.hold(row, "passed" if passed else "dead", reason="unreadable", error=error)
                if not passed and row[KEY] is not None:
                    waits.add(key)
        batch.rows = good

    def _connect(self) -> Publisher:
        self._publisher = self._broker.publisher(self._name)
        self._number = 0
        return self._publisher

    # Confirming and settling

    def pending(self) -> int:
        return self._publisher.pending() if self._publisher is not None else 0

    def collect(self, timeout_s: float) -> bool:
        """Takes reports and settles what is done, in order. Whether anything was settled."""
        if self._publisher is not None:
            self.fresh = self.fresh and not timeout_s
            self._note(self._publisher.poll(timeout_s))
            self.failure = self.failure or self._publisher.broken()
        if self.failure is not None:
            return False
        return self._settle()

    def _note(self, reports: Sequence[BatchReport]) -> None:
        if not reports:
            return
        self.last_report = time.monotonic()
        waiting = {batch.number: batch for batch in self.window if not batch.done}
        for report in reports:
            batch = waiting[report.batch]
            batch.done = True
            if report.failures:
                batch.failures = report.failures
                self.failure = self.failure or next(iter(report.failures.values()))

    def _settle(self) -> bool:
        ready: list[Batch] = []
        while self.window and self.window[0].done and not self.window[0].failures:
            if ready and self.window[0].kind != ready[0].kind:
                break
            ready.append(self.window.popleft())
            if ready[0].kind in ("held", "delayed"):
                break
        if not ready:
            return False
        if ready[0].kind == "stream":
            self._settle_streams(ready)
        elif ready[0].kind == "log":
            self._settle_log(ready)
        else:
            self._settle_aside(ready[0], [row[SEQ] for row in ready[0].rows])
        self.published += sum(len(batch.rows) + batch.confirmed for batch in ready)
        return True

    def _settle_streams(self, ready: Sequence[Batch]) -> None:
        segments: list[Segment] = []
        holds: list[Hold] = []
        delays: list[int] = []
        for batch in ready:
            # The count goes with the last segment; a page within a large late transaction stores no cursor.
            done = [Segment(*place, 0) for place in batch.segments]
            if done:
                done[-1] = done[-1]._replace(published=len(batch.rows) + batch.confirmed)
            segments += done
            holds += batch.holds
            delays += batch.delays
        if segments or holds or delays:
            self.fenced(self._steps.rows.settle(self._me, newest(segments), holds, delays))
        self._settled(ready, bool(delays))

    def _settle_log(self, ready: Sequence[Batch]) -> None:
        """Nothing is asked of the database here, unless rows go beside the stream: ``Log`` stores how far it is done."""
        holds = [hold for batch in ready for hold in batch.holds]
        delays = [seq for batch in ready for seq in batch.delays]
        if holds or delays:
            rows = {row[SEQ]: row for batch in ready if batch.page is not None for row in batch.page.rows}
            self.fenced(self._steps.log(messages=False).keep(
                self._me, [(hold, rows[hold.seq]) for hold in holds], [rows[seq] for seq in delays]))
        for batch in ready:
            assert batch.page is not None
            self.log_position = max(self.log_position, batch.page.position)
            self.log_published += len(batch.rows) + batch.confirmed
            if batch.page.cursor is not None:
                self.log_cursor = batch.page.cursor
        self._settled(ready, bool(delays))

    def _settled(self, ready: Sequence[Batch], delayed: bool) -> None:
        for batch in ready:
            for seq in batch.forget:
                self._known.pop(seq, None)
            self._blocks(batch.blocked_lanes)
        self.delayed_soon = self.delayed_soon or delayed

    def _blocks(self, lanes: int) -> None:
        """Keys of these lanes have rows in ``held`` now."""
        if lanes:
            self.blocked.lanes |= lanes
            self.blocked.forget()

    def _settle_aside(self, batch: Batch, seqs: Sequence[int]) -> None:
        if batch.kind == "held":
            if seqs:
                self.fenced(self._steps.held.release(self._me, seqs))
        else:
            held = [(h.seq, h.state, h.reason, h.error) for h in batch.holds]
            if seqs or held:
                self.fenced(self._steps.held.delayed_done(self._me, seqs, held))
            self._blocks(batch.blocked_lanes)

    def fenced(self, steps: Steps[bool]) -> None:
        if not self._run(steps):
            raise FencedOff

    def touch(self) -> None:
        """Stores where the streams stand although nothing was published, so that storage can be rotated."""
        segments = [Segment(s.lanes, s.hwm, s.snapshot, 0) for s in self.pages.streams if s.target is None]
        if not self.window and segments:
            self.fenced(self._steps.rows.settle(self._me, segments, [], []))

    # Failing

    def abandon(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.abandon()

    def recover(self) -> list[Failure]:
        """After a failure: gives up the publisher, notes what is known of the window, holds the rows that were
        rejected, and goes back to the stored cursors. What was to blame, one entry per topic."""
        deadline = time.monotonic() + _REPORTS_S
        while self._publisher is not None and self._publisher.pending() and time.monotonic() < deadline:
            self._note(self._publisher.poll(0.05))
            # A client that came to its end because of one record says so first, and which record it was afterwards.
            if self._publisher.broken() is not None and self._failures():
                break
        broken = self._publisher.broken() if self._publisher is not None else None
        self.abandon()
        failure, self.failure = self.failure, None
        while self._settle():
            pass
        found = [f for batch in self.window for f in map(culprit, batch.failures.values()) if f is not None]
        places = {f.topic for f in self._failures() if f.error.blame is Blame.PLACE}
        self.away |= places
        self._walk_aside()
        self._walk("stream")
        self._walk("log")
        blamed = self._failures()
        self.again.extendleft(reversed([b.page for b in self.window if b.page is not None]))
        self.window.clear()
        self.pages.reload()
        last = broken or failure
        if not found and last is not None and culprit(last) is not None:
            blamed.append(Failure("", last))
        return blamed

    def _failures(self) -> list[Failure]:
        """The first culprit of each topic."""
        first: dict[str, Failure] = {}
        for batch in self.window:
            for index, error in batch.failures.items():
                topic = batch.rows[index][TOPIC]
                if culprit(error) is not None and topic not in first:
                    first[topic] = Failure(topic, error)
        return list(first.values())

    def _walk(self, kind: str) -> None:
        """Holds what was rejected in the window, and what must wait for it; notes whose end is known."""
        window = [batch for batch in self.window if batch.kind == kind]
        holds, known, blocked_lanes = walk(window, self.away)
        if holds and kind == "log":
            rows = {row[SEQ]: row for batch in window for row in batch.rows}
            self.fenced(self._steps.log(messages=False).keep(self._me, [(hold, rows[hold.seq]) for hold in holds], []))
        elif holds:
            self.fenced(self._steps.rows.settle(self._me, [], holds, []))
        self._blocks(blocked_lanes)
        self._known |= known

    def _walk_aside(self) -> None:
        for batch in self.window:
            if batch.kind in ("stream", "log") or not batch.done:
                continue
            sure = [row[SEQ] for index, row in enumerate(batch.rows) if index not in batch.failures]
            rejected = [
                (batch.rows[index], error) for index, error in sorted(batch.failures.items())
                if culprit(error) is not None and error.blame is Blame.EVENT
            ]
            if batch.kind == "delayed":
                for row, error in rejected:
                    batch.hold(row, "retrying", reason=error.reason, error=str(error))
            self._settle_aside(batch, sure)
            self.published += len(sure)
            if batch.kind == "held" and rejected:
                error = rejected[0][1]
                self.fenced(self._steps.held.suspect(
                    self._me, [row[SEQ] for row, _ in rejected], error.reason, str(error)[:1000]))

    def close(self, timeout_s: float) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            if publisher.pending():
                publisher.abandon()
            else:
                publisher.close(timeout_s)
