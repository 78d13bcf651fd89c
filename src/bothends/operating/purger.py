"""Purger: purges by itself, beside the workers of a process, a while after they have started."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from bothends.admin.purge import Purged, consumers, purge_history, purge_inbox
from bothends.admin.retention import keep_of
from bothends.errors import ConfigError, PublishError, StoreUnavailable
from bothends.ports import Broker
from bothends.service import Consumer
from bothends.settings import Settings
from bothends.stores import Store
from bothends.stores.faults import fault_of
from bothends.stores.steps import run
from bothends.telemetry import logs

__all__ = ["Purger"]

_log = logs.get("purger")


class Purger:
    """The inboxes of some consumers of one service, and the history of its database."""

    def __init__(self, store: Store, broker: Broker, mine: Sequence[Consumer], settings: Settings) -> None:
        self._store, self._broker, self._mine, self._settings = store, broker, mine, settings

    def check(self) -> None:
        """Raises ConfigError for a declared retention that is too short. A broker that does not answer now is asked
        again before anything is purged."""
        for consumer in self._mine:
            try:
                keep_of(consumer, self._broker)
            except PublishError as error:
                _log.debug("retention not checked yet: %s", error, extra={
                    "consumer": self._settings.group_prefix + consumer.name})

    def run(self, stop: threading.Event, ready: threading.Event) -> None:
        """Until ``stop``: after the grace period, every ``purge_interval_s``. Outages are waited for."""
        ready.set()
        wait_s = max(self._settings.purge_grace_s, self._settings.purge_interval_s)
        while not stop.wait(wait_s):
            wait_s = self._settings.purge_interval_s
            try:
                self._once(stop)
            except (StoreUnavailable, PublishError, ConfigError) as error:
                _log.warning("not purged: %s", error)
            except Exception as error:
                if fault_of(error) is None:
                    raise
                _log.warning("not purged: %s", error)

    def _once(self, stop: threading.Event) -> None:
        settings, purged = self._settings, Purged()

        def go_on() -> bool:
            return not stop.is_set()

        connection = self._store.connect(name="bothends purge")
        try:
            numbers = {name: number for number, name in run(consumers(self._store.admin), connection)}
            for consumer in self._mine:
                name = settings.group_prefix + consumer.name
                keep_s = keep_of(consumer, self._broker)
                if keep_s is not None and name in numbers:
                    purge_inbox(connection, self._store.admin, numbers[name], name, keep_s,
                                grace_s=settings.purge_grace_s, purged=purged, keep_going=go_on)
            purge_history(connection, self._store.admin, settings.history_keep_days * 86_400.0, purged=purged,
                          keep_going=go_on)
        finally:
            connection.close()
        if any(purged.rows.values()):
            _log.info("purged", extra={**{w.replace(" ", "_"): n for w, n in purged.rows.items() if n},
                                       "longest_s": round(purged.longest_s, 4)})
