"""Pages of the table: where polling stands in each lane, and the next page, which is asked for ahead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from bothends.core.relaying import Cursor, Page, Stream, merge
from bothends.relay.settings import RelaySettings
from bothends.stores.steps import Executor, begin, run

__all__ = ["Pages"]

STREAMS_MAX = 4
"""Streams that one statement reads."""


class _Ahead(NamedTuple):
    """A page that was asked for, and where; at another place it is not used."""

    place: list[Stream]
    page: Callable[[], Page]


class Pages:
    def __init__(self, steps: Any, executor: Executor, settings: RelaySettings) -> None:
        self._steps, self._executor, self._settings = steps, executor, settings
        self.streams: list[Stream] = []
        self.caught_up = False
        """Whether the last page was the last there was."""
        self._before: list[Stream] = []
        self._ahead: _Ahead | None = None

    @property
    def lanes(self) -> int:
        mask = 0
        for stream in self.streams:
            mask |= stream.lanes
        return mask

    def gain(self, cursors: dict[int, Cursor]) -> None:
        self.caught_up = False
        self.streams = merge([*self.streams, *(Stream(1 << lane, c.hwm, c.snapshot) for lane, c in cursors.items())])

    def leave(self, lanes: int) -> None:
        """Nothing more is fetched of these lanes."""
        self.streams = merge([s._replace(lanes=s.lanes & ~lanes) for s in self.streams])

    def reload(self) -> None:
        """Back to the stored cursors."""
        self.caught_up, self._ahead = False, None
        if lanes := self.lanes:
            self.streams = []
            self.gain(run(self._steps.leases.cursors(lanes), self._executor))

    def next(self) -> tuple[Page, bool] | None:
        """The next page, and whether there may be more at once; None: there are no lanes."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead.place != self.streams:
            self.ask()
            ahead, self._ahead = self._ahead, None
        if ahead is None:
            return None
        page, rest = ahead.page(), self.streams[STREAMS_MAX:]
        self._before, self.streams = self.streams, merge([*rest, *page.streams])
        self.caught_up = not page.full and not rest
        return page, (page.full if page.rows else False) or bool(rest)

    def undo(self) -> None:
        """The last page was not taken: it comes again."""
        self.streams, self.caught_up = self._before, False

    def ask(self) -> None:
        """Asks for the next page, so that the database reads while records are made."""
        streams = self.streams[:STREAMS_MAX]
        if streams:
            limit = max(1, self._settings.batch_max // len(streams))
            steps = self._steps.rows.fetch(streams, limit=limit)
            self._ahead = _Ahead(list(self.streams), begin(steps, self._executor))
