"""One key fails among ten thousand events of other keys [S5]: nothing later of it is handled before it, and the others
lose at most a twentieth. Twice: it succeeds on its sixth run; it dies on the fifth, is held, and is redriven.

One worker, at work all the time, is given window after window of ten thousand events; in every second one a key fails. Each
window is compared with the undisturbed ones beside it: neighbours in time share the machine's moods.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import psycopg

from tests.acceptance.audit import audit, clean
from tests.acceptance.ground import APP, Ground, ground
from tests.acceptance.load import change

GOOD, KEYS, PAIRS = 10_000, 64, 9
BAD_EVERY = 1_000
"""Every so many events one of the key that fails: ten of it in all, of which the first fails."""
LOSS_MAX = 0.05

_DONE = "select count(*) from effects_log where starts_with(key, 'k')"
_DEAD = "select count(*) from bothends.dead_letters where state = 'open'"
_RATE = "select count(*) / extract(epoch from max(at) - min(at))::float8 from effects_log where starts_with(key, 'k')"


def prove(pg: int, tell: Callable[[str], None], events: int = GOOD, pairs: int = PAIRS) -> dict[str, Any]:
    cases = {"sixth_run": {"PROVE_ATTEMPTS": "6"}, "held": {"PROVE_ATTEMPTS": "5", "PROVE_THEN": "hold"}}
    sums = dict.fromkeys(("lost", "double_effects", "never_written", "order_violations"), 0)
    result: dict[str, Any] = {}
    losses: list[float] = []
    for name, environ in cases.items():
        with ground(pg, keys=KEYS, told=tell, **environ) as here:
            here.relays(1)
            here.workers(1)
            _window(here, name, 0, events, bad=False, sums=sums)  # everything is warm after it
            rates = [
                _window(here, name, n, events, bad=n % 2 == 0, sums=sums) for n in range(1, 2 * pairs + 2)
            ]
        undisturbed, disturbed = rates[::2], rates[1::2]
        beside = [disturbed[n] * 2 / (undisturbed[n] + undisturbed[n + 1]) for n in range(pairs)]
        losses.append(1 - statistics.median(beside))
        result |= {
            f"{name}_undisturbed_events_per_second": round(statistics.median(undisturbed)),
            f"{name}_events_per_second": round(statistics.median(disturbed)), f"{name}_loss": round(losses[-1], 3),
        }
    return {**sums, **result, "loss": round(max(losses), 3), "ok": clean(sums) and max(losses) <= LOSS_MAX}


def _window(here: Ground, name: str, number: int, events: int, *, bad: bool, sums: dict[str, int]) -> float:
    """One window, from its writing to its audit; how many events of the others per second were handled in it."""
    failing = f"bad{number}"
    here.db.execute("insert into state (key) values (%s)", (failing,))
    with psycopg.connect(here.url) as c, c.pipeline():
        for n in range(events):
            change(c, f"k{n % KEYS}", "", strict=False, topic=here.topic)
            if bad and n % BAD_EVERY == BAD_EVERY // 2:
                change(c, failing, "fails:5" if n == BAD_EVERY // 2 else "", strict=False, topic=here.topic)
    here.until("the others are done", lambda: int(here.ask(_DONE)) >= events)
    if bad and name == "held":
        here.until("its key is held", lambda: int(here.ask(_DEAD)) == 1)
        assert here.ask("select count(*) from effects_log where key = %s", failing) == 0
        _redrive(here)
    here.until("everything has settled", here.settled)
    found = audit(here)
    rate = float(here.ask(_RATE))
    here.told(f"{name}, window {number}{' with the failing key' if bad else ''}: {rate:.0f} events/s, {found}")
    for kind in sums:
        sums[kind] += found[kind]
    here.db.execute("truncate effects_log, written")
    return rate


def _redrive(here: Ground) -> None:
    """As an operator would: the attempts begin anew, so the event is mended (its note asked for failures) and redriven."""
    dead, key = here.db.execute(
        "select id, convert_from(key, 'UTF8') from bothends.dead_letters where state = 'open'").fetchall()[0]
    subprocess.run(
        [sys.executable, "-m", "bothends", "dead", "edit", str(dead), "--body", "-", "--redrive", "--app", APP,
         "--consumer", "prove.ledger", "--reason", "proof", "--by", "prove", "--yes"],
        env=here.environ, check=True, stdout=subprocess.DEVNULL, input=f'{{"key":"{key}","note":""}}'.encode(),
    )
