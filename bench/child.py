"""Child: what is measured, in a process of its own: `python -m bench.child JSON`. See ``children.py`` for the other side.

Says on stdout, one JSON object per line: ``assigned`` (partitions, or lanes), ``done`` (events so far), ``duplicates``
(deliveries of events that the inbox knew), ``at`` (monotonic seconds: one clock for all processes of a machine) with
``rss_kb``. When stdin ends it stops, and says ``final``.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from bench.shop import Sold, service
from bench.timing import TimedStore
from bothends import Retry
from bothends.brokers import open_broker
from bothends.core.consuming import describe_error
from bothends.errors import BothendsError
from bothends.message import Origin
from bothends.operating.child import settle_memory
from bothends.ports import BatchReport, Broker, Outgoing, Partition, Publisher, StartAt
from bothends.relay import Relay
from bothends.relay.events import LanesChanged, Published, SourceChanged
from bothends.relay.settings import RelaySettings
from bothends.service import Consumer
from bothends.stores import open_store
from bothends.worker.deliveries import read
from bothends.worker.floor import Delivered

__all__ = ["consumer_of", "main"]

_SAY_S = 0.02
_POLL_MAX, _POLL_S = 500, 0.01


class State:
    """What is known; a thread of its own says what has changed, so that the measured one never waits for a pipe."""

    def __init__(self) -> None:
        self.assigned = 0
        self.done = 0
        self.duplicates = 0
        self.source = "poll"
        self.at = 0.0
        self.final: dict[str, Any] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._say, daemon=True)
        self._thread.start()

    def count(self, events: int) -> None:
        self.at = time.monotonic()
        self.done += events

    def _say(self) -> None:
        said: tuple[int, int, int, str] = (-1, -1, -1, "")
        while True:
            over = self._over.wait(_SAY_S)
            now = (self.assigned, self.done, self.duplicates, self.source)
            if now != said:
                said = now
                _print({
                    "assigned": self.assigned, "done": self.done, "duplicates": self.duplicates, "at": self.at,
                    "source": self.source, "rss_kb": _rss_kb(),
                })
            if over:
                return

    def end(self) -> None:
        self._over.set()
        self._thread.join()
        _print({"final": self.final | {"cpu_s": time.process_time()}})


def _print(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _rss_kb() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * 4


class Stamped:
    """A broker that notes when each record, named by its key, was confirmed."""

    def __init__(self, broker: Broker, confirmed: dict[int, float]) -> None:
        self._broker, self._confirmed = broker, confirmed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    def publisher(self, name: str) -> Publisher:
        return _StampedPublisher(self._broker.publisher(name), self._confirmed)


class _StampedPublisher:
    def __init__(self, publisher: Publisher, confirmed: dict[int, float]) -> None:
        self._publisher, self._confirmed = publisher, confirmed
        self._sent: dict[int, Sequence[Outgoing]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._publisher, name)

    def send(self, batch: int, records: Sequence[Outgoing]) -> None:
        self._publisher.send(batch, records)
        self._sent[batch] = records

    def poll(self, timeout_s: float) -> list[BatchReport]:
        reports = self._publisher.poll(timeout_s)
        if reports:
            now = time.monotonic()
            for report in reports:
                for record in self._sent.pop(report.batch):
                    self._confirmed.setdefault(int(record.key or b"-1"), now)
        return reports


def relay(task: dict[str, Any], state: State, stop: threading.Event) -> None:
    broker: Any = open_broker(task["broker"])
    confirmed: dict[int, float] = {}

    def observe(event: object) -> None:
        if isinstance(event, Published):
            state.count(event.records)
        elif isinstance(event, LanesChanged):
            state.assigned = event.lanes
        elif isinstance(event, SourceChanged):
            state.source = event.source

    noted: dict[str, list[tuple[float, float]]] = {}
    store: Any = open_store(task["database"])
    Relay(
        TimedStore(store, noted) if task.get("timed") else store,
        Stamped(broker, confirmed) if task.get("stamp") else broker, observe=observe,
        settings=RelaySettings(source=task.get("source", "poll")),
    ).run(stop)
    broker.close()
    state.final["timed"] = noted
    if task.get("stamp"):
        state.final["confirmed"] = list(confirmed.items())


def consumer_of(
    topic: str, *, failing: int | None, concurrency: int, pending: Any = None, batch: bool = False,
) -> Consumer:
    """The consumer that is measured: one UPDATE per sale; the sales of the order ``failing`` cannot be handled."""
    consumer = service().consumer(
        "stock", topic=topic, concurrency=concurrency, retry=Retry(attempts=5, first_s=0.2, factor=1.5, then="hold"),
    )

    if batch:
        @consumer.handle(Sold, batch=True)
        def take_all(sold: list[Sold], ctx: Any) -> None:
            taken = Counter(one.sku for one in sold)
            ctx.connection.execute(
                "update stock set amount = amount - sold "
                "from (select * from unnest(%s::int[], %s::int[]) as t (sku, sold) order by sku) as taken "
                "where stock.sku = taken.sku", (list(taken), list(taken.values())))

        return consumer

    @consumer.handle(Sold)
    def take(sold: Sold, ctx: Any) -> None:
        if sold.order == failing:
            raise ValueError("this order cannot be handled")
        ctx.connection.execute("update stock set amount = amount - 1 where sku = %s", (sold.sku,))
        if sold.at:
            pending.sold.append(sold.at)

    return consumer


def worker(task: dict[str, Any], state: State, stop: threading.Event) -> None:
    from bothends.worker import Worker

    class Pending(threading.local):
        """Of the slot's open transaction."""

        def __init__(self) -> None:
            self.sold: list[float] = []

    pending, lock, latencies = Pending(), threading.Lock(), []

    def observe(event: object) -> None:
        if isinstance(event, Delivered):  # called by the slot, after its COMMIT was answered
            now = time.monotonic()
            with lock:
                state.count(event.outcomes.get("processed", 0))
                state.duplicates += event.outcomes.get("duplicate", 0)
                latencies.extend([now - at for at in pending.sold])
            pending.sold.clear()

    consumer = consumer_of(
        task["topic"], failing=task.get("failing"), concurrency=task["concurrency"], pending=pending,
        batch=bool(task.get("batch")),
    )
    broker = open_broker(task["broker"])
    member = Worker(consumer, open_store(task["database"]), broker, observe=observe)
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_SAY_S):
            state.assigned = len(member.floor.generations)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    member.run(stop, threading.Event())
    over.set()
    watching.join()
    broker.close()
    state.final["latencies"] = latencies


