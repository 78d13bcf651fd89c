"""The relay: publishes what committed transactions left in the outbox, in order per key, and records it when the broker
has confirmed it. Plain synchronous code in the thread that calls ``Relay.run``."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bothends.core.retry import Retry
from bothends.errors import ConfigError, PublishError, StoreUnavailable
from bothends.ports import Broker
from bothends.relay.events import BrokerPaused, Fenced, Observe, StoreLost
from bothends.relay.pipeline import FencedOff
from bothends.relay.settings import RelaySettings
from bothends.relay.term import Term
from bothends.stores import Store
from bothends.stores.connection import Connection
from bothends.stores.faults import fault_of
from bothends.stores.steps import run
from bothends.wakeup import Bell, database_of

__all__ = ["Relay", "RelaySettings"]

LOG = logging.getLogger("bothends.relay")

IDENTITY, BROKER = "cluster", "broker"
"""Names in ``meta``."""
_PAUSE_MAX_S = 2.0
_WARN_EVERY_S = 5.0


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return "unknown"


def _boot_clock() -> float:
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Relay:
    """Relays one outbox to one broker. Any number of relays, on any machines, share an outbox.

    ``publish`` is the policy for events that the broker refuses; it wins over the one in ``settings``. ``observe`` is
    called, in the relay's thread, with the frozen records of ``relay.events``; it must not block.
    """

    def __init__(
        self, store: Store, broker: Broker, *, name: str = "relay", publish: Retry | None = None,
        settings: RelaySettings | None = None, observe: Observe | None = None,
    ) -> None:
        base = settings or RelaySettings()
        values: dict[str, Any] = {f: getattr(base, f) for f in RelaySettings.__slots__}
        if publish is not None:
            values["publish"] = publish
        self._settings = RelaySettings(**values)
        self._store, self._broker, self._name = store, broker, name
        self._observe: Observe = observe or (lambda _: None)
        self.ready = threading.Event()
        """Set when a lease is held for the first time."""
        self.beat_at = time.monotonic()
        """When the loop last came round (``time.monotonic``), for health."""
        self._former: int | None = None
        self._warned_at = 0.0

    def run(
        self, stop: threading.Event, ready: threading.Event | None = None, *, stop_timeout_s: float = 20.0
    ) -> None:
        """Relays until ``stop`` is set, then drains for at most ``stop_timeout_s`` seconds. ``ready`` takes the place of
        the attribute.

        Raises ConfigError where the outbox is on record as another broker's [A19]. An outage of the database or of the
        broker ends nothing: it is waited for.
        """
        self.ready = ready or self.ready
        bell = Bell(database_of(self._store.url, self._store.schema), self._settings.runtime_dir)
        try:
            if self._settings.listen and self._store.dialect == "postgresql":
                bell.listen(self._store.url, self._store.schema)
            self._terms(stop, stop_timeout_s, bell)
        finally:
            bell.close()

    def _terms(self, stop: threading.Event, stop_timeout_s: float, bell: Bell) -> None:
        failures = 0
        while not stop.is_set():
            began = time.monotonic()
            try:
                self._term(stop, stop_timeout_s, bell)
            except FencedOff:
                LOG.warning("this relay was taken for dead and has lost its lanes; it begins anew")
                self._observe(Fenced(self._former or 0))
                failures = 0
                continue
            except StoreUnavailable as error:
                problem: Exception = error
            except PublishError as error:
                problem = error
            except Exception as error:
                if fault_of(error) is None:
                    raise
                problem = error
            else:
                continue
            failures = 1 if time.monotonic() - began > 2 * _PAUSE_MAX_S else failures + 1
            self._pause(stop, problem, failures)

    def _pause(self, stop: threading.Event, problem: Exception, failures: int) -> None:
        pause_s = min(0.05 * 2.0 ** min(failures - 1, 10), _PAUSE_MAX_S) * (1 - random.random() / 4)
        if time.monotonic() - self._warned_at > _WARN_EVERY_S:
            self._warned_at = time.monotonic()
            LOG.warning("the relay cannot work and tries again: %s: %s", type(problem).__name__, problem)
        if isinstance(problem, PublishError):
            self._observe(BrokerPaused(problem.reason, failures))
        else:
            self._observe(StoreLost(type(problem).__name__, pause_s))
        stop.wait(pause_s)

    def _term(self, stop: threading.Event, stop_timeout_s: float, bell: Bell) -> None:
        steps: Any = self._store.relay
        connection = self._store.connect(name=f"bothends {self._name}", factory=steps.connection_factory)
        term: Term | None = None
        try:
            self._check_identity(steps, connection)
            self._check_broker(steps, connection)
            term = Term(
                steps, connection, self._broker, self._settings, self._name, bell, self._observe, self._former,
                _boot_clock, _boot_id(), self._replicate(),
            )
            self._former = term.me
            term.serve(stop, self.ready, stop_timeout_s, self._beat)
            self._former = None
        except BaseException:
            if term is not None:
                term.abandon()
            raise
        finally:
            connection.close()

    def _replicate(self) -> Callable[[], Any] | None:
        """What opens the log, where it is to be read."""
        if self._settings.source == "poll" or self._store.dialect != "postgresql":
            return None
        store: Any = self._store
        return partial(store.replicate, name=f"bothends {self._name} log")

    def _beat(self) -> None:
        self.beat_at = time.monotonic()

    def _check_identity(self, steps: Any, connection: Connection) -> None:
        """Cursors of another database (restored, failed over) mean nothing here: everything counts as unseen."""
        identity = run(steps.leases.identity(), connection)
        if run(steps.leases.stamp(IDENTITY, identity), steps.executor(connection)) == identity:
            return
        connection.begin()
        try:
            if run(steps.leases.rewind_all(IDENTITY, identity), connection):
                LOG.warning("this database was restored or failed over: all stored events are published again")
            connection.commit()
        finally:
            connection.rollback()

    def _check_broker(self, steps: Any, connection: Connection) -> None:
        mine = f"{self._broker.url.partition('://')[0]}:{self._broker.cluster_id()}"
        recorded = run(steps.leases.stamp(BROKER, mine), steps.executor(connection))
        if recorded == mine:
            return
        if not self._settings.adopt:
            raise ConfigError(
                f"the outbox in this database belongs to broker {recorded}, this relay publishes to {mine}: give the "
                "right broker URL, or --adopt to move the outbox to this one"
            )
        run(steps.leases.restamp(BROKER, mine), connection)
