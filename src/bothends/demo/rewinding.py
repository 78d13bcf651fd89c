"""Rewinding: a consumer forgets acknowledgements. Its workers are stopped, its stored position is moved back, they start.

Step by step, so that everything else of the run (other faults too) goes on meanwhile.
"""

from __future__ import annotations

import time

from bothends.demo import names
from bothends.demo.processes import Process
from bothends.demo.world import World
from bothends.errors import BothendsError
from bothends.message import Origin

__all__ = ["Rewinding"]

PATIENCE_S = 30.0
"""A position can be moved when the group's last member has left: Kafka notices a dead one after 6 s."""
_AGAIN_S = 0.25


class Rewinding:
    """``ended()`` takes the next step. Then ``forgotten`` says how many, and ``how`` what was done or why not."""

    def __init__(self, world: World, consumer: str, size: int, workers: Process) -> None:
        self._world, self._consumer, self._size, self._workers = world, consumer, size, workers
        self._until = time.monotonic() + PATIENCE_S
        self._again_at = 0.0
        self.forgotten = 0
        self.how = ""
        workers.begin_stop()

    def ended(self) -> bool:
        now = time.monotonic()
        if not self._workers.has_stopped() or now < self._again_at:
            return False
        try:
            self._rewind()
        except BothendsError as error:
            if now < self._until:
                self._again_at = now + _AGAIN_S
                return False
            self.how = f"{self._consumer} could not lose acknowledgements: {error}"
        self._workers.start()
        return True

    def _rewind(self) -> None:
        world, consumer = self._world, self._consumer
        group, topic = world.groups[consumer], world.topics[names.CONSUMERS[consumer]]
        lag = max(world.broker.lag(group, [topic]), key=lambda lag: lag.position - lag.low)
        to = max(lag.low, lag.position - self._size)
        if lag.position <= to:
            self.how = f"{consumer} had no acknowledgements to lose"
            return
        world.broker.set_position(group, Origin(topic, lag.partition, to))
        self.forgotten = lag.position - to
        self.how = (
            f"{consumer} lost {self.forgotten} acknowledgements (partition {lag.partition}: {lag.position} -> {to})"
        )
