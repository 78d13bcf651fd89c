"""The log of PostgreSQL as a relay's source: getting there from polling, reading, and going back. See ADR 13.

All of it runs in the relay's thread and never blocks on the log, except to open a connection. Only the reader
(``relay_log``) gets beyond ``POLLING``; other relays that would read stand by while it has a slot.
"""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Callable
from typing import Any

from bothends.core.relaying import EVERY_LANE
from bothends.core.snapshots import Snapshot, covers
from bothends.core.sources import BEGINS, LEAD, SEAM, STANDS_BY, TAKES_OVER, again_s, over_budget, plan
from bothends.errors import ConfigError
from bothends.relay.budget import drop
from bothends.relay.events import Observe, SourceChanged
from bothends.relay.losses import Losses, undecodable
from bothends.relay.pipeline import FencedOff, Pipeline
from bothends.relay.reading import Reading
from bothends.relay.settings import RelaySettings
from bothends.stores.faults import Fault, fault_of
from bothends.stores.postgresql.inserts import LogUnreadable
from bothends.stores.postgresql.pgoutput import PgOutput
from bothends.stores.postgresql.relay_log import Stored
from bothends.stores.postgresql.replication import Replication, ReplicationFailed
from bothends.stores.steps import Steps
from bothends.wakeup import Bell

__all__ = ["Log"]

LOG = logging.getLogger("bothends.relay")

BUDGET_S = 2.0
BUDGET_PAUSE_S = 30.0
"""After a slot was dropped for what it kept, polling goes on for so long."""
CLAIM_S = 15.0
"""Others give their lanes within their renewal and the time that their pages need."""
TAKE_OVER_S = 5.0
"""How long a slot may still be somebody else's before polling begins."""
REASON_MAX = 400
_IN_USE = "55006"


class Phase(enum.Enum):
    POLLING = "polling"
    CREATING = "creating"
    """The server makes a slot; polling goes on."""
    CLAIMING = "claiming"
    """There is a slot. All lanes are wanted, and, for a new one, that polling has seen what its stream will not show."""
    STARTING = "starting"
    STREAMING = "streaming"


