"""The relay of a harness: the product's own, in the thread of the test, for as long as something waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from bothends.core.retry import Retry
from bothends.message import Record
from bothends.ports import Broker
from bothends.relay import Relay, RelaySettings
from bothends.stores import Store
from bothends.stores.steps import Sql, Steps
from bothends.testing.clock import table
from bothends.testing.databases import Database

__all__ = ["Publishing", "added_ids", "records_of"]

PASS_MAX_S = 30.0
"""Real seconds that one pass may take; a memory broker needs none."""
_COUNT_MAX = 1_000
_NEWEST_MAX = 100_000
_PAGE = 1_000


class Publishing:
    """Publishes what waits in one database."""

    def __init__(self, database: Database, broker: Broker, publish: Retry) -> None:
        self._database, self._broker = database, broker
        # Each harness has a broker of its own; a database may have seen another one before.
        self._relay = Relay(database.store, broker, name="harness", settings=RelaySettings(publish=publish, adopt=True))

    def run(self) -> bool:
        """Relays until nothing is due. Whether anything was. Raises AssertionError after ``PASS_MAX_S``."""
        stop = _UntilIdle(lambda: self._database.run(_due(self._database.store)) == 0)
        self._relay.run(stop, stop_timeout_s=PASS_MAX_S)
        return stop.worked

    def topics(self) -> list[str]:
        """The topics of the events that wait, by their first one. Whoever adds to a topic has not declared it before."""
        return self._database.run(_topics(self._database.store))


def records_of(broker: Broker, topic: str, offset: int = 0) -> Iterator[Record]:
    """Everything in a topic of one partition, from ``offset`` on."""
    while page := broker.read(topic, partition=0, offset=offset, max_records=_PAGE):
        yield from page
        offset = page[-1].origin.offset + 1


class _UntilIdle(threading.Event):
    """Set as soon as nothing is due."""

    def __init__(self, idle: Callable[[], bool]) -> None:
        super().__init__()
        self._idle = idle
        self._deadline = time.monotonic() + PASS_MAX_S
        self.worked = False

    def is_set(self) -> bool:
        if self._idle():
            return True
        self.worked = True
        if time.monotonic() > self._deadline:
            raise AssertionError(f"the outbox does not get empty within {PASS_MAX_S:.0f} s")
        return False


def _now(store: Store) -> str:
    return "clock_timestamp()" if store.dialect == "postgresql" else "(julianday('now') - 2440587.5) * 86400.0"


def _due(store: Store) -> Steps[int]:
    """How many events could be published now."""
    now = _now(store)
    if store.dialect == "postgresql":
        waiting = yield store.admin.waiting(_COUNT_MAX, _COUNT_MAX)
    else:
        waiting = yield Sql(
            f"select '', count(*) from {table(store, 'outbox')} where deliver_at is null or deliver_at <= {now}"
        )
    found = sum(int(row[1]) for row in waiting.rows)
    for name, column in (("delayed", "deliver_at"), ("held", "next_at")):
        result = yield Sql(f"select count(*) from {table(store, name)} where {column} <= {now}")
        found += int(result.rows[0][0])
    return found


def _topics(store: Store) -> Steps[list[str]]:
    result = yield Sql(f"select topic from {table(store, 'outbox')} group by topic order by min(seq) limit {_COUNT_MAX}")
    return [str(topic) for (topic,) in result.rows]


def added_ids(store: Store) -> Steps[list[str]]:
    """The ids of the newest events in the outbox, in the order of ``add``."""
    result = yield Sql(
        f"select id from (select id, seq from {table(store, 'outbox')} order by seq desc limit {_NEWEST_MAX}) newest"
        f" order by seq"
    )
    return [str(id) for (id,) in result.rows]
