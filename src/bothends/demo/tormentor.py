"""Tormentor: carries out the plan of faults while the run goes on, and counts what was really done."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence

from bothends.demo import names
from bothends.demo.faults import Fault
from bothends.demo.forgetful import Forgetting
from bothends.demo.outages import CutOutage, LockOutage, Outage
from bothends.demo.processes import Fleet
from bothends.demo.proxies import Proxies
from bothends.demo.report import Report
from bothends.demo.world import World
from bothends.errors import BothendsError
from bothends.message import Origin

__all__ = ["Tormentor"]

_REWIND_PATIENCE_S = 30.0
"""A group's position can be moved when its last member has left: Kafka notices a dead one after 6 s."""
_SECOND_S = 0.2


class Tormentor:
    """``tick(progress)`` does what is due. ``idle`` once everything was done or given up on."""

    def __init__(
        self, faults: Sequence[Fault], world: World, fleet: Fleet, proxies: Proxies | None,
        environ: Mapping[str, str], report: Report, rng: random.Random,
    ) -> None:
        self._faults = list(faults)
        self._world, self._fleet, self._proxies = world, fleet, proxies
        self._environ, self._report, self._rng = environ, report, rng
        self._outage: tuple[str, Outage] | None = None
        self._forgetting: Forgetting | None = None
        self._given_up: list[str] = []
        self.kills = self.acks_lost = self.outages = self.done = 0

    @property
    def idle(self) -> bool:
        return not self._faults and self._outage is None and self._forgetting is None

    def not_done(self) -> list[str]:
        """What was planned and could not be applied, in words."""
        return [f"not applied: {what}" for what in self._given_up]

    def close(self) -> None:
        if self._outage is not None:
            self._outage[1].end()
            self._outage = None
        if self._forgetting is not None:
            self._forgetting.close()
            self._forgetting = None

    def tick(self, progress: float) -> None:
        self._tend_outage()
        self._tend_forgetting(progress)
        later = []
        for fault in self._faults:
            if fault.at <= progress and self._apply(fault, progress):
                self.done += 1
            else:
                later.append(fault)
        self._faults = later

    def _apply(self, fault: Fault, progress: float) -> bool:
        """Whether it is over and done with; False: later."""
        if fault.act == "kill":
            return self._kill(fault, progress)
        if self._outage is not None or self._forgetting is not None:  # these need the broker, or quiet relays
            return False
        if fault.act == "rewind":
            return self._rewind(fault, progress)
        if fault.act == "forget":
            self._begin_forgetting(fault)
            return True
        return self._begin_outage(fault, progress)

    def _kill(self, fault: Fault, progress: float) -> bool:
        killed = self._fleet.processes[fault.target].kill(self._rng)
        if killed is None:  # it is just being started again
            return False
        self.kills += 1
        self._report.note(f"{progress:4.0%}  SIGKILL {killed.name} ({killed.what}, pid {killed.pid})")
        return True

    def _rewind(self, fault: Fault, progress: float) -> bool:
        """Stops the consumer's workers, moves its stored position back, starts them."""
        group, topic = self._world.groups[fault.target], self._world.topics[names.CONSUMERS[fault.target]]
        workers = self._fleet.processes[f"work-{fault.target.partition('.')[0]}"]
        broker = self._world.broker
        workers.stop()
        try:
            lag = max(broker.lag(group, [topic]), key=lambda lag: lag.position - lag.low)
            if lag.position <= lag.low:  # nothing was read yet
                return progress >= 1 and self._give_up("a lost position: nothing was ever read")
            to = max(lag.low, lag.position - fault.size)
            deadline = time.monotonic() + _REWIND_PATIENCE_S
            while True:
                try:
                    broker.set_position(group, Origin(topic, lag.partition, to))
                    break
                except BothendsError as error:
                    if time.monotonic() > deadline:
                        return self._give_up(f"a lost position of {fault.target}: {error}")
                    time.sleep(_SECOND_S)
        finally:
            workers.start()
        self.acks_lost += 1
        self._report.note(
            f"{progress:4.0%}  {fault.target} forgets {lag.position - to} acknowledgements "
            f"(partition {lag.partition}: {lag.position} -> {to})"
        )
        return True

    def _begin_forgetting(self, fault: Fault) -> None:
        """The relays make room for one that dies between the broker's confirmation and the storing of its cursor."""
        for name, process in self._fleet.processes.items():
            if name.startswith("relay"):
                process.stop()
        self._forgetting = Forgetting(fault.target, self._environ, self._world.folder)

    def _tend_forgetting(self, progress: float) -> None:
        if self._forgetting is None or not self._forgetting.ended():
            return
        records, self._forgetting = self._forgetting.close(), None
        if records:
            self.acks_lost += 1
            self._report.note(f"{progress:4.0%}  a relay died knowing that {records} events were confirmed")
        else:
            self._give_up("a relay that dies with a confirmation: there was nothing to publish")
        for name, process in self._fleet.processes.items():
            if name.startswith("relay"):
                process.start()

    def _begin_outage(self, fault: Fault, progress: float) -> bool:
        what = fault.act.removesuffix(" outage")
        if files := self._world.lock_files(what):
            self._outage = what, LockOutage(files)
        elif self._proxies is not None and what in self._proxies.addresses:
            self._outage = what, CutOutage(self._proxies, what)
        else:
            return self._give_up(f"the outage of the {what}: the URL names no single host and port")
        self._report.note(f"{progress:4.0%}  the {what} is away")
        return True

    def _tend_outage(self) -> None:
        if self._outage is None or not self._outage[1].ended():
            return
        (what, outage), self._outage = self._outage, None
        if outage.happened:
            self.outages += 1
            self._report.note(f"      the {what} is back")
        else:
            self._give_up(f"the outage of the {what}: its lock could not be had")

    def _give_up(self, what: str) -> bool:
        self._given_up.append(what)
        return True
