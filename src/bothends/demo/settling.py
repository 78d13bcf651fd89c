"""Settling: what still waits between the placing of an order and its last effect, looked at from upstream down.

Once no more orders are placed, nothing can move into a place that was seen empty after everything above it; so one
look that finds every place empty means that the run has settled.
"""

from __future__ import annotations

from dataclasses import dataclass

from bothends.demo import names
from bothends.demo.world import World
from bothends.ports import Lag
from bothends.stores.steps import run

__all__ = ["Waiting", "behind", "look"]


@dataclass(frozen=True)
class Waiting:
    """``outbox``: events that no broker has confirmed; ``lag``: records that no consumer has settled."""

    outbox: int = 0
    lag: int = 0
    parked: int = 0
    dead: int = 0

    @property
    def settled(self) -> bool:
        return not (self.outbox or self.lag or self.parked)

    def __add__(self, other: Waiting) -> Waiting:
        return Waiting(
            self.outbox + other.outbox, self.lag + other.lag, self.parked + other.parked, self.dead + other.dead
        )


def look(world: World) -> Waiting:
    """The whole path, in the direction in which events move."""
    from bothends.admin.status import consumer_status, outbox_status

    total = Waiting()
    for producer, topic in (("orders", "orders"), ("payments", "payments")):
        store = world.store(producer)
        connection = store.connect(name="bothends demo")
        try:
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


def behind(lag: Lag) -> int:
    """Records of one partition that the group has not settled."""
    return lag.high - max(lag.position, lag.low)
