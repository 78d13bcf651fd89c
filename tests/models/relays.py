"""Several relays over one outbox, as a state machine. See ``docs/adr/0011-models-of-several.md``."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from bothends import Retry, Service, event
from bothends.admin import outbox as operator
from bothends.admin.acts import Act, in_transaction
from bothends.relay import Relay, RelaySettings
from bothends.stores.postgresql.relay_storage import CHILD_ROWS
from tests.models.brokers import Mood, number_of
from tests.models.grounds import PostgresqlGround
from tests.models.several import KEYS, LEASE_S, PROCESSES_MAX, After, Several, adds, afters, keys
from tests.models.simulation import Process, Simulation

TOPICS = ("model.a", "model.b")
EVENTS_MAX = 30
ACT = Act("model")


@event("model.happened", key="key")
@dataclass(frozen=True)
class Happened:
    key: str
    number: int


@dataclass
class Event:
    number: int
    topic: str
    key: str
    added_at: int
    transaction: int
    committed_at: int | None = None
    due_s: float | None = None
    exempt: bool = False
    """An operator let its key go on without it, or it was passed over."""


@dataclass
class Producer:
    """One open transaction."""

    connection: Any
    number: int
    events: list[Event] = field(default_factory=list)


class Bell:
    """A relay's, which nobody rings."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def wait(self, timeout_s: float) -> bool:
        self._simulation.wait(timeout_s)
        return False

    def rang(self) -> bool:
        return False