class Log:
    def __init__(
        self, me: int, steps: Any, run: Callable[[Steps[Any]], Any], replicate: Callable[[], Replication],
        settings: RelaySettings, pipeline: Pipeline, observe: Observe,
    ) -> None:
        self._me, self._run, self._replicate = me, run, replicate
        self._settings, self._pipeline, self._observe = settings, pipeline, observe
        self._messages = settings.source == "message"
        self._steps = steps.log(messages=self._messages)
        self._keeps = settings.source != "auto"
        self._family = ["message"] if self._messages else ["auto", "wal"]
        self._kept_slot = self._slot = ""
        self.phase = Phase.POLLING
        self.leads = self.standby = False
        self.claims = False
        """Whether every lane is wanted: those who would read too stand by, or will when they next look."""
        self.reason = ""
        self._said: tuple[str, str] = ("", "")
        self._connection: Replication | None = None
        self._reading: Reading | None = None
        self._near_budget = False
        self._seam: Snapshot | None = None
        self._losses = Losses(run, self._steps)
        self._under = ""
        """The publication that is read, as it was when the slot was made."""
        self._distrusted = ""
        """Why a slot of rows is not read on although it stands where it was left: the table is read instead."""
        self._position = 0
        """Stored; the server may know it."""
        self._failures = 0
        self._again_at = self._budget_at = self._claimed_at = 0.0
        self._ready, self._shown = False, ""
        """What others see of us, and of our slot."""

    # What it is

    @property
    def source(self) -> str:
        if self.standby:
            return "standby"
        if self.phase is not Phase.STREAMING:
            return "poll"
        return "message" if self._messages else "wal"

    @property
    def streaming(self) -> bool:
        return self.phase is Phase.STREAMING

    @property
    def open(self) -> bool:
        """Whether there is a connection to wait for."""
        return self._connection is not None

    @property
    def holding(self) -> bool:
        """Whether nothing may be polled: what comes next comes from the log. Messages leave the table to polling."""
        if self._messages:
            return False
        if self.phase is Phase.CLAIMING:
            return self._pipeline.pages.lanes == EVERY_LANE and self._covered()
        return self.phase in (Phase.STARTING, Phase.STREAMING)

    def wait(self, bell: Bell, timeout_s: float) -> bool:
        """Waits for the log or for a ring, at most ``timeout_s`` seconds. Whether one of them came."""
        came = False

        def wait() -> None:
            nonlocal came
            assert self._connection is not None
            # While lanes are claimed nobody reads it: one that is at its end would be readable for ever.
            came = bell.wait(timeout_s, [] if self.phase is Phase.CLAIMING else [self._connection])

        self._guard(time.monotonic(), wait)
        return came

    # Each renewal

    def tick(self, now: float) -> None:
        """Becomes the reader if there is none; else learns what the reader does."""
        reader = self._run(self._steps.reader(self._family))
        if reader.relay is None and self._run(self._steps.take(self._me)):
            reader = self._run(self._steps.reader(self._family))  # again: a slot that nobody wanted may have gone in between
            self._ready, self._shown = reader.ready, reader.slot
        leads = reader.relay == self._me
        if self.leads and not leads:
            raise FencedOff
        if leads and not self.leads:
            self.reason = BEGINS
        self.leads, self.standby = leads, not leads and reader.ready
        self.claims = leads and self._ready and not reader.pollers
        if not leads:
            self.reason = STANDS_BY if self.standby else LEAD
            self._watch_budget(now, reader.slot)
        else:
            if not self._keeps:
                self._shown = reader.slot  # what wal has left may have gone
            self._watch_budget(now, self._slot)
            if self.streaming and self._reading is not None:
                self._guard(now, self._reading.tell)
        self._say()

    def _say(self) -> None:
        if self._said != (self.source, self.reason):
            self._said = (self.source, self.reason)
            self._observe(SourceChanged(self._me, self.source, self.reason))

    # Each turn

    def turn(self, now: float, *, broker_away: bool) -> None:
        """One step on the way, if we are the reader and something is due."""
        if not self.leads:
            return
        if broker_away and not self._keeps and self.phase is not Phase.POLLING:
            self._lost("the broker is away", announce=True)
        elif self.phase is Phase.POLLING:
            if now >= self._again_at and not (broker_away and not self._keeps):
                self._guard(now, lambda: self._plan(now))
        elif self.phase is Phase.CREATING:
            self._guard(now, lambda: self._created(now))
        elif self.phase is Phase.CLAIMING:
            self._guard(now, lambda: self._claim(now))
        elif self.phase is Phase.STARTING:
            self._guard(now, lambda: self._started(now))
        elif self._pipeline.pages.lanes != EVERY_LANE:
            self._lost("another relay of this outbox was told to read elsewhere", announce=True)
        elif self._reading is not None:
            reading = self._reading
            if broker_away and self._near_budget:
                self._guard(now, reading.stow)
            if self._reading is reading:  # what it could not put away is not done
                self._guard(now, lambda: reading.turn(now))
            if reading.position > self._position:
                self._position, self._failures = reading.position, 0

    def _guard(self, now: float, act: Callable[[], None]) -> None:
        try:
            act()
        except (ReplicationFailed, LogUnreadable) as error:
            self._failed(now, error)
        except Exception as error:
            if fault_of(error) is not Fault.OTHER:
                raise
            self._failed(now, error)  # the server refused: a privilege, a slot in use

    def _failed(self, now: float, error: Exception) -> None:
        if isinstance(error, ReplicationFailed) and error.sqlstate == _IN_USE and now < self._claimed_at + TAKE_OVER_S:
            # Its registration is gone, its connection is not: a frozen process, or a half-open connection.
            try:
                self._run(self._steps.slots.free(self._slot))
            except Exception as refused:
                if fault_of(refused) is not Fault.OTHER:
                    raise
                error = ReplicationFailed(f"the slot is in use by a session that this role may not end: {refused}")
            else:
                self._close()
                self.phase = Phase.CLAIMING
                return
        text = str(error).strip().partition("\n")[0] or "the connection was lost"
        if self._messages and isinstance(error, ReplicationFailed):
            text += undecodable(self._slot, error.sqlstate)
        if isinstance(error, LogUnreadable) and not self._messages:
            self._distrusted = text
        self._lost(text)

    def _lost(self, reason: str, *, pause_s: float | None = None, announce: bool = False) -> None:
        """Back to polling, from the stored cursor; what is in flight goes on."""
        reading = self.streaming
        self._close()
        self.phase, self._seam = Phase.POLLING, None
        self._failures += 1
        wait_s = again_s(self._failures) if pause_s is None else pause_s
        self._again_at = time.monotonic() + wait_s
        self.reason = reason[:REASON_MAX]
        if reading:
            LOG.warning("the log cannot be read, the relay polls and tries again in %.1f s: %s", wait_s, self.reason)
            self._pipeline.back_to_polling()
        if announce or not self._keeps or self._failures > 2:
            self._announce(False)
        self._say()

    def _close(self) -> None:
        connection, self._connection, self._reading = self._connection, None, None
        if connection is not None:
            connection.close()

    def _announce(self, ready: bool) -> None:
        slot = self._slot if self._keeps else self._shown  # what wal has left goes on to be watched
        if (ready, slot) != (self._ready, self._shown) and not self._run(self._steps.announce(self._me, ready, slot)):
            raise FencedOff
        self._ready, self._shown = ready, slot

    # From polling to reading

    def _plan(self, now: float) -> None:
        slots = self._steps.slots
        if not self._kept_slot:
            self._kept_slot = self._run(slots.name())
        self._slot = self._kept_slot if self._keeps else f"{self._kept_slot}_{self._me}"
        facts = self._run(slots.facts(self._slot, self._family))
        todo = plan(facts, keeps=self._keeps, messages=self._messages)
        if todo.act == "resume" and self._distrusted:
            todo = todo._replace(act="recreate", reason=self._distrusted)
        self._claimed_at = now
        if todo.act == "poll":
            self._lost(todo.reason)
            return
        if todo.act == "resume":
            assert facts.slot is not None
            if self._messages:
                try:
                    self._run(slots.publish())
                except ConfigError as error:  # the server says whether it can do without: from 18 on it can
                    LOG.warning("%s", error)
            if todo.reason:
                self._losses.between(self._slot, facts.position, facts.slot.confirmed, todo.reason)
            done = 0 if facts.ahead else facts.position or 0
            self._position, self._seam, self._under = max(done, facts.slot.confirmed), None, facts.published
            self.phase, self.reason = Phase.CLAIMING, TAKES_OVER
            self._announce(True)
            return
        if facts.position is not None and self._messages:
            self._losses.notice(self._slot, facts.position, todo.reason or "there was no slot")
        if todo.act == "recreate":
            LOG.warning("the slot %s is made anew: %s", self._slot, todo.reason)
            self._run(slots.free(self._slot))
            self._run(slots.drop(self._slot))
        try:
            self._run(slots.publish())
        except ConfigError as error:
            self._lost(str(error))
            return
        under = self._run(slots.published())
        if under is None:
            self._lost(f"the publication {slots.publication} does not show the outbox's inserts by its root: drop it; or a "
                       "child of the outbox is unlogged: alter it")
            return
        self._under, self._distrusted = under, ""
        self._connection = self._replicate()
        self._connection.create(self._slot, keeps=self._keeps)
        self.phase, self.reason = Phase.CREATING, "the slot waits for open transactions"

    def _created(self, now: float) -> None:
        assert self._connection is not None
        made = self._connection.answer()
        if made is None:
            return
        place, (snapshot,) = str(made[-2][1]), made[-1]
        high, low = place.split("/")
        self._position = (int(high, 16) << 32) + int(low, 16)
        self._seam = None if self._messages else Snapshot.parse(str(snapshot))
        self._losses.ends(self._slot, self._position)
        self.phase, self._claimed_at, self.reason = Phase.CLAIMING, now, SEAM
        self._announce(True)

    def _covered(self) -> bool:
        """Whether polling has done all that a new slot's stream will not show."""
        if self._seam is None:
            return True
        return self._pipeline.pages.caught_up and all(
            stream.target is None and Snapshot.parse(stream.snapshot).includes(self._seam)
            for stream in self._pipeline.pages.streams
        )

    def _claim(self, now: float) -> None:
        if self._pipeline.pages.lanes != EVERY_LANE or not self._covered():
            if self._pipeline.pages.lanes != EVERY_LANE and now > self._claimed_at + CLAIM_S:
                self._lost("other relays keep lanes", announce=True)
            return
        if not self._messages and any(batch.kind in ("stream", "log") for batch in self._pipeline.window):
            return  # what goes out from beside the stream may go on
        if self._seam is not None or self._messages:
            # From here on the position is the promise: before it everything is done.
            stored: Stored = self._run(self._steps.store(self._me, self._position, None, 0, None, under=self._under))
            if not stored.mine:
                raise FencedOff
            if not stored.done:
                raise LogUnreadable("the publication was changed")
            self._seam = None
        if self._connection is None:
            self._connection = self._replicate()
        self._pipeline.again.clear()
        done = None if self._messages else covers(self._pipeline.pages.streams)
        decoder = PgOutput(self._steps.prefix, messages=self._messages, covers=done)
        self._connection.start(self._slot, self._position, self._steps.slots.publication, decoder)
        self._reading = Reading(
            self._me, self._steps, self._run, self._connection, decoder, self._position, self._under, self._settings,
            self._pipeline)
        self.phase = Phase.STARTING

    def _started(self, now: float) -> None:
        assert self._connection is not None
        assert self._reading is not None
        if self._connection.answer() is None:
            return
        self.phase, self.reason = Phase.STREAMING, ""
        self._say()
        self._reading.store(now)

    def fetch(self) -> bool:
        """Takes one page and hands it over. Whether there was anything."""
        found = False

        def take() -> None:
            nonlocal found
            assert self._reading is not None
            found = self._reading.fetch()

        self._guard(time.monotonic(), take)
        return found

    def _watch_budget(self, now: float, slot: str) -> None:
        """Drops a slot that keeps more of the log than it may. One of messages is nobody's to drop: what it keeps is in no
        table, so it is put there before."""
        if not slot or now < self._budget_at:
            return
        self._budget_at = now + BUDGET_S
        retained = self._run(self._steps.slots.retained(slot))
        budget_mb = self._settings.wal_budget_mb
        if self._messages:
            self._near_budget = retained is not None and over_budget(2 * retained, budget_mb)
            return
        if retained is None or not over_budget(retained, budget_mb):
            return
        if self.leads:
            self._lost(f"the WAL budget of {budget_mb} MB was reached", pause_s=BUDGET_PAUSE_S, announce=True)
        if not drop(self._run, self._steps.slots, slot, retained):
            self._budget_at = now + BUDGET_PAUSE_S

    # Ending

    def end(self) -> None:
        """The relay has drained: stores what is done, and leaves the log to others."""
        if self.streaming and self._reading is not None:
            reading, now = self._reading, time.monotonic()
            self._guard(now, lambda: reading.store(now))
        self._close()
        self.phase = Phase.POLLING
        if self.leads:
            self._run(self._steps.leave(self._me))

    def abandon(self) -> None:
        self._close()
