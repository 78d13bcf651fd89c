"""Tormenting: applies drawn faults to the processes of a ground and to its ways, and counts what was really done."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bothends.demo.processes import Process, children_of
from bothends.demo.proxies import Proxies
from tests.acceptance.drawing import DELAY_S, Fault


class Frozen:
    """Processes that are stopped, by handles that no other process can be mistaken for."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._handles: list[int] = []
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                self._handles.append(os.pidfd_open(pid))
        self.count = self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)
        for handle in self._handles:
            os.close(handle)
        self._handles = []

    def _signal(self, number: int) -> int:
        reached = 0
        for handle in self._handles:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)
                reached += 1
        return reached


@dataclass
class _Lasting:
    fault: Fault
    until_s: float
    end: Callable[[], None]


class Tormentor:
    """``tick(now_s)`` begins what is due and ends what is over. ``done`` counts per kind, ``lasting`` names what goes on."""

    def __init__(
        self, faults: Sequence[Fault], processes: Sequence[Process], proxies: Proxies, seed: int, tell: Callable[[str], None]
    ) -> None:
        self._faults = list(faults)
        self._processes, self._proxies, self._tell = list(processes), proxies, tell
        self._rng = random.Random(seed)
        self._lasting: list[_Lasting] = []
        self.done: Counter[str] = Counter()

    @property
    def idle(self) -> bool:
        return not (self._faults or self._lasting)

    @property
    def lasting(self) -> list[str]:
        return [one.fault.name for one in self._lasting]

    def tick(self, now_s: float) -> None:
        for one in [one for one in self._lasting if one.until_s <= now_s]:
            one.end()
            self._lasting.remove(one)
        while self._faults and self._faults[0].at_s <= now_s:
            fault = self._faults.pop(0)
            said = self._begin(fault, now_s)
            if said is not None:
                self.done[fault.name] += 1
                self._tell(f"{fault.name}: {said}")

    def close(self) -> None:
        """Takes everything back that lasts."""
        for one in self._lasting:
            one.end()
        self._faults, self._lasting = [], []

    def _begin(self, fault: Fault, now_s: float) -> str | None:
        """What was done, in words; None: nobody was there to do it to."""
        return self._to_a_process(fault, now_s) if fault.line == "processes" else self._to_a_way(fault, now_s)

    def _to_a_process(self, fault: Fault, now_s: float) -> str | None:
        living = [process for process in self._processes if process.running is not None and process.running.poll() is None]
        if not living:
            return None
        victim = living[int(fault.dice * len(living))]
        if fault.kind == "kill":
            killed = victim.kill(self._rng)
            return None if killed is None else f"{killed.name} ({killed.what}, pid {killed.pid})"
        assert victim.running is not None
        children = children_of(victim.running.pid)
        whole = fault.kind == "stop tree" or not children
        frozen = Frozen([victim.running.pid, *children] if whole else [self._rng.choice(children)])
        self._lasting.append(_Lasting(fault, now_s + fault.length_s, frozen.thaw))
        return f"{victim.name} ({frozen.count} processes) for {fault.length_s} s" if frozen.count else None

    def _to_a_way(self, fault: Fault, now_s: float) -> str:
        way, proxies = fault.line, self._proxies
        if fault.kind == "drop":
            proxies.drop(way)
            return "every connection"
        more = ""
        if fault.kind == "outage":
            proxies.cut(way)
        elif fault.kind == "delay":
            delay_s = DELAY_S[0] + fault.dice * (DELAY_S[1] - DELAY_S[0])
            proxies.delay(way, delay_s)
            more = f"of {delay_s:.2f} s "
        else:
            proxies.silence(way, "requests" if fault.kind == "silent requests" else "answers")
        self._lasting.append(_Lasting(fault, now_s + fault.length_s, lambda: proxies.restore(way)))
        return f"{more}for {fault.length_s} s"
