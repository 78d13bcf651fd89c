"""Four relays and four workers at full load; SIGKILL of a random one every second."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from bothends.demo.processes import Process
from tests.acceptance.audit import audit, clean
from tests.acceptance.ground import Ground, ground

GAP_S = 5.0
GAP_GROUP_S = 10.0
"""The member of a Kafka group that nobody restarts; ours are restarted, so this is the outer bound only."""

_GAPS = """
    select coalesce(max(gap), 0)::float8 from (
        select extract(epoch from at - lag(at) over (partition by part order by at)) gap
        from effects_log where at between %s and %s) g"""


def prove(pg: int, tell: Callable[[str], None], seconds: float = 120.0) -> dict[str, Any]:
    rng = random.Random(pg)
    with ground(pg, keys=256, told=tell) as here:
        relays, workers = here.relays(4), here.workers(4)
        here.until("lanes are taken", lambda: here.ask("select count(*) from bothends.relay_lanes where relay is null") == 0)
        writers = here.writers(2, keys=256)
        here.until("effects come", lambda: int(here.ask("select count(*) from effects_log")) > 1000)
        start = here.ask("select clock_timestamp()")
        kills = _kill_one_a_second(here, [*relays, *workers], rng, seconds, tell)
        end = here.ask("select clock_timestamp()")
        for writer in writers:
            writer.stop()
        here.until("everything has settled", here.settled, timeout_s=600)
        found = audit(here)
        gap_s = round(here.ask(_GAPS, start, end), 2)
        return {
            **found, "kills": kills, "longest_gap_s": gap_s, "events_per_second": round(found["events"] / seconds),
            "ok": clean(found) and gap_s <= GAP_GROUP_S and kills >= seconds * 0.8,
        }


def _kill_one_a_second(
    here: Ground, victims: list[Process], rng: random.Random, seconds: float, tell: Callable[[str], None]
) -> int:
    began, kills = time.monotonic(), 0
    for second in range(int(seconds)):
        while time.monotonic() < began + second:
            here.fleet.tend()
            time.sleep(0.02)
        killed = rng.choice(victims).kill(rng)
        kills += killed is not None
        here.fleet.tend()
        if second % 10 == 0:
            tell(f"{kills} kills, {here.ask('select count(*) from effects_log')} effects")
    return kills
