"""Leaders die: three Kafka nodes, replication 3, two in-sync replicas wanted; SIGKILL of each node in turn under load, whoever
leads most partitions first, then of two at once, so that nothing can be confirmed. Every node comes back.

The nodes are those of ``scripts/services up kafka --kafka-nodes 3``; started here if they do not run, and then stopped again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from confluent_kafka.admin import AdminClient

from tests.acceptance.ground import ROOT, Ground, ground
from tests.acceptance.soak import ATTEMPTS, KEYS, LOOK_S, Watch, finish, load

NODES = (1, 2, 3)
ALONE_S = 5.0
"""For so long a node stays away after work has gone on without it."""
NOTHING_CONFIRMED_S = 15.0
RESUME_S = 30.0
"""A dead node is noticed after broker.session.timeout.ms, 9 s as shipped; then clients have to hear of its successors."""
UP_S = 120.0
_EFFECTS = "select count(*) from effects_log"
_MARK = "create temp table mark as select key, version from state"
_BEHIND = """
    select count(*) from mark m where not exists (
        select from written w join effects_log e using (event_id) where w.key = m.key and w.version = m.version + 1)"""
"""Keys of which no event that was written after the mark has taken effect."""


def prove(pg: int, tell: Callable[[str], None]) -> dict[str, Any]:
    with cluster() as url, ground(
        pg, keys=KEYS, kafka=url, told=tell, BOTHENDS_GROUP_PREFIX=f"leader-{uuid.uuid4().hex[:8]}-", PROVE_ATTEMPTS=ATTEMPTS,
        BOTHENDS_LOG_FORMAT="json", BOTHENDS_LOG_COUNTS_S="1",
    ) as here:
        nodes = Nodes(url, here.topic)
        assert nodes.in_sync() == {len(NODES)}
        here.relays(2)
        here.workers(2)
        writers = load(here)
        here.until("effects come", lambda: int(here.ask(_EFFECTS)) > 1000)
        watch = Watch(here)
        left, resumed_s = list(NODES), []
        while left:
            node = max(left, key=lambda node: nodes.leads()[node])
            left.remove(node)
            resumed_s.append(_one(here, nodes, watch, node))
            tell(f"node {node} was killed; every key went on after {resumed_s[-1]:.1f} s")
        confirmed = _two(here, nodes, watch, tell)
        result = finish(here, writers, tell)
        return result | {
            "kills": len(NODES) + 2, "resumed_s": [round(one, 1) for one in resumed_s], "confirmed_without_quorum": confirmed,
            "attempts_spent": result["attempts_spent"] + watch.attempts,
            "ok": result["ok"] and not watch.attempts and not confirmed and max(resumed_s) <= RESUME_S,
        }


def _one(here: Ground, nodes: Nodes, watch: Watch, node: int) -> float:
    """Kills it, lets work go on without it, brings it back; seconds until of every key something new had taken effect."""
    nodes.kill(node)
    here.db.execute(_MARK)
    resumed_s = _until(here, watch, "every key goes on", lambda: int(here.ask(_BEHIND)) == 0)
    here.db.execute("drop table mark")
    back = time.monotonic() + ALONE_S
    _until(here, watch, "its time is over", lambda: time.monotonic() > back)
    nodes.start(node)
    _until(here, watch, "it has caught up", lambda: nodes.in_sync() == {len(NODES)})
    return resumed_s


def _two(here: Ground, nodes: Nodes, watch: Watch, tell: Callable[[str], None]) -> int:
    """Two nodes at once: nothing can be confirmed until one is back. How many records were confirmed nevertheless."""
    for node in NODES[:2]:
        nodes.kill(node)
    tell("two of three nodes were killed: nothing can be confirmed")
    before = None
    began = time.monotonic()
    while (gone_s := time.monotonic() - began) < NOTHING_CONFIRMED_S:
        _look(here, watch)
        if before is None and gone_s > NOTHING_CONFIRMED_S / 3:  # what was confirmed before has been stored by now
            before = _stored(here)
        time.sleep(LOOK_S)
    after = _stored(here)
    nodes.start(*NODES[:2])
    seen = int(here.ask(_EFFECTS))
    took = _until(here, watch, "work goes on", lambda: int(here.ask(_EFFECTS)) > seen + 1000)
    tell(f"they are back; effects came after {took:.1f} s")
    _until(here, watch, "they have caught up", lambda: nodes.in_sync() == {len(NODES)})
    return after - (before or 0)


def _stored(here: Ground) -> int:
    return int(here.ask("select coalesce(sum(published), 0) from bothends.relay_progress"))


def _until(here: Ground, watch: Watch, what: str, done: Callable[[], bool]) -> float:
    def looking() -> bool:
        _look(here, watch)
        return done()

    return here.until(what, looking, timeout_s=UP_S)


def _look(here: Ground, watch: Watch) -> None:
    watch.look()
    here.fleet.tend()


class Nodes:
    """The three nodes: what they lead, and their lives."""

    def __init__(self, url: str, topic: str) -> None:
        self._topic = topic
        self._admin = AdminClient({"bootstrap.servers": urlsplit(url).netloc})

    def _partitions(self) -> list[Any]:
        return list(self._admin.list_topics(self._topic, timeout=30).topics[self._topic].partitions.values())

    def leads(self) -> Counter[int]:
        return Counter(partition.leader for partition in self._partitions())

    def in_sync(self) -> set[int]:
        """How many replicas are in sync: one number where all partitions are alike."""
        return {len(partition.isrs) for partition in self._partitions()}

    def kill(self, node: int) -> None:
        row = _services("status", f"kafka-{node}").splitlines()[1].split()
        if not row[-2].isdecimal():
            raise RuntimeError(f"node {node} cannot be killed, for it does not run or is not ours: {' '.join(row)}")
        os.kill(int(row[-2]), signal.SIGKILL)

    def start(self, *nodes: int) -> None:
        """And waits until they answer."""
        _services("up", *(f"kafka-{node}" for node in nodes))


@contextmanager
def cluster() -> Iterator[str]:
    """Its URL; it is stopped at the end if it did not run before."""
    ran = " up " in _services("status", "kafka-1")
    line = _services("up", "kafka", "--kafka-nodes", str(len(NODES)))
    try:
        yield line.strip().partition("=")[2]
    finally:
        if not ran:
            _services("down", "kafka", "--kafka-nodes", str(len(NODES)))


def _services(*arguments: str) -> str:
    return subprocess.run([ROOT / "scripts" / "services", *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout
