"""The slot goes while events commit: again and again its sender is ended and it is dropped by hand; or it is dropped, and made
again further on, while every relay is frozen or stopped. Relays read the log (``wal``): one reads, one stands by."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg

from bothends.demo.processes import Process, children_of
from tests.acceptance.ground import Ground, ground
from tests.acceptance.log_reading import Readings, duplicates, said
from tests.acceptance.soak import ATTEMPTS, KEYS, Watch, finish
from tests.acceptance.tormenting import Frozen

WRITERS, RATE, TOGETHER = 2, 100, 3
EVERY_S = 3.0
BETWEEN_S = 0.5
"""From drop to made again. Much less than a lease: nobody takes a frozen reader's place."""
READ_S = 60.0
_EFFECTS = "select count(*) from effects_log"
_WRITTEN = "select count(*) from written"
_SLOTS = "select slot_name::text from pg_replication_slots where database = current_database()"
_END = """select pg_terminate_backend(active_pid, 5000) from pg_replication_slots
    where database = current_database() and active_pid is not null"""
_DROP = "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = current_database()"
_MAKE = "select pg_create_logical_replication_slot(%s, 'pgoutput')"


def prove(pg: int, tell: Callable[[str], None], seconds: float = 40.0) -> dict[str, Any]:
    with ground(
        pg, keys=KEYS, told=tell, BOTHENDS_RELAY_SOURCE="wal", BOTHENDS_GROUP_PREFIX=f"slot-{uuid.uuid4().hex[:8]}-",
        BOTHENDS_LOG_FORMAT="json", BOTHENDS_LOG_COUNTS_S="1", PROVE_ATTEMPTS=ATTEMPTS,
    ) as here:
        relays = here.relays(2)
        here.workers(2)
        readings, watch = Readings(here), Watch(here)
        here.until("the log is read", readings.look, timeout_s=READ_S)
        writers = here.writers(WRITERS, keys=KEYS, rate=RATE, together=TOGETHER)
        here.until("effects come", lambda: int(here.ask(_EFFECTS)) > 500)
        harms = _torment(here, relays, readings, watch, seconds, tell)
        here.until("the log is read again", readings.look, timeout_s=READ_S)
        before = int(here.ask(_EFFECTS))
        here.until("effects come again", lambda: int(here.ask(_EFFECTS)) > before + 500)
        result = finish(here, writers, tell)
        heard = said(here)
        return result | heard | {
            "harms": dict(harms), "read_again_max_s": round(max(readings.took_s), 2), "read_again": len(readings.took_s),
            "duplicates_delivered": duplicates(here), "attempts_spent": result["attempts_spent"] + watch.attempts,
            "ok": result["ok"] and not watch.attempts and len(harms) == 3 and {"wal", "poll"} <= heard["sources"].keys(),
        }


def _torment(
    here: Ground, relays: list[Process], readings: Readings, watch: Watch, seconds: float, tell: Callable[[str], None]
) -> Counter[str]:
    harms: Counter[str] = Counter()
    began = time.monotonic()
    for number in range(1, int(seconds / EVERY_S) + 1):
        _wait(here, readings, began + number * EVERY_S)
        watch.look()
        name, harm = HARMS[number % len(HARMS)]
        what = harm(here, relays)
        if what:
            readings.harm()
            harms[name] += 1
        tell(f"{name if what else 'there was no slot'}; {watch.written} written, {watch.effects} handled")
    return harms


def _wait(here: Ground, readings: Readings, due: float) -> None:
    def is_due() -> bool:
        readings.look()
        return time.monotonic() >= due

    here.until("the next harm is due", is_due)


def _drop(here: Ground) -> str:
    """As an operator would: the reader comes back at once, so it may take a few tries. Empty: there was none."""
    while here.db.execute(_SLOTS).fetchall():
        here.db.execute(_END)
        with contextlib.suppress(psycopg.errors.ObjectInUse):
            if here.db.execute(_DROP).fetchall():
                return "dropped"
    return ""


def _drop_and_make(here: Ground) -> str:
    """What commits between the two is in no slot's stream."""
    names = [name for (name,) in here.db.execute(_SLOTS).fetchall()]
    if not _drop(here):
        return ""
    written = int(here.ask(_WRITTEN))
    until = time.monotonic() + BETWEEN_S
    here.until("events were committed", lambda: time.monotonic() > until and int(here.ask(_WRITTEN)) > written)
    for name in names:
        here.db.execute(_MAKE, (name,))
    return "dropped and made again"


def _while_frozen(here: Ground, relays: list[Process]) -> str:
    """The reader finds its stream ended, and polls before it tries again."""
    trees = [pid for relay in relays if relay.running is not None for pid in
             (relay.running.pid, *children_of(relay.running.pid))]
    frozen = Frozen(trees)
    try:
        return _drop_and_make(here)
    finally:
        frozen.thaw()


def _while_stopped(here: Ground, relays: list[Process]) -> str:
    """Those that start know nothing of it: there is a slot, and a stored position."""
    here.stop(relays)
    what = _drop_and_make(here)
    for relay in relays:
        relay.start()
    return what


HARMS: list[tuple[str, Callable[[Ground, list[Process]], str]]] = [
    ("dropped", lambda here, relays: _drop(here)), ("made again while relays were frozen", _while_frozen),
    ("dropped", lambda here, relays: _drop(here)), ("made again while relays were stopped", _while_stopped),
]
