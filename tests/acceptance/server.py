"""The server dies: a PostgreSQL of the proof's own is killed with all its processes while events commit, and started again, at
moments that a seed draws. Relays read the log, of rows (``wal``) or of messages (``message``, ``SOURCE=message``)."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from typing import Any

from tests.acceptance.ground import Ground, ground
from tests.acceptance.log_reading import Readings, duplicates, said
from tests.acceptance.servers import Server, servers
from tests.acceptance.soak import ATTEMPTS, KEYS, Watch, finish, load

KILLS = 6
PAUSE_S = (0.2, 4.0)
"""From the log being read to the next kill."""
READ_S = 90.0
_EFFECTS = "select count(*) from effects_log"


def prove(pg: int, tell: Callable[[str], None], source: str = "wal", seed: int = 1) -> dict[str, Any]:
    rng = random.Random(seed)
    with servers() as folder:
        server = Server(pg, folder, "mortal")
        server.up()
        with ground(
            pg, keys=KEYS, server=server.url, told=tell, BOTHENDS_RELAY_SOURCE=source, PROVE_ATTEMPTS=ATTEMPTS,
            BOTHENDS_GROUP_PREFIX=f"server-{uuid.uuid4().hex[:8]}-", BOTHENDS_LOG_FORMAT="json", BOTHENDS_LOG_COUNTS_S="1",
        ) as here:
            here.relays(2)
            here.workers(2)
            readings, watch = Readings(here), Watch(here)
            here.until("the log is read", readings.look, timeout_s=READ_S)
            writers = load(here)
            for number in range(1, KILLS + 1):
                _more(here)
                until = time.monotonic() + rng.uniform(*PAUSE_S)
                here.until("the next kill is due", lambda until=until: time.monotonic() > until)  # type: ignore[misc]
                watch.look()
                _kill(here, server, readings)
                tell(f"kill {number}: {watch.written} written, {watch.effects} handled; "
                     f"read again {readings.took_s[-1]:.1f} s after the kill")
            _more(here)
            watch.look()
            result = finish(here, writers, tell)
            heard = said(here)
            return result | heard | {
                "source": source, "seed": seed, "kills": KILLS, "read_again_max_s": round(max(readings.took_s), 2),
                "duplicates_delivered": duplicates(here), "attempts_spent": result["attempts_spent"] + watch.attempts,
                "ok": result["ok"] and not watch.attempts and source in heard["sources"],
            }


def _more(here: Ground) -> None:
    before = int(here.ask(_EFFECTS))
    here.until("effects come", lambda: int(here.ask(_EFFECTS)) > before + 500)


def _kill(here: Ground, server: Server, readings: Readings) -> None:
    """And waits until the log is read again."""
    readings.harm()
    server.kill()
    server.up()
    here.look_again()
    here.until("the log is read again", readings.look, timeout_s=READ_S)
