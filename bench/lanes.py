"""Lanes: who has which, simulated. The decisions are those of ``core.relaying``; time is the only thing that is made up."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from bothends.core.relaying import fair_share, lanes_of, mask_of, surplus
from bothends.relay.settings import RelaySettings

__all__ = ["History", "history"]

SETTINGS = RelaySettings()
DEATH_S, JOIN_S, END_S = 20.0, 40.0, 60.0
"""When one relay dies, another one joins, and all is over."""


class History(NamedTuple):
    """Of so many relays that start within a second of each other, one of which dies later, and one more that joins."""

    start_s: float
    """Until every lane has a relay and none has more than its fair share."""
    takeover_s: float
    """From the death until each of the lanes has a relay that lives."""
    join_s: float
    """From the start of one more until no relay has more than its fair share, and each lane has one."""
    handover_s: float
    """The longest that a lane was nobody's because of the one that joined."""
    most: int
    least: int
    """Lanes of one relay, at the end."""
    idle: int
    """Relays without any, at the end."""


@dataclass
class _Relay:
    lease_until: float = 0.0
    mine: int = 0
    leaving: int = 0


@dataclass
class _World:
    """What the database knows."""

    lanes: int
    relays: dict[int, _Relay] = field(default_factory=dict)
    free_since: dict[int, float] = field(default_factory=dict)
    longest_free_s: float = 0.0

    def free(self, lanes: int, now: float) -> None:
        for lane in lanes_of(lanes, self.lanes):
            self.free_since[lane] = now

    def tick(self, me: int, now: float, dead_here: set[int]) -> None:
        """As ``relay.term`` does each ``renew_s``. What is in flight of lanes that are given up is confirmed by the next
        tick."""
        mine = self.relays.setdefault(me, _Relay())
        mine.lease_until = now + SETTINGS.lease_s
        for other in [n for n, relay in self.relays.items() if relay.lease_until < now or n in dead_here]:
            self.free(self.relays.pop(other).mine, now)
        share = fair_share(len(self.relays), self.lanes)
        if self.free_since and mine.mine.bit_count() < share and not mine.leaving:
            taken = list(islice(sorted(self.free_since), share - mine.mine.bit_count()))
            for lane in taken:
                self.longest_free_s = max(self.longest_free_s, now - self.free_since.pop(lane))
            mine.mine |= mask_of(taken)
        elif mine.leaving:
            self.free(mine.leaving, now)
            mine.mine &= ~mine.leaving
            mine.leaving = 0
        elif mine.mine.bit_count() > share:
            mine.leaving = surplus(mine.mine, len(self.relays), self.lanes)

    def settled(self) -> bool:
        share = fair_share(len(self.relays), self.lanes)
        return not self.free_since and all(relay.mine.bit_count() <= share for relay in self.relays.values())


def history(relays: int, lanes: int, seed: int, *, same_host: bool = False) -> History:
    """``same_host``: the others see at once that the process of a relay is gone; else its lease has to end."""
    rng = random.Random(seed)
    world = _World(lanes)
    world.free(mask_of(range(lanes)), 0.0)
    ticks = [(rng.random(), n) for n in range(relays)]
    heapq.heapify(ticks)
    death_s, join_s = DEATH_S + rng.random(), JOIN_S + rng.random()
    heapq.heappush(ticks, (join_s, relays))
    dead, start_s, back_s, joined_s = -1, END_S, END_S, END_S
    lost: set[int] = set()
    handover_s = 0.0
    while ticks[0][0] < END_S:
        now, me = heapq.heappop(ticks)
        if dead < 0 and now >= death_s:
            dead = rng.choice([n for n, relay in world.relays.items() if relay.mine])
            lost = set(lanes_of(world.relays[dead].mine, lanes))
        if me == dead:
            continue
        if me == relays and now == join_s:
            world.longest_free_s = 0.0
        world.tick(me, now, {dead} if same_host else set())
        heapq.heappush(ticks, (now + SETTINGS.renew_s, me))
        if now < death_s:
            start_s = min(start_s, now) if world.settled() and len(world.relays) == relays else start_s
        elif now < join_s:
            if back_s == END_S and dead not in world.relays and not lost & world.free_since.keys():
                back_s = now
        else:
            handover_s = world.longest_free_s
            joined_s = min(joined_s, now) if world.settled() and relays in world.relays else joined_s
    held = [relay.mine.bit_count() for relay in world.relays.values()]
    return History(start_s, back_s - death_s, joined_s - join_s, handover_s, max(held), min(held), held.count(0))
