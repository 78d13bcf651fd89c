"""LogBroker: ``ports.Broker`` over a ``Log``."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence

from bothends.brokers.logs.log import LEASE_S, Log, Member
from bothends.brokers.logs.publisher import LogPublisher
from bothends.brokers.logs.subscription import LogSubscription
from bothends.core.retention import Window
from bothends.errors import Blame, ConfigError, PublishError
from bothends.message import Origin, Record
from bothends.ports import Features, Lag, Partition, Publisher, StartAt, Subscription, TopicState
from bothends.urls import mask

__all__ = ["LogBroker"]

_PARTITIONS_MAX = 10_000
_LOOK_AGAIN_S = 0.1


class LogBroker:
    """See ``ports.Broker``. A subclass says how a log is opened."""

    features = Features()

    def __init__(self, url: str) -> None:
        self.url = url
        self._own: Log | None = None
        self._using = threading.RLock()

    def open_log(self) -> Log:
        raise TypeError(f"{type(self).__name__} does not say how its log is opened")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({mask(self.url)!r})"

    @property
    def _log(self) -> Log:
        if self._own is None:
            self._own = self.open_log()
        return self._own

    def cluster_id(self) -> str:
        with self._using:
            return self._log.identity()

    def ping(self, timeout_s: float) -> None:
        with self._using:
            self._log.ping(timeout_s)

    def publisher(self, name: str) -> Publisher:
        return LogPublisher(self.open_log())

    def subscribe(
        self, group: str, topics: Sequence[str], *, start: StartAt, member: str | None = None,
        assigned: Callable[[Sequence[Partition]], None], revoked: Callable[[Sequence[Partition], bool], None],
        at_most_once: bool = False,
    ) -> Subscription:
        who = Member(group, member or f"anonymous-{uuid.uuid4().hex}", tuple(dict.fromkeys(topics)), start)
        return LogSubscription(self.open_log(), who, assigned=assigned, revoked=revoked, at_most_once=at_most_once)

    def topic(self, name: str) -> TopicState:
        with self._using:
            partitions = self._log.partitions(name)
        return TopicState("ok", partitions) if partitions else TopicState("missing", detail="there is no such topic")

    def create_topic(self, name: str, partitions: int) -> bool:
        if not 1 <= partitions <= _PARTITIONS_MAX:
            raise ConfigError(f"topic {name!r}: 1 to {_PARTITIONS_MAX} partitions, not {partitions}")
        with self._using:
            return self._log.create(name, partitions)

    def delete_topic(self, name: str) -> None:
        with self._using:
            self._log.delete(name)

    def window(self, topic: str) -> Window:
        return Window(topic, None)  # what is old goes with a later publication, or never: no promise

    def lag(self, group: str, topics: Sequence[str]) -> list[Lag]:
        found = []
        with self._using:
            for topic in dict.fromkeys(topics):
                positions = self._log.positions(group, topic)
                for number, (low, high) in enumerate(self._log.ends(topic)):
                    found.append(Lag(topic, number, positions.get(number, -1), low, high))
        return found

    def set_position(self, group: str, position: Origin) -> None:
        """A member that died without a word counts as alive for its lease: that long this waits."""
        deadline = time.monotonic() + LEASE_S + 1.0
        while True:
            with self._using:
                if self._log.set_position(group, position):
                    return
            if time.monotonic() >= deadline:
                raise ConfigError(f"group {group!r} has live members, which would overwrite a position that is set now: "
                                  f"stop them first")
            time.sleep(_LOOK_AGAIN_S)

    def read(self, topic: str, *, partition: int, offset: int, max_records: int) -> list[Record]:
        with self._using:
            ends = self._log.ends(topic)
            if partition >= len(ends):
                raise PublishError(f"topic {topic!r} has no partition {partition}", blame=Blame.PLACE,
                                   reason="unknown_topic")
            if offset >= ends[partition][1]:
                return []
            return self._log.read(Partition(topic, partition), offset, max_records)

    def trim(self, topic: str, *, partition: int, before: int) -> None:
        """Removes the records of a partition below the offset ``before``, as retention does."""
        with self._using:
            self._log.trim(Partition(topic, partition), before)

    def close(self) -> None:
        with self._using:
            own, self._own = self._own, None
            if own is not None:
                own.close()
