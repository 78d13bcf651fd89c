"""One registration of a relay, from its first lease to its last: what is known in memory lives and dies with it."""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bothends.core.breaker import Breaker
from bothends.core.relaying import fair_share, lanes_of, pause_s, surplus
from bothends.errors import Blame, PublishError
from bothends.ports import Broker
from bothends.processes import lives, this_process
from bothends.relay.batches import Batch, Failure
from bothends.relay.events import BrokerPaused, BrokerResumed, LanesChanged, Observe, Published, Registered, Stopped
from bothends.relay.held import Held
from bothends.relay.pipeline import FencedOff, Pipeline
from bothends.relay.records import TOPIC
from bothends.relay.rotation import rotate
from bothends.relay.settings import RelaySettings
from bothends.stores.connection import Connection
from bothends.stores.steps import Executor, Steps, run
from bothends.wakeup import Bell

if TYPE_CHECKING:
    from bothends.relay.budget import Leftover
    from bothends.relay.log import Log

__all__ = ["Term"]

LOG = logging.getLogger("bothends.relay")

PING_S = 1.0
_TOUCH_S = 10.0
_ROTATE_S = 2.0
_BUSY_S = 1.0
_REPORT_WAIT_S = 0.005
_GRAIN_S = 0.001
"""Clients wait for whole milliseconds: what is due in less is due."""
_SILENCE_TOPICS_MAX = 20


