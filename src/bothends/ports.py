"""The seams: what a broker promises to the relay and to the worker. Stores have their own seam, ``stores/steps.py``.

All calls of one object come from one thread at a time. Nothing here waits without a bound. An adapter passes
``bothends.testing.conformance``; what a broker cannot do is declared in ``Features``, never half done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple, Protocol

from bothends.core.retention import Window
from bothends.errors import PublishError
from bothends.message import Origin, Record

__all__ = [
    "BatchReport", "Broker", "Checked", "Features", "Outgoing", "Partition", "Publisher", "StartAt", "Subscription",
    "TopicState",
]


class Outgoing(NamedTuple):
    """One record to publish: already encoded, names and sizes already checked."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]


class Checked(list[Outgoing]):
    """Records whose header names are known to be UTF-8 without NUL, so that no publisher need look at each again."""


class BatchReport(NamedTuple):
    """The end of one batch. ``failures`` is empty when the broker has confirmed every record; otherwise it maps the
    index of a record in the batch to what the broker said of it. Records that are in no list were confirmed."""

    batch: int
    failures: dict[int, PublishError]


class Publisher(Protocol):
    """Publishes in order per (topic, key): the records of one key are appended in the order they were handed over, and
    after a failure nothing that was handed over later for that key is appended (a run without holes). Nothing expires
    while it waits: a broker that is away leaves batches unreported, it does not fail them.

    Raises ``PublishError`` with blame ``BROKER`` where the connection can never succeed as configured.
    """

    def send(self, batch: int, records: Sequence[Outgoing]) -> None:
        """Hands over one batch (numbers grow by one). Returns when it is queued, at most 5 s later;
        raises ``PublishError`` (BROKER, ``full``) when there was no room; nothing of the batch was queued then.

        Does not ask whether a topic exists: ask ``Broker.topic`` before the first record for a topic. Where one is
        missing all the same, its records fail (PLACE) after some seconds, and nothing overtakes them.

        What comes behind a refused record in its batch, and batches sent before the failure was reported, are not handed
        over: they fail with reason ``not_sent`` and the blame of the culprit, as far as it is known (else BROKER).
        ``not_sent`` says nothing about the record itself; others that went down with it have it as well."""
        ...

    def poll(self, timeout_s: float) -> list[BatchReport]:
        """Reports of batches that have ended, in any order; each batch is reported once. After a report with failures,
        or ``broken()``, the only valid calls are ``poll`` and ``abandon``."""
        ...

    def pending(self) -> int:
        """Records handed over and not reported yet."""
        ...

    def broken(self) -> PublishError | None:
        """Set when the publisher can publish no more (a fatal error of the client): abandon it, make a new one."""
        ...

    def abandon(self) -> None:
        """Drops whatever is queued and frees the client, in at most 2 s. What was in flight may still be appended."""
        ...

    def close(self, timeout_s: float) -> list[BatchReport]:
        """Waits for what is queued, at most ``timeout_s``; the last reports. Then frees the client."""
        ...


class Partition(NamedTuple):
    topic: str
    number: int


@dataclass(frozen=True, slots=True)
class StartAt:
    """Where a consumer begins that has no position yet."""

    at: Literal["earliest", "latest"] | datetime = "earliest"


class Subscription(Protocol):
    """One member of a consumer group. ``poll`` also keeps the membership alive and calls the two callbacks that were
    given to ``Broker.subscribe``, from within ``poll`` or ``close``:

    - ``assigned(partitions)``: records of these partitions will follow;
    - ``revoked(partitions, lost)``: called before they are given up (``lost`` False: acknowledgements made inside the
      callback still count) or after they are gone (``lost`` True).
    """

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        """At most ``max_records`` records, in log order per partition; returns at once when there are any.

        A broker that is away gives nothing, and no error. Raises ``PositionLost`` (names the range) when the log no
        longer has the stored position: at least once, after what other partitions had was delivered; the partition
        gives nothing until ``rewind``, the others go on. Raises ``PublishError`` when this member can never go on (its
        name was taken over, it is denied): close it. An exception of a callback comes out of here as well, once
        nothing that was fetched can get lost by it."""
        ...

    def ack(self, positions: Sequence[Origin]) -> None:
        """These records are settled. The stored position of a partition only moves over an unbroken run of settled
        records; ones that were never delivered to this member, or whose partition is gone, are ignored. The store
        may be delayed by at most 1 s, and happens at the latest when the partition is revoked or on ``close``."""
        ...

    def pause(self, partitions: Sequence[Partition]) -> None: ...

    def resume(self, partitions: Sequence[Partition]) -> None: ...

    def rewind(self, position: Origin) -> None:
        """Deliver again from ``position`` on; later deliveries of that partition that are not acknowledged repeat."""
        ...

    def close(self) -> None:
        """Stores what was acknowledged and leaves the group, in at most 5 s."""
        ...


class Features(NamedTuple):
    repeated_headers: bool = True
    """The same header name twice survives."""
    topics: bool = True
    """Topics must exist before use, and ``create_topic`` makes them."""
    cross_process: bool = True
    """Other processes see what is published."""


@dataclass(frozen=True, slots=True)
class TopicState:
    """What the broker says of one topic now."""

    state: Literal["ok", "missing", "denied", "no_leader"]
    partitions: int = 0
    detail: str = ""


class Lag(NamedTuple):
    """How far a group is behind in one partition. ``position`` is the next offset it will read; -1: none stored."""

    topic: str
    partition: int
    position: int
    low: int
    high: int


class Broker(Protocol):
    """One broker by URL. Creating the object does no I/O."""

    url: str
    features: Features

    def cluster_id(self) -> str:
        """A stable identity of the broker (Kafka's cluster id, the log file's own id)."""
        ...

    def ping(self, timeout_s: float) -> None:
        """Returns when the broker answers; else raises ``PublishError`` with blame BROKER within ``timeout_s``."""
        ...

    def publisher(self, name: str) -> Publisher: ...

    def subscribe(
        self, group: str, topics: Sequence[str], *, start: StartAt, member: str | None = None,
        assigned: Callable[[Sequence[Partition]], None], revoked: Callable[[Sequence[Partition], bool], None],
        at_most_once: bool = False,
    ) -> Subscription: ...

    def topic(self, name: str) -> TopicState: ...

    def create_topic(self, name: str, partitions: int) -> bool:
        """True when it was made, False when it was there."""
        ...

    def delete_topic(self, name: str) -> None: ...

    def window(self, topic: str) -> Window:
        """How long the topic can still deliver a record, by its settings: what an inbox must outlast [C11]. Raises
        PublishError where the broker does not answer, with blame PLACE where the topic is missing."""
        ...

    def lag(self, group: str, topics: Sequence[str]) -> list[Lag]: ...

    def set_position(self, group: str, position: Origin) -> None:
        """Sets the stored position of a group that has no live member (operators and tests). A member that died, or a
        named one that has just left, counts until its lease is over: this waits for that, at most 12 s; then ConfigError.
        """
        ...

    def read(self, topic: str, *, partition: int, offset: int, max_records: int) -> list[Record]:
        """Records as they stand in the log, without a group (``tail``, ``trace``, tests)."""
        ...

    def close(self) -> None: ...
