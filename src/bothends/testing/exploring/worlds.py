"""Worlds: databases, broker, processes and outside world of one exploration, and one run of them until all is quiet."""

from __future__ import annotations

import asyncio
import gc
import inspect
import random
import uuid
import warnings
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from bothends.errors import ConfigError
from bothends.service import Service
from bothends.stores import Store
from bothends.testing.clock import seconds_to_next_retry
from bothends.testing.databases import memory_url
from bothends.testing.exploring import databases
from bothends.testing.exploring.boundaries import RELAY, WORKER, Crash, Plan
from bothends.testing.exploring.brokers import ExploredBroker, ExploredLog
from bothends.testing.exploring.clock import EPOCH_S, Clock, installed
from bothends.testing.exploring.http import http_answered
from bothends.testing.exploring.memory import Memory, modules_of
from bothends.testing.exploring.outside import WORLDS, OutsideWorld
from bothends.testing.exploring.pictures import Picture
from bothends.testing.exploring.redriving import redrive_dead
from bothends.testing.exploring.tape import Runaway, Tape
from bothends.testing.exploring.workers import Intake, Relaying, is_outage

__all__ = ["ROUNDS_MAX", "Ending", "World"]

ROUNDS_MAX = 200
"""Rounds of publishing and delivering in one run."""
DEATHS_MAX = 20
_DAY_S = 86_400.0
_NOISE_S = 40 * _DAY_S + 4_321.0


@dataclass(frozen=True, slots=True)
class Ending:
    """What a run has come to."""

    tape: Tape
    picture: Picture
    violation: str | None = None
    """What the user's invariant said."""
    runaway: str | None = None
    """Why the run did not come to an end."""


