"""The broker of an exploration: the memory broker's own log, with the tape between it and its clients."""

from __future__ import annotations

from collections.abc import Sequence

from bothends.brokers.logs.broker import LogBroker
from bothends.brokers.logs.log import Log
from bothends.brokers.memory import MemoryLog
from bothends.codecs.cloudevents import from_record
from bothends.errors import Blame, PublishError, Undecodable
from bothends.message import Origin, Record
from bothends.ports import Features, Outgoing
from bothends.testing.exploring.boundaries import Fault, Kind
from bothends.testing.exploring.tape import Tape

__all__ = ["ExploredBroker", "ExploredLog", "name_of"]

PAGE = 1_000


class ExploredLog(MemoryLog):
    """One log per run: nothing of it is left over."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self.tape = tape

    def copy(self, tape: Tape) -> ExploredLog:
        """The same records, for another run; no groups."""
        made = ExploredLog(tape)
        for name, topic in self._topics.items():
            made.create(name, len(topic.records))
            twin = made._topics[name]
            twin.records, twin.low, twin.turn = [list(r) for r in topic.records], list(topic.low), topic.turn
        made._count, made._version = self._count, self._version
        return made

    def append(self, records: Sequence[Outgoing], timeout_s: float) -> dict[int, PublishError]:
        names = ", ".join(name_of(self.tape, Record(Origin(r.topic, 0, 0), r.key, r.value, tuple(r.headers), 0))
                          for r in records)
        fault = self.tape.arrive(Kind.PUBLISH, names, durable=True)
        if fault is Fault.FAILS:  # the client has given up, and says so
            return dict.fromkeys(range(len(records)), _unreachable())
        failures = super().append(records, timeout_s)
        if fault is Fault.CRASH_AFTER:
            self.tape.die()
        if fault is Fault.HAPPENED:
            raise _unreachable()
        if fault is Fault.DUPLICATE:
            super().append(records, timeout_s)
        return failures

    def topics(self) -> list[str]:
        return list(self._topics)


def _unreachable() -> PublishError:
    return PublishError("the broker's answer does not come (made by the crash explorer)", blame=Blame.BROKER,
                        reason="unreachable")


def name_of(tape: Tape, record: Record) -> str:
    """The event in a record, as a story calls it."""
    try:
        message = from_record(record)
    except Undecodable:
        return f"a record of {record.origin.topic}"
    return tape.name(message.source, message.id, message.type)


class ExploredBroker(LogBroker):
    features = Features(cross_process=False)

    def __init__(self, log: ExploredLog) -> None:
        super().__init__("memory://explored")
        self.log = log

    def open_log(self) -> Log:
        return self.log

    def cluster_id(self) -> str:
        return "explored"

    def records(self, topic: str) -> list[Record]:
        """Everything in a topic of one partition."""
        found: list[Record] = []
        while page := self.read(topic, partition=0, offset=len(found), max_records=PAGE):
            found += page
        return found
