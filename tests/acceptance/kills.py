"""Four relays and four workers at full load; SIGKILL of a random one every second.

Work goes on: from each kill until the partitions of the killed worker have effects again, and until the lanes of the killed
relay have a relay again, at most 5 s pass (10 s where the member of a Kafka group stays dead, which ours never do). A
process that is killed again before that starts its clock anew.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bothends.demo.processes import Process, children_of
from tests.acceptance.audit import audit, clean
from tests.acceptance.ground import Ground, ground

BACKLOG = 3_000
"""Full load: so many events wait all the time, and the writers take no more of the two cores than that needs."""
RESUME_S = 5.0
GROUP_S = 10.0

_GAPS = """
    select part, pid, before, at from (
        select part, at, lag(at) over w before, lag(pid) over w pid from effects_log
        where at between %s and %s window w as (partition by part order by at, seq)) g
    where before is not null order by at - before desc limit 50"""
_LONGEST = f"select max(extract(epoch from at - before)) from ({_GAPS}) g"
_SPREAD = """
    select count(distinct pid) from effects_log where at > clock_timestamp() - interval '1 second'"""


@dataclass(frozen=True)
class Kill:
    at: Any
    """The database's clock."""
    name: str
    pids: frozenset[int]
    """The processes that ended with it."""


def prove(pg: int, tell: Callable[[str], None], seconds: float = 120.0) -> dict[str, Any]:
    rng = random.Random(pg)
    with ground(pg, keys=256, told=tell, BOTHENDS_SPARE="true") as here:
        victims = [*here.relays(4), *here.workers(4)]
        here.until("lanes are taken", lambda: here.ask("select count(*) from bothends.relay_lanes where relay is null") == 0)
        writers = here.writers(2, keys=256, backlog=BACKLOG)
        here.until("every worker has its share", lambda: int(here.ask(_SPREAD)) == 4)
        start = here.ask("select clock_timestamp()")
        kills = _kill_one_a_second(here, victims, rng, seconds, tell)
        end = here.ask("select clock_timestamp()")
        here.stop(writers)
        here.until("everything has settled", here.settled, timeout_s=600)
        found = audit(here)
        workers = [resumed for resumed in _resumed(here, kills, start, end) if resumed is not None]
        return {
            **found, "kills": len(kills), "resumed_max_s": round(max(workers, default=0.0), 2),
            "longest_gap_s": round(float(here.ask(_LONGEST, start, end)), 2),
            "events_per_second": round(found["events"] / seconds),
            "ok": clean(found) and max(workers, default=0.0) <= RESUME_S and len(kills) >= seconds * 0.8,
        }


def _at_work(process: Process) -> int | None:
    """The relay or worker of this supervisor that has said that it is ready, and lives."""
    if process.running is None:
        return None
    children = children_of(process.running.pid)
    ready = [line["pid"] for line in process.log_lines() if line.get("event") == "ready" and line["pid"] in children]
    return int(ready[-1]) if ready else None


def _resumed(here: Ground, kills: list[Kill], start: Any, end: Any) -> list[float | None]:
    """For each of the longest gaps of a partition: seconds from the last kill of its worker within the gap to the gap's
    end; where its worker was not killed, the whole gap (minus nothing: somebody has to answer for it)."""
    found: list[float | None] = []
    for _, pid, before, at in here.db.execute(_GAPS, (start, end)).fetchall():
        owners = {kill.name for kill in kills if pid in kill.pids}
        times = [kill.at for kill in kills if kill.name in owners and before <= kill.at <= at]
        found.append((at - max(times, default=before)).total_seconds())
    return found


def _kill_one_a_second(
    here: Ground, victims: list[Process], rng: random.Random, seconds: float, tell: Callable[[str], None]
) -> list[Kill]:
    began = time.monotonic()
    kills: list[Kill] = []
    for second in range(int(seconds)):
        while time.monotonic() < began + second:
            here.fleet.tend()
            time.sleep(0.02)
        # One that is at work; the relay or worker itself, every tenth time its supervisor, which takes it along.
        at_work = [(one, pid) for one in victims if (pid := _at_work(one)) is not None]
        if not at_work:
            continue
        victim, pid = rng.choice(at_work)
        assert victim.running is not None
        children = children_of(victim.running.pid)
        supervisor = second % 10 == 9
        os.kill(victim.running.pid if supervisor else pid, signal.SIGKILL)
        if supervisor:
            victim.running.wait()
            victim.restarts = -1  # this death is ours
        kills.append(Kill(here.ask("select clock_timestamp()"), victim.name, frozenset(children)))
        here.fleet.tend()
        if second % 10 == 0:
            tell(f"{len(kills)} kills, {here.ask('select count(*) from effects_log')} effects")
    return kills


if __name__ == "__main__":  # where did the gaps come from?
    import sys

    with ground(15, keys=256, told=print, BOTHENDS_SPARE="true") as here:
        victims = [*here.relays(4), *here.workers(4)]
        here.writers(2, keys=256, backlog=BACKLOG)
        here.until("every worker has its share", lambda: int(here.ask(_SPREAD)) == 4)
        start = here.ask("select clock_timestamp()")
        kills = _kill_one_a_second(here, victims, random.Random(1), float(sys.argv[1]), print)
        end = here.ask("select clock_timestamp()")
        for part, pid, before, at in here.db.execute(_GAPS, (start, end)).fetchall()[:12]:
            print(part, pid, f"{(before - start).total_seconds():.1f}..{(at - start).total_seconds():.1f}",
                  [(k.name, f"{(k.at - start).total_seconds():.1f}", pid in k.pids) for k in kills if before <= k.at <= at])
        for p in here.fleet.processes.values():
            if p.name.startswith("work"):
                print(p.name, p.last_words(25))