@dataclass(slots=True)
class World:
    """``services`` on one database (``url``). ``prepare`` is given a session and makes the start state, once; each run begins
    with a copy of it.

    Use it as a context manager: inside, the process lives by the exploration's clock.
    """

    services: Sequence[Service]
    prepare: Callable[[Any, databases.Database], None]
    invariant: Callable[[Any], object] | None = None
    url: str | None = None
    seed: int = 0
    modules: Sequence[str] = ()
    clock: Clock = field(default_factory=Clock)
    tape: Tape = field(default_factory=lambda: Tape({}))

    detailed: bool = field(init=False, default=False)
    _begin: Any = field(init=False, default=None)
    _published: _Published | None = field(init=False, default=None)
    _database: databases.Database = field(init=False)
    _memory: Memory = field(init=False)
    _states: list[tuple[Any, dict[str, Any]]] = field(init=False, default_factory=list)
    _runner: asyncio.Runner | None = field(init=False, default=None)
    _chance: random.Random = field(init=False, default_factory=random.Random)
    _files: frozenset[str] = field(init=False, default=frozenset())

    @contextmanager
    def opened(self) -> Iterator[World]:
        """Applies our schema, makes the start state, and keeps a copy of it."""
        found = modules_of(self.services, self.modules)
        self._files = frozenset(file for module in found if (file := getattr(module, "__file__", None)))
        self._chance.seed(self.seed)
        token = uuid.uuid4().hex[:16]  # before the dice are loaded: no two explorations share a database
        url = self.url or memory_url()
        with installed(self.clock, self._chance, found), _quiet(), databases.opened(
            self.services, url, self, token
        ) as database:
            self._database = database
            self._memory = Memory(found, self.services)
            with database.session() as session:
                self.prepare(session, database)
            self._memory = Memory(found, self.services)
            self._states = [(port, port.state()) for port in self._memory.ports]
            self._begin = database.keep()
            try:
                with http_answered(self._memory.ports):
                    yield self
            finally:
                self.tape.over = True
                self._memory.forget()
                for port, state in self._states:
                    port.put(state)
                if self._runner is not None:
                    self._runner.close()

    def is_users(self, file: str) -> bool:
        return file in self._files

    # One run

    def run(self, plan: Plan, *, detailed: bool = False, noise: bool = False, afresh: bool = False) -> Ending:
        """A run from the start state, disturbed as ``plan`` says, until all is quiet. ``noise``: on another day, with other
        dice, so that what depends on them shows. ``afresh``: the database keeps nothing of the runs before."""
        self.tape.over = True
        self.detailed = detailed
        self.tape = tape = Tape(plan, detailed=detailed, is_users=self.is_users)
        self._chance.seed(self.seed + (1_000_003 if noise else 0))
        random.seed(self.seed + (1_000_003 if noise else 0))
        self.clock.restart(EPOCH_S + (_NOISE_S if noise else 0.0))
        published = self._published
        if published is not None and (noise or min(plan, default=0) < len(published.tape.boundaries)):
            published = None
        if published is not None and not self._database.restore(published.copy, afresh=afresh):
            published = self._published = None
        if published is None:
            self._database.restore(self._begin, noise=noise, afresh=afresh)
        self._memory.forget()
        for port, state in self._states:
            port.put(state)
        WORLDS.now = outside = OutsideWorld(tape)
        run = _Run(self, tape, outside, published)
        if published is not None:
            self._chance.setstate(published.chance)
            random.setstate(published.random)
            self.clock.restart(EPOCH_S, published.passed_s)
        runaway: str | None = None
        try:
            run.play(self._note_published if not plan and not noise else None)
        except Runaway as error:
            runaway = str(error)
        except Exception as error:
            if not (plan and is_outage(error)):
                raise
            runaway = f"a fault struck where it was not meant to; does the application decide something by itself? ({error})"
        tape.over = True
        run.close()
        WORLDS.now = None
        violation = None if runaway else self._ask_invariant()
        return Ending(tape, run.picture(), violation, runaway)

    def _note_published(self, run: _Run) -> None:
        """Undisturbed, the first events are out: runs that are disturbed only later may begin here."""
        copy = self._database.keep()
        if copy is None:
            return
        tape = Tape({})
        tape.resume(run.tape)
        self._published = _Published(
            tape, run.log.copy(tape), copy, self.clock.passed_s, self._chance.getstate(), random.getstate(),
        )

    def _ask_invariant(self) -> str | None:
        if self.invariant is None:
            return None
        with self._database.session() as session:
            try:
                answer = self.invariant(session)
            except AssertionError as error:
                return str(error) or "the invariant's assertion failed"
        return "the invariant is false" if answer is False else None

    def run_async(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        if self._runner is None:
            self._runner = asyncio.Runner()
        try:
            return self._runner.run(coroutine)
        except RuntimeError as error:
            if inspect.getcoroutinestate(coroutine) != inspect.CORO_CREATED:
                raise
            coroutine.close()
            raise RuntimeError("a loop is running here: explore() is called from a plain function, not a coroutine") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """What SQLAlchemy says of connections of dead processes, which nobody gives back."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The garbage collector is trying to clean up")
        yield
        gc.collect()


@dataclass(frozen=True, slots=True)
class _Published:
    """A run after its first pass of the relay, when nobody but the database and the broker holds anything."""

    tape: Tape
    log: ExploredLog
    copy: Any
    passed_s: float
    chance: Any
    random: Any


class _Run:
    """The processes of one run and their deaths."""

    def __init__(self, world: World, tape: Tape, outside: OutsideWorld, published: _Published | None) -> None:
        self._world, self.tape, self._outside = world, tape, outside
        self._clock, self._database = world.clock, world._database
        self.log = ExploredLog(tape) if published is None else published.log.copy(tape)
        self._broker = ExploredBroker(self.log)
        self._resumed = published is not None
        if published is not None:
            tape.resume(published.tape)
        self._intakes: list[Intake] = []
        self._lifespans: list[AbstractAsyncContextManager[Any]] = []
        self._lives = self._deaths = 0
        self._redriven = False
        self._consumers = [
            consumer for service in world.services for consumer in service.consumers.values() if consumer.handlers
        ]
        for consumer in self._consumers:
            for topic in consumer.topics:
                self._broker.create_topic(topic, 1)
                if consumer.retry.mode == "topic":
                    self._broker.create_topic(f"{topic}.retry", 1)

    def play(self, published: Callable[[_Run], None] | None) -> None:
        """Until all is quiet. ``published`` is told when the relay has made its first pass."""
        for round in range(ROUNDS_MAX):
            resumed = round == 0 and self._resumed
            moved = resumed or self._living(RELAY, self._relay)
            if round == 0 and published is not None:
                published(self)
            moved = self._living(WORKER, self._work) or moved
            if moved or self._wait():
                continue
            if not self._living(WORKER, self._release) and not self._redrive():
                return
        raise Runaway(f"nothing comes to rest in {ROUNDS_MAX} rounds: do two consumers answer each other?")

    def _living(self, process: str, do: Callable[[], bool]) -> bool:
        """Does ``do`` in a process, again from the start of a new one wherever it dies."""
        died = False
        while True:
            self.tape.process = process
            try:
                return do() or died
            except BaseException as error:
                # What a dead process still says (its driver is gone, say) is its death as well.
                if not (isinstance(error, Crash) or (self.tape.dead and isinstance(error, Exception))):
                    raise
                died = True
                self._deaths += 1
                if self._deaths > DEATHS_MAX:
                    raise Runaway("the process dies again and again") from None
                self._bury(process)

    def _bury(self, process: str) -> None:
        """The operating system's part: connections end, memory is gone, leases run out."""
        tape = self.tape
        tape.running = False
        if process == WORKER:
            for intake in self._intakes:
                intake.bury()
            self._intakes.clear()
            self._lifespans.clear()
            if lost := self._world._memory.changed():
                tape.mark("forgets", ", ".join(lost[:3]))
            self._world._memory.forget()
            self._database.drop_users()
        self._database.end(process, self._world.run_async, died=True)
        tape.revive()
        tape.mark("starts", "starts again")
        self._clock.forward(self._database.lease_s + 1.0)

    # The relay

    def _relay(self) -> bool:
        return any([self._relay_from(store) for store in self._database.stores])

    def _relay_from(self, store: Store) -> bool:
        database = self._database
        if database.due(store) == 0:
            return False
        for topic in database.topics(store):
            self._broker.create_topic(topic, 1)
        publish = next(service.publish for service in self._world.services if database.store_of(service) is store)
        Relaying(store, self._broker, publish, self._clock).relay(lambda: database.due(store) == 0)
        return True

    # The worker

    def _work(self) -> bool:
        self._start()
        moved = False
        for intake in self._intakes:
            while intake.deliver_one():
                moved = True
            moved = intake.drain() or moved
        return moved

    def _start(self) -> None:
        if self._intakes:
            return
        self._lives += 1
        world = self._world
        resources = {service.name: self._enter(service) for service in world.services}
        made: list[Intake] = self._intakes
        for consumer in self._consumers:
            made.append(Intake(
                consumer, self._database.store_of(consumer.service), self._broker, self.tape, self._clock, self._lives,
                lease_s=self._database.lease_s, resources=resources[consumer.service.name], run_async=world.run_async,
                changed=world._memory.changed if world.detailed else lambda: (),
            ))
        if len(made) != len(self._consumers):
            raise ConfigError("the worker did not start all of its consumers")

    def _enter(self, service: Service) -> Any:
        if service.lifespan is None:
            return None
        lifespan = service.lifespan()
        self._lifespans.append(lifespan)
        return self._world.run_async(lifespan.__aenter__())

    def _release(self) -> bool:
        return any([intake.release() for intake in self._intakes])

    # Time, and what an operator does

    def _wait(self) -> bool:
        """Moves the clock to the next retry. Whether there is one."""
        waits = [intake.next_due_s() for intake in self._intakes]
        for store in self._database.stores:
            numbers = [intake.plan.number for intake in self._intakes if intake.store is store]
            waits.append(self._database.ask(seconds_to_next_retry(store, numbers)))
            waits.append(self._database.next_delayed_s(store))
        due = [wait for wait in waits if wait is not None]
        if not due:
            return False
        # What is due and does not move is leased by somebody who is gone.
        by_s = min(due) + 0.01 if min(due) > 0.02 else 1.0
        self._clock.forward(by_s)
        return True

    def _redrive(self) -> bool:
        """Once, in a disturbed run: what the disturbance has made a dead letter is redriven."""
        if self._redriven or not self.tape.applied:
            return False
        self._redriven = True
        return redrive_dead(self._database)

    # The end

    def picture(self) -> Picture:
        return self._database.picture(self._consumers, self._broker, self._outside.calls)

    def close(self) -> None:
        for intake in self._intakes:
            intake.bury()
        self._intakes.clear()
        self._lifespans.clear()
        for process in (RELAY, WORKER):
            self._database.end(process, self._world.run_async, died=False)

