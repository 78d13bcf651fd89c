"""Reading the log, looked at from outside: since when it is not read, what relays said of their source, and how often."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import psycopg

from tests.acceptance.ground import CONSUMER, Ground

READS = """
    select exists (select from pg_replication_slots s join pg_stat_replication r on r.pid = s.active_pid
    where s.database = current_database() and r.state in ('catchup', 'streaming'))"""
"""Whether a sender streams from a slot of this database: one that is being made does not."""


class Readings:
    """The clock runs from the first ``harm`` until ``look`` sees that the log is read."""

    def __init__(self, here: Ground) -> None:
        self._here = here
        self._since: float | None = None
        self.took_s: list[float] = []

    def harm(self) -> None:
        if self._since is None:
            self._since = time.monotonic()

    def look(self) -> bool:
        """Whether the log is read, as far as its server answers."""
        try:
            reads = bool(self._here.ask(READS))
        except psycopg.OperationalError:
            return False
        if reads and self._since is not None:
            self.took_s.append(time.monotonic() - self._since)
            self._since = None
        return reads


def said(here: Ground) -> dict[str, Any]:
    """Sources and reasons that relays named, as often as they did."""
    sources: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for process in here.fleet.processes.values():
        for line in process.log_lines():
            if line.get("event") == "source":
                sources[line["source"]] += 1
                if line.get("reason"):
                    reasons[line["reason"]] += 1
    return {"sources": dict(sources), "reasons": dict(reasons.most_common())}


def duplicates(here: Ground) -> int:
    """Records of the topic beyond one for each event."""
    group = here.environ.get("BOTHENDS_GROUP_PREFIX", "") + CONSUMER
    records = sum(lag.high - lag.low for lag in here.admin.lag(group, [here.topic]))
    return records - int(here.ask("select count(*) from written"))
