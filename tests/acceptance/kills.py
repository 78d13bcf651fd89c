"""Four relays and four workers at full load; SIGKILL of a random one every second.

Full load: two writers commit pipelines of many changes, and keep so much waiting (``BACKLOG``) that relays and workers always
have something to do; ``cores_busy`` says what is left of the machine.

Work goes on within 5 s of each kill (10 s where the member of a Kafka group stays dead, which ours never do): the lanes of a
relay that died have a relay that lives, and the partitions of a worker that died have effects again. A kill that hits the same
partition before that starts its clock anew; a gap that no kill explains counts in full.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from bothends.demo.processes import Process, children_of
from tests.acceptance.audit import audit, clean
from tests.acceptance.ground import Ground, ground

BACKLOG = 1_000
WORKERS = 4
SPARES = "2"
"""One process may be hit twice before its next spare is ready."""
TOGETHER = 20
"""Changes in one transaction: writers that commit each by itself do not fill four relays and four workers."""
RESUME_S = 5.0
SUPERVISOR = 1 / 10
"""How often the kill hits the supervisor, which takes its child along."""
LANES_LOOK_S = 0.1
LOOK_S = 1.0
"""Gaps shorter than this are how the work runs."""
_GAPS = """
    select part, pid, before, at, after from (
        select part, at, pid after, lag(at) over w before, lag(pid) over w pid from effects_log
        window w as (partition by part order by at, seq)) g
    where at - before > make_interval(secs => %s) and at >= %s and before <= %s order by at - before desc"""
_OWNERS = "select lane, r.pid from bothends.relay_lanes l left join bothends.relays r on r.id = l.relay"
_SPREAD = """
    select count(distinct pid) from effects_log where at > clock_timestamp() - interval '1 second'"""
_WAITING = "select (select count(*) from written) - (select count(*) from effects_log)"


@dataclass(frozen=True)
class Kill:
    at: datetime
    """The database's clock."""
    name: str
    supervisor: bool
    members: frozenset[int]
    """Which member of the group died with it. One that was on its way to be a member again: the one that it would have been,
    which of those that nobody was just then is the last to have died (those that died before it are replaced before it)."""
    absent: frozenset[int]
    """The members that nobody was when it died."""


@dataclass(frozen=True)
class Gap:
    partition: int
    began: datetime
    length_s: float
    resumed_s: float
    """From the last kill that hit it to its end."""
    supervisor: bool
    """Whether that kill took a supervisor along: then nobody of ours was left to start anything."""


def prove(pg: int, tell: Callable[[str], None], seconds: float = 120.0) -> dict[str, Any]:
    rng = random.Random(pg)
    with ground(pg, keys=256, told=tell, BOTHENDS_SPARES=SPARES) as here:
        busy = _Cores()
        lanes = _Lanes(here)
        start, end, kills = _run(here, rng, seconds, tell, lanes)
        cores_busy = busy.share()
        here.until("everything has settled", here.settled, timeout_s=600)
        found = audit(here)
        gaps = _gaps(here, kills, start, end)
        resumed_s = max((gap.resumed_s for gap in gaps), default=0.0)
        return {
            **found, "kills": len(kills), "resumed_max_s": round(resumed_s, 2), "lanes_back_max_s": round(lanes.longest_s(), 2),
            "resumed_after_supervisor_max_s": round(max((gap.resumed_s for gap in gaps if gap.supervisor), default=0.0), 2),
            "longest_gap_s": round(max((gap.length_s for gap in gaps), default=0.0), 2),
            "cores_busy": round(cores_busy, 2), "events_per_second": round(found["events"] / seconds),
            "ok": clean(found) and max(resumed_s, lanes.longest_s()) <= RESUME_S and len(kills) >= seconds * 0.95,
        }


class _Lanes:
    """For how long lanes were without a relay that lives."""

    def __init__(self, here: Ground) -> None:
        self._here = here
        self._lost: dict[int, float] = {}
        self._longest_s = 0.0

    def look(self) -> None:
        now = time.monotonic()
        for lane, pid in self._here.db.execute(_OWNERS).fetchall():
            if pid is None or not os.path.exists(f"/proc/{pid}"):
                self._lost.setdefault(lane, now)
            elif lane in self._lost:
                self._longest_s = max(self._longest_s, now - self._lost.pop(lane))

    def longest_s(self) -> float:
        now = time.monotonic()
        return max(self._longest_s, max((now - since for since in self._lost.values()), default=0.0))


class _Cores:
    """How busy all cores were since this was made, 0 to 1."""

    def __init__(self) -> None:
        self._idle, self._all = self._read()

    @staticmethod
    def _read() -> tuple[int, int]:
        with open("/proc/stat", encoding="ascii") as stat:
            ticks = [int(word) for word in stat.readline().split()[1:9]]
        return ticks[3] + ticks[4], sum(ticks)

    def share(self) -> float:
        idle, all = self._read()
        return 1 - (idle - self._idle) / max(1, all - self._all)


