"""A broker whose moods the test decides, over the log of the memory broker. What clients have handed over stays on its way
until the broker takes it, whatever has become of the client meanwhile."""

from __future__ import annotations

import enum
import json
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

from bothends.brokers.logs.broker import LogBroker
from bothends.brokers.logs.log import Log, Member, Standing
from bothends.brokers.memory import MemoryLog
from bothends.errors import Blame, PublishError
from bothends.message import Record
from bothends.ports import BatchReport, Features, Outgoing, Partition, TopicState
from tests.models.simulation import Process, Simulation, Thread, getcurrent

__all__ = ["Mood", "SimulatedBroker", "SimulatedLog", "SimulatedPublisher"]


class Mood(enum.Enum):
    PROMPT = "takes records and says so when it is asked"
    SLOW = "takes them when the test says so"
    DEAF = "takes them and says nothing"
    AWAY = "is away"
    FULL = "its clients have no room"


class SimulatedLog(MemoryLog):
    def __init__(self, simulation: Simulation) -> None:
        super().__init__()
        self._simulation = simulation

    def wait(self, version: int, timeout_s: float) -> None:
        self._simulation.wait(timeout_s, lambda: self._version != version)

    # A member that is dead says nothing more, and one that is alive may be late with it.

    def join(self, member: Member) -> None:
        self._simulation.point()
        super().join(member)

    def beat(self, member: Member) -> Standing:
        self._simulation.point()
        return super().beat(member)

    def read(self, partition: Partition, offset: int, max_records: int) -> list[Record]:
        self._simulation.point()
        return super().read(partition, offset, max_records)

    def store(self, member: Member, positions: dict[Partition, int]) -> None:
        self._simulation.point()
        super().store(member, positions)

    def give_up(self, member: Member, partitions: Sequence[Partition]) -> None:
        self._simulation.point()
        super().give_up(member, partitions)

    def leave(self, member: Member) -> None:
        self._simulation.point()
        super().leave(member)

    def expel(self, group: str, name: str) -> bool:
        """What a broker does with a member that has been silent for too long."""
        found = self._groups.get(group)
        member = found.members.get(name) if found is not None else None
        if member is not None:
            self.leave(member)
        return member is not None

    def claims(self, group: str) -> dict[int, str]:
        """Whose each partition is."""
        found = self._groups.get(group)
        return {partition.number: name for partition, name in found.claims.items()} if found is not None else {}

    def all(self, topic: str) -> list[list[Record]]:
        """Everything, by partition."""
        return [list(records) for records in self._topics[topic].records]


class SimulatedBroker(LogBroker):
    features = Features(cross_process=False)

    def __init__(self, log: SimulatedLog, simulation: Simulation) -> None:
        super().__init__("memory://simulated")
        self.log, self.simulation = log, simulation
        self.mood = Mood.PROMPT
        self.refused: set[int] = set()
        """Events (``number``) that are rejected."""
        self.away: set[str] = set()
        """Topics that are said to be missing."""
        self.whole = True
        """Whether a batch with a rejected record is refused as a whole."""
        self.rejections: Counter[int] = Counter()
        self.publishers: list[SimulatedPublisher] = []

    def open_log(self) -> Log:
        return self.log

    def cluster_id(self) -> str:
        return "simulated"

    def ping(self, timeout_s: float) -> None:
        self.simulation.point()
        self._answer()

    def topic(self, name: str) -> TopicState:
        self.simulation.point()
        self._answer()
        return TopicState("missing", detail="says the test") if name in self.away else super().topic(name)

    def _answer(self) -> None:
        if self.mood is Mood.AWAY:
            raise PublishError("the broker is away", blame=Blame.BROKER, reason="unreachable")

    def publisher(self, name: str) -> SimulatedPublisher:
        self.simulation.point()
        made = SimulatedPublisher(self)
        self.publishers.append(made)
        return made

    def judge(self, record: Outgoing) -> PublishError | None:
        number = number_of(record.value)
        if record.topic in self.away:
            return PublishError("there is no such topic", blame=Blame.PLACE, reason="unknown_topic")
        if number in self.refused:
            self.rejections[number] += 1
            return PublishError("rejected", blame=Blame.EVENT, reason="rejected")
        return None


def number_of(body: bytes | None) -> int:
    return int(json.loads(body or b"{}")["number"])


class SimulatedPublisher:
    """See ``ports.Publisher``."""

    def __init__(self, broker: SimulatedBroker) -> None:
        self._broker = broker
        self._process: Process | None = here.process if isinstance(here := getcurrent(), Thread) else None
        self.on_its_way: deque[tuple[int, Sequence[Outgoing]]] = deque()
        self._reports: list[BatchReport] = []
        self._culprit: PublishError | None = None
        self._broken: PublishError | None = None
        self._pending = 0
        self.given_up = False

    @property
    def alive(self) -> bool:
        return not self.given_up and not (self._process is not None and self._process.over)

    # The client

    def send(self, batch: int, records: Sequence[Outgoing]) -> None:
        self._broker.simulation.point()
        if self._broker.mood is Mood.FULL:
            raise PublishError("no room", blame=Blame.BROKER, reason="full")
        self.on_its_way.append((batch, list(records)))
        self._pending += len(records)

    def poll(self, timeout_s: float) -> list[BatchReport]:
        broker = self._broker
        broker.simulation.wait(timeout_s, lambda: self._reports and broker.mood is not Mood.DEAF)
        if broker.mood is Mood.PROMPT or (self._culprit is not None and broker.mood is not Mood.AWAY):
            self.arrive(len(self.on_its_way))
        if broker.mood in (Mood.DEAF, Mood.AWAY):
            return []
        reports, self._reports = self._reports, []
        self._pending = sum(len(records) for _, records in self.on_its_way)
        return reports

    def pending(self) -> int:
        return self._pending

    def broken(self) -> PublishError | None:
        return self._broken

    def abandon(self) -> None:
        self.given_up = True
        self._pending = 0

    def close(self, timeout_s: float) -> list[BatchReport]:
        reports = self.poll(timeout_s)
        self.abandon()
        return reports

    # The broker's side

    def arrive(self, batches: int) -> None:
        """So many batches reach the broker, in order; none behind one that was refused."""
        for _ in range(min(batches, len(self.on_its_way))):
            batch, records = self.on_its_way.popleft()
            self._reports.append(BatchReport(batch, self._take(records)))

    def _take(self, records: Sequence[Outgoing]) -> dict[int, PublishError]:
        broker = self._broker
        if self._culprit is None and not self._broken:
            verdicts = {n: error for n, record in enumerate(records) if (error := broker.judge(record)) is not None}
            first = min(verdicts, default=len(records)) if not (verdicts and broker.whole) else 0
            if first:
                broker.log.append(records[:first], 0.0)
            if not verdicts:
                return {}
            self._culprit = next(iter(verdicts.values()))
            kept = verdicts if broker.whole else {first: verdicts[first]}
        else:
            first, kept = 0, {}
        cause: Any = self._culprit or self._broken
        rest = PublishError("went down with another one", blame=cause.blame, reason="not_sent")
        return {n: kept.get(n, rest) for n in range(first, len(records))}

    def shatter(self) -> None:
        """The client comes to its end; the broker takes nothing more of it."""
        self._broken = PublishError("the client is broken", blame=Blame.BROKER, reason="fatal")
