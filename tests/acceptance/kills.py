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

_GAPS = """
    select part, pid, before, at, after from (
        select part, at, pid after, lag(at) over w before, lag(pid) over w pid from effects_log
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
        workers = _resumed(here, kills, start, end)
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


def _resumed(here: Ground, kills: list[Kill], start: Any, end: Any) -> list[float]:
    """For each of the longest gaps of a partition: seconds from the last kill that hit it to its end. A kill hits a
    partition when the process that dies is the member of the group that had the partition before the gap, or has it after
    (a process takes over the member of one that died). A gap that no kill explains counts in full."""
    member = {line["pid"]: line["member"] for p in here.fleet.processes.values() for line in p.log_lines() if "member" in line}
    found: list[float] = []
    for _, pid, before, at, after in here.db.execute(_GAPS, (start, end)).fetchall():
        members = {member.get(pid, pid), member.get(after, after)}
        hits = [k.at for k in kills if before <= k.at <= at and any(member.get(p, p) in members for p in k.pids)]
        found.append((at - max(hits, default=before)).total_seconds())
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
        for (part, pid, before, at, _), resumed in zip(
            here.db.execute(_GAPS, (start, end)).fetchall()[:12], _resumed(here, kills, start, end), strict=False
        ):
            begin, length = (before - start).total_seconds(), (at - before).total_seconds()
            print(f"partition {part} of {pid}: {begin:.1f} + {length:.1f} s, resumed {resumed:.1f} s after the last kill")
