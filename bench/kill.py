"""Latency, end to end, around a SIGKILL of each kind of process [S7]."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg

from bench import places
from bench.app import EFFECTS
from bench.children import ROOT
from bench.figures import figure, goal, percentile, report
from bench.shop import Sold, service
from bothends.demo.processes import Fleet, children_of

ROUNDS = 3
RATE, RATE_QUICK = 1_000, 100
PRODUCERS = 4
PARTITIONS = 8
WORKERS = 2
QUIET_S, QUIET_S_QUICK = 5.0, 0.5
"""Between work that goes on everywhere and the next kill."""
WAIT_S = 60.0
AROUND_S = 0.5
"""An event belongs to a kill that is at most so far from the call of its COMMIT."""
CALM_S = 1.0
"""And to none, if it took effect before a kill, or was sent so long after all partitions went on."""
_LOOK_S = 0.02
LEFT = "member_left"


@dataclass(frozen=True)
class Kill:
    kind: str
    at: float
    """Monotonic seconds, one clock for all processes."""
    back: float
    """When each partition had had an effect of an event that was sent after the kill."""


@dataclass(frozen=True)
class Run:
    kills: list[Kill]
    effects: list[tuple[int, float, float]]
    """Partition, when sent, when done."""
    events: int
    doubled: int
    began: float
    """The first event was sent."""
    started: float
    """Every partition had effects."""


@dataclass
class Scene:
    fleet: Fleet
    watching: psycopg.Connection[Any]

    def until_effects(self, since: float) -> None:
        """Waits until every partition has effects of events that were sent later."""
        deadline = time.monotonic() + WAIT_S
        while True:
            row = self.watching.execute(
                "select count(*) from generate_series(0, %s) p where exists (select from effects e where e.part = p and "
                "e.sent > %s)", [PARTITIONS - 1, since]).fetchone()
            if row == (PARTITIONS,):
                return
            if time.monotonic() > deadline:
                words = "\n".join(process.last_words() for process in self.fleet.processes.values())
                raise SystemExit(f"not every partition went on within {WAIT_S:.0f} s\n{words}")
            self.fleet.tend()
            time.sleep(_LOOK_S)

    def pid(self, name: str) -> int:
        running = self.fleet.processes[name].running
        assert running is not None
        return running.pid

    def child(self, name: str) -> int:
        """The one child of this supervisor (it has no spare)."""
        deadline = time.monotonic() + WAIT_S
        while not (found := children_of(self.pid(name))):
            if time.monotonic() > deadline:
                raise SystemExit(f"{name} has no child")
            time.sleep(_LOOK_S)
        return found[0]


def _supervisor(scene: Scene, name: str) -> None:
    """Takes its child along; whoever started it (``tend``) starts it again at once."""
    process = scene.fleet.processes[name]
    os.kill(scene.pid(name), signal.SIGKILL)
    assert process.running is not None
    process.running.wait()
    process.restarts = -1  # this death is ours


def _member(scene: Scene, name: str) -> None:
    """Supervisor and child; nobody starts them again."""
    process = scene.fleet.processes[name]
    process.wanted = False
    child = scene.child(name)
    for pid in (scene.pid(name), child):
        os.kill(pid, signal.SIGKILL)
    assert process.running is not None
    process.running.wait()


KINDS: dict[str, Callable[[Scene], None]] = {
    "relay": lambda scene: os.kill(scene.child("relay"), signal.SIGKILL),
    "worker": lambda scene: os.kill(scene.child("work-0"), signal.SIGKILL),
    "both": lambda scene: [os.kill(pid, signal.SIGKILL) for pid in (scene.child("relay"), scene.child("work-0"))] and None,
    "relay_supervisor": lambda scene: _supervisor(scene, "relay"),
    "worker_supervisor": lambda scene: _supervisor(scene, "work-0"),
    LEFT: lambda scene: _member(scene, "work-1"),
}


def measure(rounds: int | None = None, quick: bool = False) -> dict[str, Any]:
    rounds = rounds or (1 if quick else ROUNDS)
    rate, quiet_s = (RATE_QUICK, QUIET_S_QUICK) if quick else (RATE, QUIET_S)
    run = one_run(rounds, rate, quiet_s)
    kills, effects = run.kills, run.effects
    figures: dict[str, dict[str, Any]] = {}
    calm = [done - sent for _, sent, done in effects if sent > run.started + CALM_S and not any(
        sent <= kill.back + CALM_S and done >= kill.at - AROUND_S for kill in kills)]
    for percent in (50, 99):
        figures[f"calm_p{percent}_ms"] = figure([percentile(calm, percent) * 1000], "ms", 1)
    gaps = {kind: [gap(effects, kill) for kill in kills if kill.kind == kind] for kind in KINDS}
    for kind in KINDS:
        near = [
            [done - sent for _, sent, done in effects if abs(sent - kill.at) <= AROUND_S]
            for kill in kills if kill.kind == kind
        ]
        for percent in (50, 99, 100):
            figures[f"{kind}_p{percent}_ms"] = figure([percentile(each, percent) * 1000 for each in near if each], "ms")
        figures[f"{kind}_gap_s"] = figure(gaps[kind], "s", 2)
    restarted = figure([max(gap for kind in KINDS if kind != LEFT for gap in gaps[kind])], "s", 2)
    left = figure([max(gaps[LEFT])], "s", 2)
    doubled = figure([run.doubled], "effects")
    figures |= {"longest_gap_s": restarted, "longest_gap_left_s": left, "doubled": doubled}
    return report(
        "Kill: latency while processes die",
        f"""`bothends relay` and {WORKERS} times `bothends work`, each a supervisor with one child and no spares, as shipped;
        {rate} transactions a second, each a business row and one event, by {PRODUCERS} threads. Then SIGKILL, {rounds} times
        in turn: to the relay, to a worker, to both at once, to the supervisor of either (which its own starter starts again at
        once), and to a worker with its supervisor, which nobody starts again until the others have its partitions. Between
        them {quiet_s:g} s of quiet. Counted is, end to end, from the call of the producer's COMMIT to the handler's
        statement: of the events that were sent within {AROUND_S:g} s of the kill, and of those that no kill touched (calm). A
        gap is the longest time in which one of the {PARTITIONS} partitions had no effect after a kill. Every event must have an
        effect, or the bench fails.""",
        """Starting an interpreter is most of a gap, and this machine has two processors, which all share. The worker's COMMIT
        comes after the handler's statement and is not counted. `member_left` waits for the broker's session timeout, 6 s.""",
        setting={"rate_per_s": rate, "events": run.events, "workers": WORKERS, "partitions": PARTITIONS, "rounds": rounds},
        figures=figures,
        goals=[
            goal("S7", "longest gap after a kill", restarted, "at most", 5.0),
            goal("S7", "longest gap where nobody restarts a member of the group", left, "at most", 10.0),
            goal("P3", "effects beyond the first of an event", doubled, "at most", 0),
        ],
        series={"columns": ["s", "p50_ms", "p99_ms", "max_ms"], "points": by_second(effects, run.began)},
    )


def gap(effects: list[tuple[int, float, float]], kill: Kill) -> float:
    """The longest time without an effect in one partition between the kill and when all had gone on."""
    longest = 0.0
    for part in range(PARTITIONS):
        times = sorted(done for where, _, done in effects if where == part and kill.at - 2 <= done <= kill.back + 1)
        longest = max([longest, *(b - max(a, kill.at) for a, b in pairwise(times) if b > kill.at)])
    return longest


def by_second(effects: list[tuple[int, float, float]], began: float) -> list[list[float]]:
    """Latencies by the second of sending."""
    seconds: dict[int, list[float]] = {}
    for _, sent, done in effects:
        seconds.setdefault(int(sent - began), []).append((done - sent) * 1000)
    return [
        [second, *(round(percentile(each, percent), 1) for percent in (50, 99, 100))]
        for second, each in sorted(seconds.items())
    ]


def one_run(rounds: int, rate: int, quiet_s: float) -> Run:
    with stage() as (scene, url, topic):
        over = threading.Event()
        sent: list[int] = [0] * PRODUCERS
        start = time.monotonic() + 0.2
        threads = [
            threading.Thread(target=produce, args=(url, topic, n, rate, start, over, sent)) for n in range(PRODUCERS)]
        for thread in threads:
            thread.start()
        try:
            scene.until_effects(0.0)
            started = time.monotonic()
            kills = []
            for _ in range(rounds):
                for kind in KINDS:
                    over.wait(quiet_s)
                    kills.append(one_kill(scene, kind))
        finally:
            over.set()
            for thread in threads:
                thread.join()
        events = sum(sent)
        deadline = time.monotonic() + WAIT_S
        while scene.watching.execute("select count(distinct sale) from effects").fetchone() != (events,):
            if time.monotonic() > deadline:
                raise SystemExit(f"{events} events, and not as many effects {WAIT_S:.0f} s later")
            scene.fleet.tend()
            time.sleep(_LOOK_S)
        effects = scene.watching.execute("select part, sent, done from effects").fetchall()
        return Run(kills, effects, events, len(effects) - events, start, started)


def one_kill(scene: Scene, kind: str) -> Kill:
    at = time.monotonic()
    KINDS[kind](scene)
    killed = time.monotonic()
    scene.until_effects(killed)
    back = time.monotonic()
    if kind == LEFT:
        scene.fleet.processes["work-1"].start()
        before = scene.pid("work-1")
        ready(scene, before)
    return Kill(kind, at, back)


def ready(scene: Scene, supervisor: int) -> None:
    """Waits until the worker that was started again has effects of its own."""
    deadline = time.monotonic() + WAIT_S
    while True:
        pids = children_of(supervisor)
        if pids and scene.watching.execute("select 1 from effects where pid = any(%s) limit 1", [pids]).fetchone():
            return
        if time.monotonic() > deadline:
            raise SystemExit("the worker that was started again takes no part")
        scene.fleet.tend()
        time.sleep(_LOOK_S)


@contextmanager
def stage() -> Iterator[tuple[Scene, str, str]]:
    with (
        places.broker() as broker, places.topic(broker, PARTITIONS) as topic, places.database() as url,
        psycopg.connect(url, autocommit=True) as watching, tempfile.TemporaryDirectory(prefix="bothends-bench-") as scratch,
    ):
        watching.execute(EFFECTS)
        watching.execute("create table orders (id bigint generated always as identity primary key, customer text)")
        folder = Path(scratch)
        environ = {name: value for name, value in os.environ.items() if not name.startswith("BOTHENDS_")} | {
            "BOTHENDS_DATABASE_URL": url, "BOTHENDS_BROKER_URL": places.service_url("kafka"), "BENCH_TOPIC": topic,
            "BOTHENDS_RUNTIME_DIR": str(folder / "run"), "BOTHENDS_LOG_FORMAT": "json",
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
        }
        fleet = Fleet(folder)
        fleet.add("relay", ["bothends", "relay", "bench.app"], environ, folder)
        for n in range(WORKERS):
            fleet.add(f"work-{n}", ["bothends", "work", "bench.app"], environ, folder)
        for process in fleet.processes.values():
            process.own_session = True
        fleet.start()
        try:
            yield Scene(fleet, watching), url, topic
        finally:
            fleet.stop()


def produce(url: str, topic: str, number: int, rate: int, start: float, over: threading.Event, sent: list[int]) -> None:
    """Every ``PRODUCERS``-th event, each at its time, until ``over``; ``sent`` counts those that were committed."""
    add = service().outbox.add
    with psycopg.connect(url) as connection:
        n = number
        while not over.is_set():
            over.wait(max(0.0, start + n / rate - time.monotonic()))
            connection.execute("insert into orders (customer) values ('anna')")
            add(connection, Sold(n, 0, time.monotonic()), topic=topic)
            connection.commit()
            sent[number] += 1
            n += PRODUCERS
