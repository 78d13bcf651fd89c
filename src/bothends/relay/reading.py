"""Reading: pages of the log, handed to the pipeline; how far that is done, stored and told to the server. See ADR 13."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

from bothends.core.relaying import BLOCKED, UNREADABLE, Hold
from bothends.relay.pipeline import FencedOff, Pipeline
from bothends.relay.records import FLAG, SEQ
from bothends.relay.settings import RelaySettings
from bothends.stores.postgresql.inserts import LogUnreadable
from bothends.stores.postgresql.pgoutput import LogPage, PgOutput
from bothends.stores.postgresql.relay_log import Stored
from bothends.stores.postgresql.replication import Replication
from bothends.stores.steps import Steps

__all__ = ["Reading"]

STORE_BUSY_S, STORE_IDLE_S = 0.25, 5.0
"""Seconds between two steps of the stored position, while events come and while none do."""


class Reading:
    """One stream, from its start to its end. What it does raises what the connection raises, and FencedOff."""

    def __init__(
        self, me: int, steps: Any, run: Callable[[Steps[Any]], Any], connection: Replication, decoder: PgOutput,
        position: int, under: str, settings: RelaySettings, pipeline: Pipeline,
    ) -> None:
        self._me, self._steps, self._run = me, steps, run
        self._connection, self._decoder = connection, decoder
        self._settings, self._pipeline = settings, pipeline
        self.position = position
        """Stored; the server may know it."""
        self._under = under
        self._store_at = 0.0
        pipeline.log_position, pipeline.log_cursor = position, None

    def fetch(self) -> bool:
        """Takes one page and hands it over. Whether there was anything."""
        pipeline = self._pipeline
        page = pipeline.again[0] if pipeline.again else self._page()
        if page is None:
            return False
        rows = pipeline.blocked.mark(page.rows)
        if not pipeline.take(page, rows):
            if not pipeline.again:
                pipeline.again.append(page)
            return False
        if pipeline.again:
            pipeline.again.popleft()
        return True

    def _page(self) -> LogPage | None:
        page = self._connection.page(self._settings.batch_max)
        if self._decoder.reply:
            self.tell()
        if page.rows:
            self._store_at = min(self._store_at, time.monotonic() + STORE_BUSY_S)
        elif page.cursor is None:
            return None
        return page

    def turn(self, now: float) -> None:
        if now >= self._store_at:
            self.store(now)

    def store(self, now: float) -> None:
        """Stores how far everything is done, tells the server, and sends the next marker. Messages need no markers: they
        have no cursor."""
        pipeline = self._pipeline
        position = max(pipeline.log_position, self.position)
        if not pipeline.window and not pipeline.again:
            position = max(position, self._decoder.position)  # all that has come is done
        marker = None
        if not self._decoder.markers and not self._steps.messages:
            marker = uuid.uuid4().hex  # one that was emitted before, and is still to come, is not this one
        published = pipeline.log_published
        found: Stored = self._run(self._steps.store(
            self._me, position, pipeline.log_cursor, published, marker, under=self._under))
        if not found.mine:
            raise FencedOff
        if not found.done:
            raise LogUnreadable("the publication was changed while it was read")
        if marker is not None:
            self._decoder.markers[marker.encode()] = found.cursor
        pipeline.log_published, pipeline.log_cursor = 0, None
        self._store_at = now + (STORE_BUSY_S if pipeline.window or published else STORE_IDLE_S)
        self.position = position
        self.tell()

    def tell(self) -> None:
        """Tells the server how far it may forget, and that we live."""
        self._connection.feed(self.position)
        self._decoder.reply = False

    def stow(self) -> None:
        """The broker is away, and the log grows: one page of messages goes into the table, where polling finds them. Those of
        a key that has held rows go behind these."""
        pipeline = self._pipeline
        if pipeline.window:
            pipeline.recover()
        page = pipeline.again.popleft() if pipeline.again else self._page()
        if page is None:
            return
        rows = pipeline.blocked.mark(page.rows)
        behind = [(Hold(row[SEQ], "behind"), row) for row in rows if row[FLAG] == BLOCKED]
        behind += [
            (Hold(row[SEQ], "passed", "unreadable", "a message with our prefix that is none of ours"), row)
            for row in rows if row[FLAG] == UNREADABLE
        ]
        free = [row for row in rows if not row[FLAG]]
        if behind and not self._run(self._steps.keep(self._me, behind, [])):
            raise FencedOff
        if free and not self._run(self._steps.stow(self._me, free)):
            raise FencedOff
        pipeline.pages.caught_up = False
        pipeline.log_position = max(pipeline.log_position, page.position)