def one_by_one(task: dict[str, Any], state: State, stop: threading.Event) -> None:
    """The reference: the same polling and decoding, an inbox of two columns, one transaction per message."""
    import psycopg

    consumer = consumer_of(task["topic"], failing=None, concurrency=1)
    broker = open_broker(task["broker"])
    partitions: set[Partition] = set()

    def assigned(new: Sequence[Partition]) -> None:
        partitions.update(new)
        state.assigned = len(partitions)

    def revoked(gone: Sequence[Partition], lost: bool) -> None:
        partitions.difference_update(gone)
        state.assigned = len(partitions)

    subscription = broker.subscribe(
        "bench.one-by-one", [task["topic"]], start=StartAt(), assigned=assigned, revoked=revoked)
    with psycopg.connect(task["database"]) as connection:
        while not stop.is_set():
            settled: list[Origin] = []
            for record in subscription.poll(_POLL_MAX, _POLL_S):
                delivery = read(consumer, record)
                fresh = connection.execute(
                    "insert into one_by_one values (%s) on conflict do nothing returning 1", [delivery.name[1]]).fetchone()
                if fresh:
                    connection.execute("update stock set amount = amount - 1 where sku = %s", [delivery.event.sku])
                connection.commit()
                state.count(1)
                settled.append(record.origin)
            if settled:
                subscription.ack(settled)
    subscription.close()
    broker.close()


def watch(task: dict[str, Any], state: State, stop: threading.Event) -> None:
    """No part of ours: the consumer that says when it saw a peer's records."""
    from bench.peers.records import watch as watch_records

    watch_records(task, state, stop)


ROLES = {"relay": relay, "worker": worker, "one-by-one": one_by_one, "watch": watch}


def main(task: dict[str, Any]) -> int:
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    settle_memory()  # as every child of ours does, for all that are compared
    state, stop = State(), threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    try:
        ROLES[task["role"]](task, state, stop)
    except BothendsError as error:
        sys.exit(describe_error(error))
    state.end()
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
