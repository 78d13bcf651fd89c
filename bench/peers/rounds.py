"""Rounds: one peer measured once, on a database and a topic of its own, by one and the same relay process."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psycopg

from bench import places
from bench.children import ROOT, child, until
from bench.figures import percentile
from bench.peers.peer import TRANSACTION, Peer, Site, Unavailable
from bench.peers.processes import Group, Servers, group
from bench.peers.records import PARTITIONS, Arrived, Records, records

__all__ = ["Sizes", "one_round"]

PRODUCERS = 4
WARM = 20
"""Events by which a relay is seen to run."""
_LOOK_S = 0.05
_START_S, _WAIT_S, _LATE_S = 90.0, 300.0, 60.0


class Sizes(NamedTuple):
    """At most so many events, and seconds of latency: ``--quick`` is smaller."""

    backlog: int
    live: int
    seconds: float
    warm_seconds: float


class _Use(NamedTuple):
    """What was used up to a moment."""

    events: int
    relay_s: float
    postgresql_s: float
    kafka_s: float


class Measuring:
    """One peer on its site."""

    def __init__(self, peer: Peer, site: Site, connection: psycopg.Connection[Any], topic: Records) -> None:
        self.peer, self.site, self._connection, self._topic = peer, site, connection, topic
        self._servers = Servers(connection, site.servers)
        self._written = 0

    def ready(self, events: int) -> None:
        """The next events are about to be written."""
        self.peer.ready(self._connection, self._written, self._written + events - 1)

    def write(self, events: int) -> None:
        """In transactions of ``TRANSACTION`` rows, pipelined, so that the writer is seldom what is waited for."""
        first, self._written = self._written, self._written + events
        for at in range(first, self._written, TRANSACTION * 10):
            with self._connection.pipeline():
                for begin in range(at, min(at + TRANSACTION * 10, self._written), TRANSACTION):
                    self.peer.write(self._connection, begin, min(begin + TRANSACTION, self._written) - 1)

    def backlog(self, events: int) -> tuple[list[int], range]:
        """Writes events that nobody reads yet: where the topic ends before them, and which they are."""
        start, first = self._topic.ends(), self._written
        if self.peer.insert:
            self.ready(events)
            self.write(events)
            self._connection.execute("vacuum analyze")
        return start, range(first, first + events)

    def drain(self, running: Group, start: list[int], events: range, baseline: _Use) -> tuple[dict[str, float], Arrived]:
        """From the first record to the last; what was used meanwhile, per million events."""
        first = self._until(running, 1, _START_S, baseline.events)
        last = self._until(running, len(events), _WAIT_S, baseline.events)
        since = first if first.events < last.events else baseline
        million = (last.events - since.events) / 1e6
        arrived = self._arrived(start, set(events))
        figures = {
            "drain_per_s": (len(events) - 1) / arrived.seconds,
            "cpu_s": (last.relay_s - since.relay_s) / million,
            "postgresql_cpu_s": (last.postgresql_s - since.postgresql_s) / million,
            "kafka_cpu_s": (last.kafka_s - since.kafka_s) / million,
        }
        return figures, arrived

    def use(self, running: Group | None = None) -> _Use:
        return _Use(sum(self._topic.ends()), running.cpu_s() if running else 0.0, *self._servers.cpu_s())

    def _until(self, running: Group, events: int, timeout_s: float, begin: int) -> _Use:
        """Looks at the topic until so many records have come since ``begin``."""
        deadline, pause = time.monotonic() + timeout_s, threading.Event()
        while (count := sum(self._topic.ends()) - begin) < events:
            running.check()
            if time.monotonic() > deadline:
                raise Unavailable(f"{count} of {events} events published within {timeout_s:g} s; {running.said()}")
            pause.wait(_LOOK_S)
        return self.use(running)

    def _arrived(self, start: list[int], events: set[int]) -> Arrived:
        arrived = self._topic.read(start)
        if missing := len(events - arrived.events):
            raise Unavailable(f"{missing} of {len(events)} events are missing among {arrived.records} records")
        return arrived

    def warm(self, running: Group) -> None:
        """The relay runs: it publishes what is written now."""
        begin = sum(self._topic.ends())
        self.ready(WARM)
        self.write(WARM)
        self._until(running, WARM, _START_S, begin)

    def live(self, running: Group, events: int) -> dict[str, float]:
        """Events per second from the first write until all are in the topic, by the broker's clock; and what was written
        per second, which no relay can exceed."""
        self.ready(events)
        start, first = self._topic.ends(), self._written
        took: list[float] = []
        began = time.time()

        def write() -> None:
            self.write(events)
            took.append(time.time() - began)

        writer = threading.Thread(target=write)
        writer.start()
        self._until(running, events, _WAIT_S, sum(start))
        writer.join()
        arrived = self._arrived(start, set(range(first, first + events)))
        return {
            "live_per_s": events / max(0.001, arrived.last_ms / 1000 - began), "written_per_s": events / max(0.001, *took),
        }

    def latency(self, sizes: Sizes, rate: int) -> dict[str, float]:
        """From the return of COMMIT to when a consumer has the record, single-row transactions."""
        warm = int(rate * sizes.warm_seconds)
        first, count = self._written, warm + int(rate * sizes.seconds)
        self._written += count
        returned = [0.0] * count
        with child("watch", topic=self.site.topic, servers=self.site.servers, first=first) as watching:
            until(lambda: watching.assigned == PARTITIONS, watching, timeout_s=_START_S)
            start = time.monotonic() + 0.2
            threads = [
                threading.Thread(target=self._produce, args=(n, first, start, rate, returned)) for n in range(PRODUCERS)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            until(lambda: watching.done >= count, watching, timeout_s=_LATE_S)
            seen = dict(watching.stop()["seen"])
        waited = [(seen[first + n] - returned[n]) * 1000 for n in range(warm, count)]
        return {"p50_ms": percentile(waited, 50), "p99_ms": percentile(waited, 99)}

    def _produce(self, number: int, first: int, start: float, rate: int, returned: list[float]) -> None:
        """Every ``PRODUCERS``-th event, each at its time."""
        with psycopg.connect(self.site.database) as connection:
            for n in range(number, len(returned), PRODUCERS):
                wait_s = start + n / rate - time.monotonic()
                if wait_s > 0:
                    time.sleep(wait_s)
                self.peer.write(connection, first + n, first + n)
                connection.commit()
                returned[n] = time.monotonic()


@contextmanager
def _database() -> Iterator[tuple[str, psycopg.Connection[Any]]]:
    """A fresh database, whose replication slots are gone before it is."""
    with places.database() as url, psycopg.connect(url, autocommit=True) as connection:
        try:
            yield url, connection
        finally:
            with psycopg.connect(places.service_url("postgresql"), autocommit=True) as server:
                drop_slots(server, urlsplit(url).path[1:])


def drop_slots(server: psycopg.Connection[Any], database: str) -> None:
    """Their readers have been ended; the server may still have to notice."""
    deadline, pause = time.monotonic() + 30, threading.Event()
    while time.monotonic() < deadline:
        slots = server.execute(
            "select slot_name, active_pid from pg_replication_slots where database = %s", [database]).fetchall()
        if not slots:
            return
        for name, reader in slots:
            with contextlib.suppress(psycopg.errors.ObjectInUse, psycopg.errors.UndefinedObject):
                if reader is not None:
                    server.execute("select pg_terminate_backend(%s)", [reader])
                else:
                    server.execute("select pg_drop_replication_slot(%s)", [name])
        pause.wait(_LOOK_S)
    raise SystemExit(f"replication slots of {database} could not be dropped: {slots}")


def one_round(peer: Peer, sizes: Sizes) -> dict[str, float]:
    """The figures of one round. Raises Unavailable where the peer does not do what it is for."""
    kafka = places.service_url("kafka").removeprefix("kafka://")
    backlog, live = min(peer.backlog, sizes.backlog), min(peer.live, sizes.live)
    with (
        tempfile.TemporaryDirectory(prefix="bothends-peers-") as folder, records(kafka) as topic,
        _database() as (url, connection),
    ):
        site = Site(url, topic.topic, kafka, Path(folder), backlog)
        peer.prepare(site, connection)
        measuring = Measuring(peer, site, connection, topic)
        figures: dict[str, float] = {}
        if live:
            with group(peer.command(site), site.folder, peer.environment(), ROOT) as running:
                measuring.warm(running)
                figures |= measuring.live(running, live)
        start, events = measuring.backlog(backlog)
        baseline = measuring.use()
        with group(peer.command(site), site.folder, peer.environment(), ROOT) as running:
            drained, arrived = measuring.drain(running, start, events, baseline)
            figures |= drained
            if not peer.insert:
                del figures["postgresql_cpu_s"]
            figures |= {"swapped": arrived.swapped, "again": arrived.records - backlog}
            if live:
                measuring.warm(running)
                figures["live_warm_per_s"] = measuring.live(running, live)["live_per_s"]
            if peer.rate:
                measuring.warm(running)
                figures |= measuring.latency(sizes, peer.rate)
            running.check()
            figures["rss_mb"] = running.peak_mb()
    return figures
