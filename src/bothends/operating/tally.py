"""Tally: what a process did, counted from what relays and workers tell, and logged now and then [M3].

Labels are consumers and outcomes, never ids, keys or texts. What is worth a line of its own (a run that failed, a dead
event, a broker that is away) is logged at once: of one failure, told apart by its fingerprint, a line now and then says how
many there were.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from typing import NamedTuple

from bothends.relay import events as relayed
from bothends.telemetry import logs
from bothends.worker.floor import Delivered, Failed, HandlerStuck

__all__ = ["Tally"]

_log = logs.get("tally")
_AT_ONCE = (relayed.Dead, relayed.PlaceAway, relayed.BrokerPaused, relayed.Fenced)
_GOOD_NEWS = (relayed.PlaceBack, relayed.BrokerResumed)
FAILURE_EVERY_S = 10.0
_FAILURES_MAX = 1000
_ERROR_MAX = 300


class _Seen(NamedTuple):
    """A failure that was logged ``at`` (monotonic seconds), and how many came since."""

    at: float
    since: int


class Tally:
    """``observe`` may be called from any thread; ``run`` is a member of a crew. A line ``counts`` per consumer (and one
    for what was published) holds what came since the last one; the last is written when the process stops."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._lock = threading.Lock()
        self._delivered: dict[str, Counter[str]] = {}
        self._published = 0
        self._failures: dict[tuple[str, str, str], _Seen] = {}

    def observe(self, record: object) -> None:
        if isinstance(record, Delivered):
            with self._lock:
                self._delivered.setdefault(record.consumer, Counter()).update(record.outcomes)
        elif isinstance(record, Failed):
            self._failed(record)
        elif isinstance(record, relayed.Published):
            with self._lock:
                self._published += record.records
        elif isinstance(record, relayed.SourceChanged):
            _log.info("source", extra={"source": record.source, "reason": record.reason or None})
        elif isinstance(record, _AT_ONCE):
            _log.warning(_phrase(record), extra={k: v for k, v in record._asdict().items() if k != "relay"})
        elif isinstance(record, _GOOD_NEWS):
            _log.info(_phrase(record), extra=record._asdict())
        elif isinstance(record, HandlerStuck):
            _log.error("handler stuck: given up", extra={"consumer": record.consumer})

    def _failed(self, record: Failed) -> None:
        which = (record.consumer, record.outcome, record.fingerprint)
        now = time.monotonic()
        with self._lock:
            seen = self._failures.get(which)
            if seen is not None and now - seen.at < FAILURE_EVERY_S:
                self._failures[which] = seen._replace(since=seen.since + 1)
                return
            if len(self._failures) >= _FAILURES_MAX:
                self._failures.clear()
            self._failures[which] = _Seen(now, 0)
        said = {
            "dead": "message dead", "parked": "run failed, it is tried again", "forwarded": "run failed, it is tried again",
            "apart": "batch failed, its messages are run one by one",
        }
        fields = record._asdict() | {"error": record.error[:_ERROR_MAX]}
        if seen is not None and seen.since:
            fields["more_since"] = seen.since
        _log.log(logging.ERROR if record.outcome == "dead" else logging.WARNING, said[record.outcome], extra=fields)

    def run(self, stop: threading.Event, ready: threading.Event) -> None:
        ready.set()
        while not stop.wait(self._every_s):
            self.flush()

    def flush(self) -> None:
        """Logs what was counted since the last time; nothing where nothing happened."""
        with self._lock:
            delivered, self._delivered = self._delivered, {}
            published, self._published = self._published, 0
        if published:
            _log.info("counts", extra={"published": published})
        for consumer, outcomes in sorted(delivered.items()):
            if outcomes:
                _log.info("counts", extra={"consumer": consumer, **outcomes})


def _phrase(record: object) -> str:
    """``PlaceAway``: ``place away``."""
    name = type(record).__name__
    return "".join(f" {c.lower()}" if c.isupper() else c for c in name).strip()
