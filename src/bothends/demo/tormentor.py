"""Tormentor: carries out the plan of faults while the run goes on, and counts what was really done."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from bothends.demo.faults import Fault
from bothends.demo.forgetful import Forgetting
from bothends.demo.outages import CutOutage, LockOutage, Outage
from bothends.demo.processes import Fleet
from bothends.demo.proxies import Proxies
from bothends.demo.report import Report
from bothends.demo.rewinding import Rewinding
from bothends.demo.world import World

__all__ = ["Tormentor"]


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
        self._rewinding: Rewinding | None = None
        self._given_up: list[str] = []
        self.kills = self.acks_lost = self.outages = self.done = 0

    @property
    def idle(self) -> bool:
        return not (self._faults or self._outage or self._forgetting or self._rewinding)

    def not_done(self) -> list[str]:
        """What was planned and could not be applied, in words."""
        return [f"not applied: {what}" for what in self._given_up]

    def close(self) -> None:
        if self._outage is not None:
            self._outage[1].end()
            self._outage = None
        if self._forgetting is not None:
            self._forgetting.close(go_on=False)
            self._forgetting = None

    def tick(self, progress: float) -> None:
        self._tend_outage()
        self._tend_forgetting(progress)
        self._tend_rewinding(progress)
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
        if self._outage is not None or self._forgetting is not None or self._rewinding is not None:
            return False  # one after another; kills go on
        if fault.act == "rewind":
            return self._begin_rewinding(fault)
        if fault.act == "forget":
            return self._begin_forgetting(fault)
        return self._begin_outage(fault, progress)

    def _kill(self, fault: Fault, progress: float) -> bool:
        killed = self._fleet.processes[fault.target].kill(self._rng)
        if killed is None:  # it is just being started again
            return False
        self.kills += 1
        self._report.note(f"{progress:4.0%}  SIGKILL {killed.name} ({killed.what}, pid {killed.pid})")
        return True

    def _begin_rewinding(self, fault: Fault) -> bool:
        """Not before its consumer has handled something, and not while its workers are down already."""
        workers = self._fleet.processes[f"work-{fault.target.partition('.')[0]}"]
        if not workers.wanted:
            return False
        self._rewinding = Rewinding(self._world, fault.target, fault.size, workers)
        return True

    def _tend_rewinding(self, progress: float) -> None:
        if self._rewinding is None or not self._rewinding.ended():
            return
        over, self._rewinding = self._rewinding, None
        if over.forgotten:
            self.acks_lost += 1
            self._report.note(f"{progress:4.0%}  {over.how}")
        else:
            self._give_up(over.how)

    def _begin_forgetting(self, fault: Fault) -> bool:
        """The relays make room for one that dies between the broker's confirmation and the storing of its cursor."""
        relays = [process for name, process in self._fleet.processes.items() if name.startswith("relay")]
        self._forgetting = Forgetting(fault.target, relays, self._environ, self._world.folder)
        return True

    def _tend_forgetting(self, progress: float) -> None:
        if self._forgetting is None or not self._forgetting.ended():
            return
        records, self._forgetting = self._forgetting.close(), None
        if records:
            self.acks_lost += 1
            self._report.note(f"{progress:4.0%}  a relay died knowing that {records} events were confirmed")
        else:
            self._give_up("a relay that dies with a confirmation: there was nothing to publish")

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
