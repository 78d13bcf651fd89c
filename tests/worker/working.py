"""A worker on a thread, and what its tests wait for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bothends.message import Origin
from bothends.ports import Broker, Outgoing
from bothends.worker import Worker
from tests.worker.conftest import TOPIC, Desk


def until(what: Callable[[], bool], timeout_s: float = 25.0) -> None:
    """Waits for a fact that another thread brings about; the wait ends as soon as it is one."""
    deadline = time.monotonic() + timeout_s
    while not what():
        if time.monotonic() > deadline:
            raise AssertionError("it did not happen in time")
        threading.Event().wait(0.01)


def publish(broker: Broker, desk: Desk, messages: Sequence[tuple[str, str | None]], topic: str = TOPIC) -> None:
    publisher = broker.publisher("test")
    records = [desk.record(id, order, body=f'{{"order":"{order}"}}'.encode()) for id, order in messages]
    publisher.send(1, [Outgoing(topic, r.key, r.value, list(r.headers)) for r in records])
    reports = publisher.poll(5)
    while not reports:
        reports = publisher.poll(5)
    assert reports[0].failures == {}
    publisher.close(1)


class Run:
    """One ``Worker.run`` on a thread of its own."""

    def __init__(self, desk: Desk, broker: Broker, *, stop_timeout_s: float = 10.0, **options: Any) -> None:
        self.worker = Worker(desk.consumer, desk.store, broker, **options)
        self._stop, self._ready = threading.Event(), threading.Event()
        self._stop_timeout_s = stop_timeout_s
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._target, daemon=True)
        self._thread.start()
        assert self._ready.wait(10)

    def _target(self) -> None:
        try:
            self.worker.run(self._stop, self._ready, stop_timeout_s=self._stop_timeout_s)
        except BaseException as error:
            self.error = error
            self._ready.set()

    def stop(self) -> float:
        """Stops and joins; the seconds that it took. Raises what the worker raised."""
        began = time.monotonic()
        self._stop.set()
        self._thread.join(20)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error
        return time.monotonic() - began

    def failed(self) -> bool:
        return self.error is not None


@contextmanager
def working(desk: Desk, broker: Broker, **options: Any) -> Iterator[Worker]:
    run = Run(desk, broker, **options)
    try:
        yield run.worker
    finally:
        run.stop()


def lag(desk: Desk, broker: Broker) -> int:
    """Records of the topic that the consumer's group has not settled."""
    return sum(row.high - max(row.position, row.low) for row in broker.lag(desk.consumer.name, [TOPIC]))


def set_back(desk: Desk, broker: Broker) -> None:
    """Every position of the consumer's group to the log's beginning."""
    for row in broker.lag(desk.consumer.name, [TOPIC]):
        broker.set_position(desk.consumer.name, Origin(row.topic, row.partition, row.low))
