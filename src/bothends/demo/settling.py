"""Settling: what still waits between the placing of an order and its last effect, looked at from upstream down.

Once no more orders are placed, nothing can move into a place that was seen empty after everything above it; so one
look that finds every place empty means that the run has settled.
"""

from __future__ import annotations

from dataclasses import dataclass

from bothends.demo import names
from bothends.demo.world import World
from bothends.ports import Lag
from bothends.stores.connection import Connection
from bothends.stores.schema import quoted_schema
from bothends.stores.steps import Sql, run

__all__ = ["Waiting", "behind", "look"]


@dataclass(frozen=True)
class Waiting:
    """``outbox``: events that no broker has confirmed; ``log``: bytes of PostgreSQL's log in which there may be some;
    ``lag``: records that no consumer has settled."""

    outbox: int = 0
    lag: int = 0
    parked: int = 0
    dead: int = 0
    log: int = 0

    @property
    def settled(self) -> bool:
        return not (self.outbox or self.log or self.lag or self.parked)

    def __add__(self, other: Waiting) -> Waiting:
        return Waiting(
            self.outbox + other.outbox, self.lag + other.lag, self.parked + other.parked, self.dead + other.dead,
            self.log + other.log,
        )


def look(world: World, marks: dict[str, str] | None = None) -> Waiting:
    """The whole path, in the direction in which events move. Where events are messages, ``marks`` keeps the places of the
    log from one look to the next: a relay that is done up to such a place has published everything that will ever come."""
    from bothends.admin.status import consumer_status, outbox_status

    total = Waiting()
    for producer, topic in (("orders", "orders"), ("payments", "payments")):
        store = world.store(producer)
        connection = store.connect(name="bothends demo")
        try:
            if world.relay_source == "message":  # first: what a relay moves into the table is seen there
                marks = {} if marks is None else marks
                total += Waiting(log=_unread(store.schema, connection, marks, above=total))
            outbox = run(outbox_status(store.admin), connection)
        finally:
            connection.close()
        total += Waiting(outbox=outbox["waiting"] + outbox["held"] + outbox["delayed"], dead=outbox["dead"])
        readers = [consumer for consumer, read in names.CONSUMERS.items() if read == topic]
        for consumer in readers:
            lags = world.broker.lag(world.groups[consumer], [world.topics[topic]])
            total += Waiting(lag=sum(behind(lag) for lag in lags))
        for service in sorted({consumer.partition(".")[0] for consumer in readers}):
            store = world.store(service)
            connection = store.connect(name="bothends demo")
            try:
                consumers = run(consumer_status(store.admin), connection)
            finally:
                connection.close()
            here = {world.groups[consumer] for consumer in readers} | set(readers)
            for row in consumers:
                if row["consumer"] in here:
                    total += Waiting(parked=row["parked"], dead=row["dead"])
    return total


def _unread(schema: str, connection: Connection, marks: dict[str, str], *, above: Waiting) -> int:
    """Bytes of the log up to the mark that no relay is done with; 1 at least while there is no mark. It is set when
    everything above is empty: no event comes after it."""
    if schema not in marks:
        if not above.settled:
            return 1
        marks[schema] = connection.execute(Sql("select pg_current_wal_insert_lsn()::text")).rows[0][0]
    found = connection.execute(Sql(
        "select greatest(pg_wal_lsn_diff(cast(:mark as pg_lsn), coalesce(position, '0/0')), 0)::bigint "
        f"from {quoted_schema(schema)}.relay_log where messages", {"mark": marks[schema]}))
    return int(found.rows[0][0])


def behind(lag: Lag) -> int:
    """Records of one partition that the group has not settled."""
    return lag.high - max(lag.position, lag.low)