class Term:
    def __init__(
        self, store_relay: Any, connection: Connection, broker: Broker, settings: RelaySettings, name: str, bell: Bell,
        observe: Observe, former: int | None, clock: Callable[[], float], boot: str,
        replicate: Callable[[], Any] | None = None,
    ) -> None:
        self._steps, self._broker = store_relay, broker
        self._executor: Executor = store_relay.executor(connection)
        self._settings, self._bell, self._observe = settings, bell, observe
        self._clock, self._boot = clock, boot
        self._breaker = Breaker()
        self.me: int = self._run(store_relay.leases.register(
            name=name, pid=os.getpid(), host=socket.gethostname()[:255], lease_s=settings.lease_s, former=former,
            now=clock(), boot=boot, process=this_process(),
            wants=settings.source, source="poll" if replicate is None else "standby",
        ))
        self._pipeline = Pipeline(self.me, store_relay, self._executor, broker, settings, name)
        self._held = Held(self.me, store_relay, self._run, broker, settings, name, self._pipeline, observe)
        self._log: Log | None = None
        if replicate is not None:
            from bothends.relay.log import Log

            self._log = Log(self.me, store_relay, self._run, replicate, settings, self._pipeline, observe)
        self._leftover: Leftover | None = None
        if store_relay.has_log and settings.source != "wal":
            from bothends.relay.budget import Leftover

            self._leftover = Leftover(store_relay, self._run, settings.wal_budget_mb)
        self._renewed_at = time.monotonic()
        self._tick_at = 0.0
        self._fetch_at = 0.0
        self._wait_s = settings.poll_busy_s
        self._last_rows_at = time.monotonic()
        self._touch_at = time.monotonic() + _TOUCH_S
        self._rotate_at = time.monotonic() + _ROTATE_S
        self._leaving = 0
        self._leaving_with: list[Batch] = []
        observe(Registered(self.me))

    def _run(self, steps: Steps[Any]) -> Any:
        return run(steps, self._executor)

    # The loop

    def serve(
        self, stop: threading.Event, ready: threading.Event, stop_timeout_s: float, beat: Callable[[], None]
    ) -> None:
        """Relays until ``stop``, then drains for at most ``stop_timeout_s``. Raises FencedOff when the registration is
        gone, and whatever the database's driver raises."""
        deadline: float | None = None
        while True:
            now = time.monotonic()
            if now >= self._tick_at:
                self._tick(now)
                beat()
                ready.set()
            if stop.is_set():
                deadline = now + stop_timeout_s if deadline is None else deadline
                drained = not self._pipeline.window and not self._held.busy
                if drained or now >= deadline or (self._breaker.open and not self._pipeline.pending()):
                    self._end(drained)
                    return
            self._turn(now, stopping=stop.is_set())

    def _turn(self, now: float, *, stopping: bool) -> None:
        settled = self._pipeline.collect(0)
        if self._pipeline.failure is not None:
            self._recover()
        self._report()
        if self._breaker.open:
            if self._log is not None:
                self._log.turn(now, broker_away=True)
            self._probe_broker(now)
            self._pause(now, stopping)
            return
        if stopping:
            self._held.answers()
        else:
            self._held.turn()
        if self._held.trouble is not None:
            self._broker_failed(self._held.trouble)
            return
        self._watch_silence(now)
        if self._log is not None and not stopping:
            self._log.turn(now, broker_away=False)
        fetched = False
        if not stopping and self._pipeline.room:
            if self._log is not None and self._log.streaming and (self._log.holding or self._pipeline.pages.caught_up):
                fetched = self._read(now)
            if now + _GRAIN_S >= self._fetch_at and not (self._log is not None and self._log.holding):
                fetched = self._fetch(now)
        if not fetched and not settled:
            self._pause(now, stopping)

    def _read(self, now: float) -> bool:
        """A page of the log."""
        assert self._log is not None
        if now - self._renewed_at > self._settings.lease_s / 2:
            self._tick(now)
        return self._log.streaming and self._log.fetch()

    def _fetch(self, now: float) -> bool:
        if now - self._renewed_at > self._settings.lease_s / 2:
            self._tick(now)  # this process stood still: what it remembers may be somebody else's by now
        before = len(self._pipeline.window)
        more = self._pipeline.fetch()
        found = len(self._pipeline.window) > before
        if found:
            self._last_rows_at = now
        if more:
            self._fetch_at = now
            return found
        self._wait_s = pause_s(
            self._wait_s, took_s=time.monotonic() - now, rows=len(self._pipeline.window[-1].rows) if found else 0,
            busy=now - self._last_rows_at < _BUSY_S,
            busy_s=self._settings.poll_busy_s, idle_s=self._settings.poll_idle_s,
        )
        self._fetch_at = now + self._wait_s
        return False

    def _pause(self, now: float, stopping: bool) -> None:
        """Waits for the first of: a report of the broker, the next look at the outbox, a ring, the next tick."""
        until = self._breaker.probe_at if self._breaker.open else self._tick_at if stopping else self._fetch_at
        until = min(self._tick_at, until)
        left = max(0.0, until - time.monotonic())
        if self._pipeline.again:  # the publisher had no room for it: what is waited for is room, not the log
            left = max(left, _REPORT_WAIT_S)
        elif self._pipeline.fresh and self._pipeline.collect(_GRAIN_S):
            return
        if not stopping and self._pause_reading():
            return
        if self._pipeline.window or self._held.busy:
            if self._pipeline.pending() and not self._pipeline.failure:
                if not self._pipeline.room or stopping:
                    left = _REPORT_WAIT_S
                self._pipeline.collect(min(left, _REPORT_WAIT_S))
            else:
                self._bell.wait(0.001)
            if self._bell.rang():
                self._fetch_at = 0.0
            return
        if self._bell.wait(min(left, self._settings.renew_s)) and not self._breaker.open:
            self._fetch_at = 0.0

    def _pause_reading(self) -> bool:
        """Waits for the log. False: there is no log to wait for, or nothing may be taken from it now."""
        log, pipeline = self._log, self._pipeline
        if log is None or not log.open or self._breaker.open or not pipeline.room or pipeline.failure or pipeline.again:
            return False
        waits_s = _GRAIN_S if pipeline.pending() else min(0.05, max(0.0, self._tick_at - time.monotonic()))
        if not log.streaming and not log.holding:
            waits_s = min(waits_s, max(0.0, self._fetch_at - time.monotonic()))
        if log.wait(self._bell, waits_s) and not log.streaming:
            self._fetch_at = 0.0
        return True

    def _report(self) -> None:
        if self._pipeline.published:
            records, self._pipeline.published = self._pipeline.published, 0
            self._observe(Published(records))

    def _end(self, drained: bool) -> None:
        self._report()
        self._held.abandon()
        if self._log is not None:
            self._log.end()
        self._pipeline.close(0.5)
        self._run(self._steps.leases.leave(self.me))
        self._observe(Stopped(self.me, drained))

    def abandon(self) -> None:
        """Drops everything: the registration or the connection is gone."""
        self._held.abandon()
        if self._log is not None:
            self._log.abandon()
        self._pipeline.abandon()

    # Lease and lanes

    def _tick(self, now: float) -> None:
        settings = self._settings
        if self._log is not None:
            self._log.tick(now)
        detail = self._breaker.reason if self._breaker.open else (
            "places away: " + ", ".join(self._held.places[:10]) if self._held.places else "")
        renewed = self._run(self._steps.leases.renew(
            self.me, lease_s=settings.lease_s, state="paused" if self._breaker.open else "ok", detail=detail[:500],
            now=self._clock(), boot=self._boot, wants=settings.source,
            source=self._log.source if self._log is not None else "poll",
            reason=self._log.reason if self._log is not None else "",
        ))
        if not renewed:
            raise FencedOff
        self._renewed_at = now
        self._tick_at = now + settings.renew_s
        self._bury_the_dead()
        if self._leftover is not None:
            self._leftover.watch(now)
        stands_by = self._log is not None and self._log.standby
        live, free = self._run(self._steps.leases.expire(now=self._clock(), boot=self._boot))
        if self._log is not None and self._log.claims:
            live = 1
        mine = self._pipeline.pages.lanes
        if free and not stands_by and mine.bit_count() < fair_share(live) and not self._leaving:
            self._take(fair_share(live) - mine.bit_count())
        elif not self._leaving:
            self._leaving = mine if stands_by else surplus(mine, live)
            self._leaving_with = list(self._pipeline.window)
            self._pipeline.pages.leave(self._leaving)
        if self._leaving and not self._held.busy_in(self._leaving) and not any(
            batch in self._pipeline.window for batch in self._leaving_with
        ):
            self._give_up()
        if now >= self._touch_at and not (self._log is not None and self._log.holding):
            self._touch_at = now + _TOUCH_S
            self._pipeline.touch()
        if now >= self._rotate_at:
            self._rotate_at = now + _ROTATE_S
            rotate(self._steps.storage, self._executor)

    def _bury_the_dead(self) -> None:
        """Ends the registrations of relays whose process on this host is gone: nobody need wait for their leases."""
        for other, process in self._run(self._steps.leases.others(self.me)):
            if lives(process) is False:
                self._run(self._steps.leases.leave(other))

    def _take(self, wanted: int) -> None:
        taken = self._run(self._steps.leases.take(self.me, wanted))
        if not taken:
            return
        mask = 0
        for lane in taken:
            mask |= 1 << lane
        self._pipeline.pages.gain(self._run(self._steps.leases.cursors(mask)))
        self._pipeline.blocked.lanes |= mask
        self._pipeline.blocked.forget()
        self._held.gain(self._pipeline.pages.lanes)
        self._fetch_at = 0.0
        self._observe(LanesChanged(self.me, self._pipeline.pages.lanes.bit_count()))

    def _give_up(self) -> None:
        self._run(self._steps.leases.give_up(self.me, list(lanes_of(self._leaving))))
        self._held.forget()
        self._leaving = 0
        self._leaving_with = []
        self._observe(LanesChanged(self.me, self._pipeline.pages.lanes.bit_count()))

    # Failures

    def _recover(self) -> None:
        LOG.debug("relay %s: going back to the stored cursors", self.me)
        blamed = self._pipeline.recover()
        self._held.forget()
        for failure in blamed:
            if failure.error.blame is Blame.PLACE:
                self._held.away(failure)
            elif failure.error.blame is not Blame.EVENT:
                self._broker_failed(failure.error)
        self._fetch_at = 0.0

    def _broker_failed(self, error: PublishError) -> None:
        self._held.trouble = None
        if not self._breaker.open:
            LOG.warning("the broker cannot be used, nothing is claimed until it answers: %s", error)
        self._breaker.fail(time.monotonic(), random.random(), f"{error.reason}: {error}"[:500])
        self._observe(BrokerPaused(error.reason, self._breaker.failures))

    def _probe_broker(self, now: float) -> None:
        if not self._breaker.due(now):
            return
        try:
            self._broker.ping(PING_S)
        except PublishError as error:
            self._broker_failed(error)
            return
        LOG.info("the broker answers again")
        self._breaker.close()
        self._pipeline.last_report = time.monotonic()
        self._fetch_at = 0.0
        self._observe(BrokerResumed())

    def _watch_silence(self, now: float) -> None:
        """A publisher with records in hand that reports nothing: the broker, a place, or the publisher itself."""
        pipeline = self._pipeline
        if not pipeline.pending() or now - pipeline.last_report < min(PING_S, self._settings.silence_s):
            return
        silent_s = now - pipeline.last_report
        try:
            self._broker.ping(PING_S)
        except PublishError as error:
            self._broker_failed(error)
            return
        if silent_s < self._settings.silence_s:
            self._silence_places()
            return
        pipeline.failure = PublishError(
            f"no report for {silent_s:.0f} s although the broker answers", blame=Blame.BROKER, reason="silent")

    def _silence_places(self) -> None:
        topics: dict[str, None] = {}
        for batch in self._pipeline.window:
            if not batch.done:
                topics.update((row[TOPIC], None) for row in batch.rows)
                break
        for topic in list(topics)[:_SILENCE_TOPICS_MAX]:
            try:
                state = self._broker.topic(topic)
            except PublishError as error:
                self._broker_failed(error)
                return
            if state.state != "ok":
                away = PublishError(f"topic {topic!r}: {state.detail}", blame=Blame.PLACE, reason=state.state)
                self._held.away(Failure(topic, away))
                self._pipeline.failure = PublishError(str(away), blame=Blame.PLACE, reason="not_sent")
