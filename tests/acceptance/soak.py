"""Soak: the load of the other proofs for many minutes, while faults drawn from a printed seed hit every process and both ways.
The cases ``drop``, ``delay``, ``half-close`` and ``stop`` are a minute of it with one kind of fault alone.

See ``drawing`` for what is drawn and docs/adr/0010 for how it is judged.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bothends.demo.processes import Process, children_of
from bothends.demo.proxies import Proxies
from bothends.demo.settling import Waiting
from bothends.demo.world import address_of, moved
from tests.acceptance.audit import audit, clean
from tests.acceptance.drawing import EVERYTHING, Kind, Packs, schedule
from tests.acceptance.ground import Ground, ground, server_url
from tests.acceptance.tormenting import Tormentor

KEYS, WRITERS, RATE, TOGETHER, BACKLOG = 256, 2, 20, 10, 20_000
RELAYS, WORKERS = 2, 2
TICK_S, LOOK_S, TELL_S = 0.05, 1.0, 5.0
QUIET_S = 180.0
"""For coming to rest after the last fault."""
ATTEMPTS = "5"
_STALL = """
    select coalesce(extract(epoch from max(at - before)), 0) from (
        select at, lag(at) over (order by at) before from effects_log) e"""
"""The longest time without any effect."""


def prove(
    pg: int, tell: Callable[[str], None], seconds: float = 600.0, seed: int | None = None, packs: Packs = EVERYTHING
) -> dict[str, Any]:
    seed = random.SystemRandom().randrange(1_000_000) if seed is None else seed
    faults = schedule(seed, seconds, packs)
    tell(f"seed {seed}: {len(faults)} faults in {seconds:.0f} s")
    with world(pg, tell, keys=KEYS) as (here, proxies):
        victims = [*here.relays(RELAYS), *here.workers(WORKERS)]
        writers = load(here)
        here.until("effects come", lambda: int(here.ask("select count(*) from effects_log")) > 0)
        tormentor = Tormentor(faults, [*victims, *writers], proxies, seed, tell)
        watch = Watch(here)
        try:
            torment(here, tormentor, watch, seconds, tell)
        finally:
            tormentor.close()
        missed = Counter(fault.name for fault in faults).keys() - tormentor.done.keys()
        result = finish(here, writers, tell)
        return result | {
            "seed": seed, "faults": tormentor.done.total(), "faults_by_kind": dict(sorted(tormentor.done.items())),
            "attempts_spent": result["attempts_spent"] + watch.attempts,
            "rss_max_mb": watch.rss_max_mb(), "not_done": sorted(missed),
            "ok": result["ok"] and not watch.attempts and not missed,
        }


def drop(pg: int, tell: Callable[[str], None], seconds: float = 60.0, seed: int | None = None) -> dict[str, Any]:
    """Every connection is reset, again and again."""
    return prove(pg, tell, seconds, seed, {"broker": ["drop"], "database": ["drop"]})


def delay(pg: int, tell: Callable[[str], None], seconds: float = 60.0, seed: int | None = None) -> dict[str, Any]:
    """Bytes come late."""
    return prove(pg, tell, seconds, seed, {"broker": ["delay"], "database": ["delay"]})


def half_close(pg: int, tell: Callable[[str], None], seconds: float = 60.0, seed: int | None = None) -> dict[str, Any]:
    """One direction is silent."""
    silences: Sequence[Kind] = ("silent requests", "silent answers", "lost answers")
    return prove(pg, tell, seconds, seed, {"broker": silences, "database": silences})


def stop(pg: int, tell: Callable[[str], None], seconds: float = 60.0, seed: int | None = None) -> dict[str, Any]:
    """Relays, workers and writers are frozen for longer than the lease, and thawed."""
    return prove(pg, tell, seconds, seed, {"processes": ["stop child", "stop tree"]})


@contextlib.contextmanager
def world(pg: int, tell: Callable[[str], None], *, keys: int, **environ: str) -> Iterator[tuple[Ground, Proxies]]:
    """A ground whose processes reach both servers through proxies, in a consumer group of its own."""
    broker_url = os.environ["BOTHENDS_TEST_KAFKA_URL"]
    broker, database = address_of(broker_url), address_of(server_url(pg))
    assert broker is not None
    assert database is not None, urlsplit(server_url(pg)).hostname
    proxies = Proxies({"broker": broker, "database": database}, kafka=["broker"])
    try:
        with ground(
            pg, keys=keys, told=tell, broker=moved(broker_url, proxies.addresses["broker"]),
            database=proxies.addresses["database"], BOTHENDS_GROUP_PREFIX=f"soak-{uuid.uuid4().hex[:8]}-",
            BOTHENDS_LOG_FORMAT="json", BOTHENDS_LOG_COUNTS_S="1", PROVE_ATTEMPTS=ATTEMPTS, **environ,
        ) as here:
            yield here, proxies
    finally:
        proxies.close()


def load(here: Ground) -> list[Process]:
    """Writers that are started again when they die."""
    writers = here.writers(WRITERS, keys=KEYS, rate=RATE, together=TOGETHER, backlog=BACKLOG, again=True)
    for writer in writers:
        writer.wanted = True
    return writers


def finish(here: Ground, writers: list[Process], tell: Callable[[str], None], *, failing: bool = False) -> dict[str, Any]:
    """No more faults: writers stop, everything comes to rest, and the audit. ``failing``: some handlers fail on purpose."""
    here.stop(writers)
    tell("the last fault is over, nothing more is written; waiting until all is quiet")
    began = time.monotonic()
    last = Waiting()

    def is_quiet() -> bool:
        nonlocal last
        if not here.settled():
            return False
        last = here.waiting()
        return last.settled

    with contextlib.suppress(TimeoutError):  # the audit says what is missing
        here.until("everything is quiet", is_quiet, timeout_s=QUIET_S)
    quiet_s, last = time.monotonic() - began, here.waiting()
    here.stop([process for process in here.fleet.processes.values() if process.wanted])
    found, charged = audit(here), here.failed_runs()
    for line in [] if failing else charged[:10]:
        tell(f"charged: {line}")
    return found | {
        "dead": last.dead, "parked": last.parked, "still_under_way": last.outbox + last.lag, "attempts_spent": len(charged),
        "quiet_s": round(quiet_s, 1), "longest_stall_s": round(float(here.ask(_STALL)), 1),
        "ok": clean(found) and last.settled and not last.dead and (failing or not charged),
    }


class Watch:
    """Looks each second: memory, attempts that were charged, and how far the work is."""

    def __init__(self, here: Ground) -> None:
        self._here = here
        self._rss_max_kb: dict[str, int] = {}
        self.written = self.effects = self.attempts = 0

    def look(self) -> None:
        here = self._here
        self.written, self.effects = here.db.execute(
            "select (select count(*) from written), (select count(*) from effects_log)").fetchall()[0]
        self.attempts = max(self.attempts, here.outbox_attempts()[0])
        for process in here.fleet.processes.values():
            if process.running is not None and process.running.poll() is None:
                kind = process.name.partition("-")[0]
                children = children_of(process.running.pid)
                self._remember(f"{kind} supervisor" if children else kind, process.running.pid)
                for child in children:
                    self._remember(kind, child)

    def _remember(self, kind: str, pid: int) -> None:
        with contextlib.suppress(OSError):  # it has just ended
            for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines():
                if line.startswith("VmHWM:"):
                    self._rss_max_kb[kind] = max(self._rss_max_kb.get(kind, 0), int(line.split()[1]))

    def rss_max_mb(self) -> dict[str, int]:
        return {kind: round(kb / 1024) for kind, kb in sorted(self._rss_max_kb.items())}


def torment(here: Ground, tormentor: Tormentor, watch: Watch, seconds: float, tell: Callable[[str], None]) -> None:
    """Until the time is over and everything drawn was done and taken back."""
    began = time.monotonic()
    looked = told = -TELL_S
    while (now_s := time.monotonic() - began) < seconds or not tormentor.idle:
        tormentor.tick(now_s)
        here.fleet.tend()
        if now_s - looked >= LOOK_S:
            watch.look()
            looked = now_s
        if now_s - told >= TELL_S:
            going_on = f"; now: {', '.join(tormentor.lasting)}" if tormentor.lasting else ""
            tell(f"{now_s:.0f} of {seconds:.0f} s: {watch.written} written, {watch.effects} handled, "
                 f"{tormentor.done.total()} faults{going_on}")
            told = now_s
        time.sleep(TICK_S)