class Relays(Several):
    @initialize(seed=st.integers(0, 2**16), then=st.sampled_from(["hold", "pass"]), batch=st.sampled_from([2, 16, 2000]),
                relays=st.integers(1, PROCESSES_MAX), events=adds)
    def begin(self, seed: int, then: Any, batch: int, relays: int, events: list[tuple[str, int]]) -> None:
        self.open(seed, TOPICS, partitions=2)
        self.settings = RelaySettings(
            publish=Retry(attempts=3, first_s=0.1, then=then), lease_s=LEASE_S, batch_max=batch, in_flight_max=2)
        self.service = Service("model")
        self.events: dict[int, Event] = {}
        self.producers: list[Producer] = []
        self.order = 0
        self.seen: dict[tuple[str, int], int] = {}
        self.first: dict[int, float] = {}
        for _ in range(relays):
            self.start()
        self.add_all(events)

    def start_one(self) -> Process:
        def main(process: Process) -> None:
            relay = Relay(self.store, self.broker, name=process.name, settings=self.settings)
            bell: Any = Bell(self.simulation)
            relay._terms(process.stopping, 20.0, bell)

        return self.simulation.start("relay", main)

    # Producers

    def _now(self) -> int:
        self.order += 1
        return self.order

    @precondition(lambda self: len(self.producers) < self.ground.writers_max and self.nobody_writes)
    @rule()
    def open_transaction(self) -> None:
        connection = self.ground.connect()
        connection.begin()
        self.producers.append(Producer(connection, self._now()))

    @precondition(lambda self: len(self.events) < EVENTS_MAX and (self.producers or self.nobody_writes))
    @rule(which=st.integers(0, 9), key=keys, topic=st.integers(0, 9), count=st.integers(1, 3),
          delay_s=st.sampled_from([None] * 9 + [2.0]))
    def add(self, which: int, key: str, topic: int, count: int, delay_s: float | None) -> None:
        """Into an open transaction, else into one of its own."""
        alone = not self.producers
        if alone:
            self.open_transaction()
        producer = self.producers[which % len(self.producers)]
        for _ in range(count):
            number = len(self.events) + 1
            made = Event(number, TOPICS[topic % 2], key, self._now(), producer.number)
            delay = None
            if delay_s is not None:
                delay, made.due_s = timedelta(seconds=delay_s), self.simulation.clock.now_s() + delay_s
            self.service.outbox.add(producer.connection.driver, Happened(key, number), topic=made.topic, delay=delay)
            self.events[number] = made
            producer.events.append(made)
        if alone:
            self.commit(0)

    @precondition(lambda self: self.producers)
    @rule(which=st.integers(0, 9))
    def commit(self, which: int) -> None:
        producer = self.producers.pop(which % len(self.producers))
        producer.connection.commit()
        for made in producer.events:
            made.committed_at = self._now()

    @precondition(lambda self: self.producers)
    @rule(which=st.integers(0, 9))
    def roll_back(self, which: int) -> None:
        producer = self.producers.pop(which % len(self.producers))
        producer.connection.rollback()

    def add_all(self, events: list[tuple[str, int]]) -> None:
        for key, topic in events:
            if len(self.events) < EVENTS_MAX and (self.producers or self.nobody_writes):
                self.add(len(self.events), key, topic, 1, None)

    # The broker

    @rule(mood=st.sampled_from([*Mood, Mood.PROMPT]), after=afters)
    def mood(self, mood: Mood, after: After) -> None:
        self.broker.mood = mood
        self.after(after)

    @precondition(lambda self: any(publisher.on_its_way for publisher in self.broker.publishers))
    @rule(which=st.integers(0, 9), batches=st.integers(1, 4), after=afters)
    def records_arrive(self, which: int, batches: int, after: After) -> None:
        """Also those of a client that was given up, or whose process is dead or frozen."""
        waiting = [publisher for publisher in self.broker.publishers if publisher.on_its_way]
        waiting[which % len(waiting)].arrive(batches)
        self.after(after)

    @rule(after=afters)
    def connections_break(self, after: After) -> None:
        """What was on its way is lost; the clients that live know it."""
        for publisher in self.broker.publishers:
            publisher.shatter()
            if not publisher.alive:
                publisher.on_its_way.clear()
        self.after(after)

    @rule(which=st.integers(0, 9), whole=st.booleans(), after=afters)
    def refuse(self, which: int, whole: bool, after: After) -> None:
        likely = [number for number in range(1, len(self.events) + 4) if number not in self.first]
        self.broker.refused.add(likely[which % len(likely)])
        self.broker.whole = whole
        self.after(after)

    @precondition(lambda self: self.broker.refused)
    @rule(after=afters)
    def refuse_nothing(self, after: After) -> None:
        self.broker.refused.clear()
        self.after(after)

    @rule(topic=st.sampled_from(TOPICS), after=afters)
    def place_goes_or_comes(self, topic: str, after: After) -> None:
        self.broker.away ^= {topic}
        self.after(after)

    # Operators

    @precondition(lambda self: self.nobody_writes and not self.producers)
    @rule(which=st.integers(0, 9), what=st.sampled_from(["retry", "skip", "discard"]), after=afters)
    def request(self, which: int, what: Any, after: After) -> None:
        held = self.ground.rows(f"select seq, body from {self.ground.table('held')} where state = 'dead' order by seq")
        if held:
            seq, body = held[which % len(held)]
            self.events[number_of(bytes(body))].exempt |= what != "retry"
            self._request(what, seq)
            self.after(after)

    def _request(self, what: Any, seq: int | None = None) -> None:
        """For one dead event, or for all."""
        admin = self.ground.store.admin
        for (dead,) in self.ground.rows(f"select seq from {self.ground.table('held')} where state = 'dead' order by seq"):
            if seq is None or dead == seq:
                in_transaction(self.ground.own, lambda dead=dead: operator.request(admin, dead, what, ACT))

    # Promises

    def check(self) -> None:
        now_s = self.simulation.clock.now_s()
        for topic in TOPICS:
            for partition, records in enumerate(self.log.all(topic)):
                for record in records[self.seen.get((topic, partition), 0):]:
                    number = number_of(record.value)
                    if number not in self.first:
                        self._check_first(self.events[number], now_s)
                        self.first[number] = now_s
                self.seen[topic, partition] = len(records)
        waiting = self.ground.waiting()
        for made in self.events.values():
            if made.committed_at is not None and made.number not in self.first and not made.exempt:
                assert made.number in waiting, f"{made} is gone, and was never published"
        wrongs = self.ground.wrongs()
        assert not wrongs, wrongs
        self._check_held()

    def _check_first(self, made: Event, now_s: float) -> None:
        assert made.committed_at is not None, f"{made} was published before its transaction has committed"
        assert made.due_s is None or made.due_s <= now_s, f"{made} was published before its time"
        passed = self._passed()
        for other in self.events.values():
            before = (other.topic, other.key) == (made.topic, made.key) and _precedes(other, made)
            assert not before or other.number in self.first or other.exempt or other.number in passed, (
                f"{made} was published before {other}")

    def _passed(self) -> set[int]:
        """Those that were given up, and whose key went on by the policy."""
        if self.settings.publish.then == "pass":
            for (body,) in self.ground.rows(f"select body from {self.ground.table('held')} where state = 'dead'"):
                self.events[number_of(bytes(body))].exempt = True
        return {made.number for made in self.events.values() if made.exempt}

    def _check_held(self) -> None:
        """Attempts are counted for what was rejected, and for nothing else."""
        for body, attempts in self.ground.rows(f"select body, attempts from {self.ground.table('held')} where attempts > 0"):
            number = number_of(bytes(body))
            assert attempts <= self.broker.rejections[number], f"event {number} was charged {attempts} attempts"

    # The end

    def heal(self) -> None:
        self.broker.mood, self.broker.away = Mood.PROMPT, set()
        self.broker.refused.clear()
        while self.producers:
            self.commit(0)
        if self.nobody_writes:  # there is something to do in every lane, also in those of the frozen
            for key in KEYS:
                self.add(0, key, 0, 1, None)

    def help_on(self) -> None:
        self._request("retry")

    def left(self) -> str:
        missing = [made for made in self.events.values()
                   if made.committed_at is not None and made.number not in self.first and not made.exempt]
        waiting = self.ground.waiting()
        if not missing and not waiting:
            return ""
        held = self.ground.rows(f"select seq, state, attempts, passed, owner_request from {self.ground.table('held')}")
        return f"never published: {missing}; waiting: {waiting}; held: {held}"


def _precedes(one: Event, other: Event) -> bool:
    """Whether ``one`` takes effect first (P4): it was committed before the other was added, or added before it in one
    transaction. A delayed event has no place in the order."""
    if one is other or one.committed_at is None or one.due_s is not None or other.due_s is not None:
        return False
    return one.committed_at < other.added_at or (one.transaction == other.transaction and one.added_at < other.added_at)


class RelaysOnPostgresql(Relays):
    """Several producers at a time, whose transactions commit late, and tables that are emptied when they are done with."""

    ground_class = PostgresqlGround

    @rule(after=afters)
    def the_sequence_comes_to_the_next_table(self, after: After) -> None:
        self.ground.rows(f"select setval('bothends.outbox_seq', nextval('bothends.outbox_seq') + {CHILD_ROWS})")
        self.after(after)