def _run(
    here: Ground, rng: random.Random, seconds: float, tell: Callable[[str], None], lanes: _Lanes
) -> tuple[datetime, datetime, list[Kill]]:
    victims = [*here.relays(4), *here.workers(WORKERS)]
    here.until("lanes are taken", lambda: here.ask("select count(*) from bothends.relay_lanes where relay is null") == 0)
    writers = here.writers(2, keys=256, backlog=BACKLOG, together=TOGETHER)
    here.until("every worker has its share", lambda: int(here.ask(_SPREAD)) == WORKERS)
    start = here.ask("select clock_timestamp()")
    kills = _kill_one_a_second(here, victims, rng, seconds, tell, lanes)
    end = here.ask("select clock_timestamp()")
    here.stop(writers)
    return start, end, kills


def _kill_one_a_second(
    here: Ground, victims: list[Process], rng: random.Random, seconds: float, tell: Callable[[str], None], lanes: _Lanes
) -> list[Kill]:
    began = time.monotonic()
    kills: list[Kill] = []
    looked = 0.0
    for second in range(int(seconds)):
        while time.monotonic() < began + second:
            here.fleet.tend()
            if time.monotonic() > looked + LANES_LOOK_S:
                lanes.look()
                looked = time.monotonic()
            time.sleep(0.02)
        kill = _kill(here, rng.choice(victims), rng)
        if kill is not None:
            kills.append(kill if kill.members or kill.name.startswith("relay") else replace(kill, members=_wanted(kill, kills)))
        here.fleet.tend()
        if second % 10 == 0:
            tell(f"{len(kills)} kills, {here.ask('select count(*) from effects_log')} effects, {here.ask(_WAITING)} wait")
    return kills


def _kill(here: Ground, victim: Process, rng: random.Random) -> Kill | None:
    """SIGKILL to this relay or worker, at work or on its way there, or to its supervisor. None: it ended just now."""
    if victim.running is None or victim.running.poll() is not None:
        return None
    children = children_of(victim.running.pid)
    ready = [line["pid"] for line in victim.log_lines() if line.get("event") == "ready" and line["pid"] in children]
    supervisor = not children or rng.random() < SUPERVISOR
    # A child that has not said that it is ready may be on its way, or the spare.
    dying = children if supervisor else ready[-1:] or [rng.choice(children)]
    members = frozenset(_members(here, dying))
    absent = frozenset(range(WORKERS)) - {*_members(here)}
    try:
        os.kill(victim.running.pid if supervisor else dying[0], signal.SIGKILL)
    except ProcessLookupError:
        return None
    if supervisor:
        victim.running.wait()
        victim.restarts = -1  # this death is ours
    return Kill(here.ask("select clock_timestamp()"), victim.name, supervisor, members, absent)


def _wanted(kill: Kill, before: list[Kill]) -> frozenset[int]:
    """The member that one which was none yet would have become."""
    died = {member: nth for nth, one in enumerate(before) for member in one.members}
    return frozenset(sorted(kill.absent, key=lambda member: died.get(member, -1))[-1:])


def _members(here: Ground, pids: Collection[int] | None = None) -> list[int]:
    """The members of the consumer group that these processes are (None: that anybody is): whose lock files they hold."""
    files = {file.stat().st_ino: int(file.name.split(".")[-2]) for file in (here.folder / "run").glob("*.member")}
    held = []
    with open("/proc/locks", encoding="ascii") as locks:
        for line in locks:
            words = line.split()  # 1: FLOCK ADVISORY WRITE <pid> <major:minor:inode> 0 EOF
            if words[1] == "FLOCK" and (pids is None or int(words[4]) in pids):
                held.append(files.get(int(words[5].rpartition(":")[2])))
    return [member for member in held if member is not None]


def _gaps(here: Ground, kills: list[Kill], start: datetime, end: datetime) -> list[Gap]:
    """The longest first. A kill hits a gap when the process that died is the member of the group that had the partition
    before it, or has it after it (a process takes over the member of one that died)."""
    member = {line["pid"]: line["member"] for p in here.fleet.processes.values() for line in p.log_lines() if "member" in line}
    found: list[Gap] = []
    for part, pid, before, at, after in here.db.execute(_GAPS, (LOOK_S, start, end)).fetchall():
        members = {member.get(pid), member.get(after)} - {None}
        hits = [kill for kill in kills if before <= kill.at <= at and kill.members & members]
        last = max(hits, key=lambda kill: kill.at, default=None)
        found.append(Gap(
            part, before, (at - before).total_seconds(), (at - (last.at if last else before)).total_seconds(),
            last is not None and last.supervisor,
        ))
    return found


if __name__ == "__main__":  # where did the gaps come from?  python -m tests.acceptance.kills SECONDS [15|18]
    import sys

    with ground(int((sys.argv[2:] or ["15"])[0]), keys=256, told=print, BOTHENDS_SPARES=SPARES) as here:
        lanes = _Lanes(here)
        start, end, kills = _run(here, random.Random(1), float(sys.argv[1]), print, lanes)
        for kill in kills:
            print(f"{(kill.at - start).total_seconds():6.1f} s: {kill.name}{' (supervisor)' * kill.supervisor}", end=" ")
            print(*(f"member {member}" for member in kill.members))
        print(f"lanes were without a relay for up to {lanes.longest_s():.1f} s")
        for gap in _gaps(here, kills, start, end)[:15]:
            began_s = (gap.began - start).total_seconds()
            print(f"partition {gap.partition}: {began_s:.1f} + {gap.length_s:.1f} s, {gap.resumed_s:.1f} s after the last kill",
                  "(of a supervisor)" * gap.supervisor)
