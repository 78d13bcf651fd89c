"""Several processes in one state machine: they go on, freeze, die, stop and are started, whatever they are."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.models.brokers import SimulatedBroker, SimulatedLog
from tests.models.grounds import Ground
from tests.models.simulation import Process, SimulatedStore, Simulation

__all__ = ["KEYS", "LEASE_S", "After", "Several", "adds", "afters", "keys"]

LEASE_S = 4.0
SESSION_S = 6.0
"""After so long a broker takes a silent member for dead."""
PROCESSES_MAX = 3
QUIET_TURNS = 60
QUIET_POINTS = 200
"""Of each turn; all processes together."""

KEYS = ("k1", "k2", "k3")
keys = st.sampled_from(KEYS)
adds = st.lists(st.tuples(keys, st.integers(0, 9)), max_size=4)


@dataclass(frozen=True)
class After:
    """What follows on trouble. Hypothesis leaves whole rules out of an example, so every rule lets things go on."""

    events: list[tuple[str, int]]
    seconds: float
    rounds: int
    points: int


afters = st.builds(
    After, adds, st.sampled_from([0.0, 0.0, 0.0, 1.0, LEASE_S + 1.0, 11.0]), st.integers(0, 30), st.integers(1, 12))


class Several(RuleBasedStateMachine):
    """Rules let things happen; invariants are the promises; the end is when all is quiet again."""

    ground_class: Any = Ground

    def __init__(self) -> None:
        super().__init__()
        self._stack = ExitStack()
        self.opened = False

    def open(self, seed: int, topics: tuple[str, ...], partitions: int) -> None:
        self.ground_class.prepare()  # before the clock is the simulation's: all examples begin alike
        self.simulation = Simulation(seed)
        self.simulation.open()
        self._stack.callback(self.simulation.close)
        self.ground = self.ground_class(self.simulation)
        self._stack.callback(self.ground.close)
        self.simulation.on_forward = self.ground.forward
        self.log = SimulatedLog(self.simulation)
        for topic in topics:
            self.log.create(topic, partitions)
        self.broker = SimulatedBroker(self.log, self.simulation)
        self.store = SimulatedStore(self.ground.store, self.simulation)
        self.running: list[Process] = []
        self.frozen: set[str] = set()
        self.disturbances = 0
        """Deaths, freezes and leases that ran out."""
        self.opened = True

    # What a model says of itself

    def start_one(self) -> Process:
        raise TypeError("a model says what it starts")

    def add_all(self, events: list[tuple[str, int]]) -> None:
        """New events, where there may be more."""

    def check(self) -> None:
        """The promises, at any time."""

    def heal(self) -> None:
        """Nothing is in the way any more."""

    def help_on(self) -> None:
        """What an operator does at the end, again and again."""

    def left(self) -> str:
        """What is not done yet, in words."""
        raise TypeError("a model says when all is done")

    # Processes

    @property
    def alive(self) -> list[Process]:
        self.running = [process for process in self.running if not process.over]
        return self.running

    @property
    def moving(self) -> list[Process]:
        return [process for process in self.alive if process.name not in self.frozen]

    @property
    def nobody_writes(self) -> bool:
        """On SQLite a process that stands within a transaction holds the file."""
        return self.ground.writers_max > 1 or not any(process.writes for process in self.alive)

    def after(self, after: After) -> None:
        self.add_all(after.events)
        self.forward(after.seconds)
        for _ in range(after.rounds):
            for process in self.moving:
                process.step(after.points)

    def forward(self, seconds: float) -> None:
        self.simulation.forward(seconds)
        self.disturbances += seconds > LEASE_S

    @rule(after=afters)
    def go_on(self, after: After) -> None:
        self.after(after)

    @precondition(lambda self: len(self.alive) < PROCESSES_MAX)
    @rule()
    def start(self) -> None:
        self.running.append(self.start_one())

    @precondition(lambda self: self.moving)
    @rule(which=st.integers(0, 9), points=st.integers(1, 60))
    def step(self, which: int, points: int) -> None:
        self.moving[which % len(self.moving)].step(points)

    @precondition(lambda self: self.alive)
    @rule(which=st.integers(0, 9), after=afters)
    def freeze(self, which: int, after: After) -> None:
        """A process that is frozen in a write on SQLite is killed by its supervisor: nothing else would go on."""
        process = self.alive[which % len(self.running)]
        if process.writes and self.ground.writers_max == 1:
            process.kill()
        else:
            self.frozen.add(process.name)
        self.disturbances += 1
        self.after(after)

    @precondition(lambda self: self.frozen)
    @rule(which=st.integers(0, 9), points=st.integers(1, 60), after=afters)
    def thaw(self, which: int, points: int, after: After) -> None:
        name = sorted(self.frozen)[which % len(self.frozen)]
        self.frozen.discard(name)
        self.simulation.processes[name].step(points)
        self.after(after)

    @precondition(lambda self: self.alive)
    @rule(which=st.integers(0, 9), after=afters)
    def kill(self, which: int, after: After) -> None:
        self.alive[which % len(self.running)].kill()
        self.disturbances += 1
        self.after(after)

    @precondition(lambda self: self.alive)
    @rule(which=st.integers(0, 9), after=afters)
    def stop(self, which: int, after: After) -> None:
        self.alive[which % len(self.running)].stopping.set()
        self.after(after)

    # Promises, and the end

    @invariant()
    def promises(self) -> None:
        if self.opened:
            assert not self.simulation.errors, self.simulation.errors[0]
            self.check()

    def teardown(self) -> None:
        try:
            if self.opened and sys.exc_info()[0] is None:  # nothing has gone wrong yet
                self._come_to_rest()
        finally:
            self._stack.close()

    def _come_to_rest(self) -> None:
        """Those that are not frozen finish everything; those that are can only do harm then."""
        self.heal()
        if not [process for process in self.moving if not process.stopping.is_set()]:
            self.start()
        self._quiet("with others frozen" if self.frozen else "")
        self.frozen.clear()
        self._quiet("after all")

    def _quiet(self, when: str) -> None:
        for _ in self._turns():
            self.promises()
            if not self.left():
                return
        raise AssertionError(f"it does not come to rest {when}: {self.left()}")

    def _turns(self) -> Iterator[None]:
        for turn in range(QUIET_TURNS):
            moving = self.moving
            for process in moving:
                process.step(QUIET_POINTS // len(moving))
            if turn % 4 == 3 and self.nobody_writes:
                self.forward(1.0)
                self.help_on()
            yield
