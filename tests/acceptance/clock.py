"""Clocks: the processes of one system disagree by twenty minutes, some ten ahead, some ten behind, while they are killed and
frozen, and while some handlers fail twice and wait for their retry. Leases, retries and order go by the database's clock [P9].
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bothends.demo.processes import Process
from tests.acceptance.drawing import schedule
from tests.acceptance.ground import Ground
from tests.acceptance.soak import KEYS, Watch, finish, load, torment, world
from tests.acceptance.tormenting import Tormentor

SKEWED = Path(__file__).parent / "skewed"
SKEW_S = 600.0
CLOCKS_S = {
    "relay-0": SKEW_S, "relay-1": -SKEW_S, "work-0": -SKEW_S, "work-1": SKEW_S, "writer-0": SKEW_S, "writer-1": -SKEW_S,
}
STALL_MAX_S = 20.0
"""A lease that went by a wrong clock would hold its lanes for ten minutes."""


def prove(pg: int, tell: Callable[[str], None], seconds: float = 60.0, seed: int | None = None) -> dict[str, Any]:
    seed = random.SystemRandom().randrange(1_000_000) if seed is None else seed
    faults = schedule(seed, seconds, {"processes": ["kill", "stop child", "kill", "stop tree"]})
    tell(f"seed {seed}: {len(faults)} faults in {seconds:.0f} s, clocks {CLOCKS_S}")
    with world(pg, tell, keys=KEYS) as (here, proxies):
        here.own |= {
            name: {"PROVE_CLOCK_S": str(clock_s), "PYTHONPATH": f"{SKEWED}:{here.environ['PYTHONPATH']}"}
            for name, clock_s in CLOCKS_S.items()
        }
        victims = [*here.relays(2), *here.workers(2)]
        writers = [*load(here), *_failing(here)]
        here.until("effects come", lambda: int(here.ask("select count(*) from effects_log")) > 0)
        tormentor, watch = Tormentor(faults, [*victims, *writers], proxies, seed, tell), Watch(here)
        try:
            torment(here, tormentor, watch, seconds, tell)
        finally:
            tormentor.close()
        seen = {process.name: _seen(process) for process in victims}
        result = finish(here, writers, tell, failing=True)
        wrong = [name for name, skew_s in seen.items() if abs(skew_s - CLOCKS_S[name]) > seconds + 60]
        return result | {
            "seed": seed, "faults": tormentor.done.total(), "clocks_s": {name: round(s) for name, s in seen.items()},
            "ok": result["ok"] and not wrong and not watch.attempts and result["attempts_spent"] > 0
            and result["longest_stall_s"] <= STALL_MAX_S,
        }


def _failing(here: Ground) -> list[Process]:
    """A writer of events whose handler fails twice: they are parked, and wait for their time."""
    [writer] = here.writers(1, first=2, keys=KEYS, rate=2, note="fails:2", again=True)
    writer.wanted = True
    return [writer]


def _seen(process: Process) -> float:
    """By how much the clock of this process is ahead, as its last line of log says."""
    *_, last = (line for line in process.log_lines() if "at" in line)
    return (datetime.fromisoformat(last["at"]) - datetime.fromtimestamp(time.time(), UTC)).total_seconds()
