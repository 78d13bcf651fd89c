"""What waits outside the stream: rejected events tried alone, keys released, places probed, delayed events, requests."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bothends.errors import Blame, PublishError
from bothends.ports import Broker
from bothends.relay.batches import ERROR_MAX, Batch, Failure
from bothends.relay.events import Dead, Observe, PlaceAway, PlaceBack, Rejected
from bothends.relay.pipeline import Pipeline
from bothends.relay.probe import Probe
from bothends.relay.records import ATTEMPTS, FLAG, KEY, LANE, SEQ, STATE, TOPIC, Row
from bothends.relay.settings import RelaySettings
from bothends.stores.steps import Steps

__all__ = ["Held"]

AT_ONCE = frozenset({"too_large", "invalid", "unreadable"})
"""Reasons for which trying again cannot help: dead when rejected alone for the first time."""
PLACE_PAUSE_MAX_S = 5.0
PLACES_MAX = 1000
_LOOK_S = 0.1
_WORK_S = 0.25
_HEADS_MAX = 100
_REQUESTS_MAX = 100
_ASIDE_ROWS = 250
"""Rows of one batch from beside the stream; their sizes are not known before they are read."""


@dataclass(slots=True)
class _Place:
    failures: int = 0
    probe_at: float = 0.0


class Held:
    def __init__(
        self, me: int, steps: Any, run: Callable[[Steps[Any]], Any], broker: Broker, settings: RelaySettings, name: str,
        pipeline: Pipeline, observe: Observe,
    ) -> None:
        self._me, self._steps, self._run, self._broker = me, steps, run, broker
        self._settings, self._pipeline, self._observe = settings, pipeline, observe
        self._event_probe = Probe(broker, f"{name}-events", settings.silence_s)
        self._place_probe = Probe(broker, f"{name}-places", settings.silence_s)
        self._suspects: deque[Row] = deque()
        self._places: dict[str, _Place] = {}
        self._back: list[str] = []
        """Topics whose place is back, with rows that still wait."""
        self._work_at = self._look_at = 0.0
        self._delayed = False
        self.trouble: PublishError | None = None
        """What a probe learnt about the broker itself."""

    @property
    def places(self) -> list[str]:
        """Topics whose place is away."""
        return sorted(self._places)

    def gain(self, lanes: int) -> None:
        """New lanes: their places are taken to be away until a probe says otherwise, which it does at once."""
        for topic in self._run(self._steps.held.places(lanes, PLACES_MAX)):
            if topic not in self._back:
                self._places.setdefault(topic, _Place())
        self._pipeline.away = set(self._places)
        self._work_at = 0.0

    def away(self, failure: Failure) -> None:
        """The pipeline or a probe learnt that a place is away."""
        place = self._places.get(failure.topic)
        if place is None:
            self._observe(PlaceAway(failure.topic, failure.error.reason))
            place = self._places[failure.topic] = _Place()
        if failure.topic in self._back:
            self._back.remove(failure.topic)
        place.failures += 1
        pause = min(0.1 * 2.0 ** min(place.failures - 1, 10), PLACE_PAUSE_MAX_S)
        place.probe_at = time.monotonic() + pause * (1 - random.random() / 4)
        self._pipeline.away = set(self._places)

    def forget(self) -> None:
        """After a window was dropped: what was read of held rows may have changed."""
        self._suspects.clear()
        self._work_at = self._look_at = 0.0

    def abandon(self) -> None:
        self._event_probe.abandon()
        self._place_probe.abandon()

    @property
    def busy(self) -> bool:
        """Whether a probe is out."""
        return self._event_probe.row is not None or self._place_probe.row is not None

    def busy_in(self, lanes: int) -> bool:
        """Whether a probe of one of these lanes is out."""
        rows = (self._event_probe.row, self._place_probe.row)
        return any(row is not None and lanes >> row[LANE] & 1 for row in rows)

    # One turn

    def turn(self) -> None:
        """Does what is due; never waits for the broker."""
        self.answers()
        now = time.monotonic()
        if now >= self._work_at or self._pipeline.delayed_soon:
            self._look_for_work(now)
        if not self._pipeline.blocked.lanes and not self._places and not self._back and not self._delayed:
            return
        if self._event_probe.row is None and self._suspects:
            self._try_alone(self._suspects.popleft())
        self._probe_places(now)
        if now < self._look_at or not self._pipeline.room:
            return
        if any(batch.kind in ("held", "delayed") for batch in self._pipeline.window):
            return
        if not (self._release_back() or self._release_heads() or self._send_delayed()):
            self._look_at = now + _LOOK_S

    def answers(self) -> None:
        """Takes the answers of probes that are out."""
        if (event := self._event_probe.answer()) is not None:
            self._judge(*event)
        if (place := self._place_probe.answer()) is not None:
            row, error = place
            if error is None or error.blame is Blame.EVENT:
                self._place_is_back(row[TOPIC])
            self._judge(row, error)

    def _look_for_work(self, now: float) -> None:
        work = self._run(self._steps.held.work(self._pipeline.pages.lanes))
        if work.requests:
            self._grant()
            work = self._run(self._steps.held.work(self._pipeline.pages.lanes))  # what was passed over may block its key again
        self._pipeline.delayed_soon = False
        in_flight = 0
        for batch in self._pipeline.window:
            in_flight |= batch.blocked_lanes
        self._pipeline.blocked.lanes = work.blocked_lanes | in_flight
        due_in_s = work.delayed_in_s
        self._delayed = due_in_s is not None and due_in_s <= 0
        self._work_at = now + min(_WORK_S, max(0.001, due_in_s) if due_in_s is not None else _WORK_S)
        self._pipeline.blocked.forget()

    def _grant(self) -> None:
        """What operators have asked for."""
        for seq, request in self._run(self._steps.held.requests(self._pipeline.pages.lanes, _REQUESTS_MAX)):
            self._suspects.clear()
            if not self._is_out(seq):
                self._pipeline.fenced(self._steps.held.grant(self._me, seq, request))

    def _is_out(self, seq: int) -> bool:
        """Whether this row is being published just now: a request for it is granted when that has ended."""
        probes = (self._event_probe.row, self._place_probe.row)
        if any(row is not None and row[SEQ] == seq for row in probes):
            return True
        return any(row[SEQ] == seq for b in self._pipeline.window if b.kind == "held" for row in b.rows)

    # Rejected events

    def _try_alone(self, row: Row) -> None:
        if row[TOPIC] in self._places or not self._pipeline.pages.lanes >> row[LANE] & 1:
            return
        error = self._event_probe.send(row)
        if error is not None:
            self._judge(row, error)

    def _judge(self, row: Row, error: PublishError | None) -> None:
        """What became of a row that was sent alone."""
        held = self._steps.held
        if error is None:
            self._pipeline.fenced(held.release(self._me, [row[SEQ]]))
            self._pipeline.published += 1
        elif error.blame is Blame.PLACE:
            self.away(Failure(row[TOPIC], error))
        elif error.blame is not Blame.EVENT:
            self.trouble = error
        else:
            policy = self._settings.publish
            attempts = row[ATTEMPTS] + 1
            dead = error.reason in AT_ONCE or policy.exhausted(attempts)
            delay_s = None if dead else policy.delay_s(attempts, random.random())
            passed = dead and policy.then == "pass"
            self._pipeline.fenced(held.retry(
                self._me, row[SEQ], attempts=attempts, delay_s=delay_s, passed=passed, reason=error.reason,
                error=str(error)[:ERROR_MAX],
            ))
            self._observe(Rejected(row[TOPIC], error.reason, attempts))
            if dead:
                self._observe(Dead(row[TOPIC], error.reason, not passed and row[KEY] is not None))
        self._look_at = 0.0

    def _release_heads(self) -> bool:
        """Heads that are due: suspects are queued to be tried alone, keys that only wait are sent in one batch."""
        if not self._pipeline.blocked.lanes or self._suspects or self._event_probe.row is not None:
            return False
        heads = self._run(self._steps.held.due(self._pipeline.pages.lanes, self.places, _HEADS_MAX))
        self._suspects.extend(row for row in heads if row[STATE] == "retrying")
        room = min(self._settings.batch_max, _ASIDE_ROWS)
        rows: list[Row] = []
        seen: set[tuple[str, bytes]] = set()
        for head in heads:
            if head[STATE] != "behind" or room <= 0 or (head[TOPIC], head[KEY]) in seen:
                continue
            seen.add((head[TOPIC], head[KEY]))
            run = self._run(self._steps.held.run(head[LANE], head[TOPIC], head[KEY], room))
            for row in run:
                if row[STATE] != "behind":
                    break
                rows.append(row)
                room -= 1
        if rows:
            self._pipeline.send(Batch("held", rows))
        return bool(rows)

    # Places

    def _probe_places(self, now: float) -> None:
        if self._place_probe.row is not None:
            return
        due = [topic for topic, place in self._places.items() if now >= place.probe_at]
        if not due:
            return
        topic = min(due, key=lambda t: self._places[t].probe_at)
        try:
            state = self._broker.topic(topic)
        except PublishError as error:
            self.trouble = error
            return
        if state.state != "ok":
            away = PublishError(f"topic {topic!r}: {state.state} {state.detail}", blame=Blame.PLACE, reason=state.state)
            self.away(Failure(topic, away))
            return
        waiting = self._run(self._steps.held.waiting(self._pipeline.pages.lanes, topic, _HEADS_MAX))
        free = [row for row, has_blocker in waiting if not has_blocker]
        if not free:
            self._place_is_back(topic)
        elif (refused := self._place_probe.send(free[0])) is not None:
            self._judge(free[0], refused)

    def _place_is_back(self, topic: str) -> None:
        if self._places.pop(topic, None) is not None:
            self._observe(PlaceBack(topic))
            self._back.append(topic)
        self._pipeline.away = set(self._places)
        self._look_at = 0.0

    def _release_back(self) -> bool:
        """Rows of a place that is back, in order; those of keys that wait for another reason join the others there."""
        for topic in list(self._back):
            waiting = self._run(self._steps.held.waiting(self._pipeline.pages.lanes, topic, _ASIDE_ROWS))
            behind = [row[SEQ] for row, has_blocker in waiting if has_blocker]
            if behind:
                self._pipeline.fenced(self._steps.held.get_behind(self._me, behind))
            rows = [row for row, has_blocker in waiting if not has_blocker]
            if rows:
                self._pipeline.send(Batch("held", rows))
            elif not waiting and not any(h.state == "place" for batch in self._pipeline.window for h in batch.holds):
                self._back.remove(topic)
            if waiting:
                return True
        return False

    # Delayed events

    def _send_delayed(self) -> bool:
        if not self._delayed:
            return False
        due = self._run(self._steps.held.delayed_due(self._pipeline.pages.lanes, _ASIDE_ROWS))
        self._delayed = bool(due)
        if not due:
            return False
        copying: set[Any] = set().union(*[batch.blocked for batch in self._pipeline.window])
        batch = Batch("delayed", [])
        for row in due:
            key = (row[TOPIC], row[KEY])
            if row[TOPIC] in self._places:
                batch.hold(row, "place")
            elif row[FLAG] or (row[KEY] is not None and key in copying):
                batch.hold(row, "behind")
            else:
                batch.rows.append(row)
        return self._pipeline.send(batch)
