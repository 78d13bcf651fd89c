"""The server is lost and its stand-by is promoted: two servers of PostgreSQL 18 of the proof's own, commits waited for on both.
Once with the slot copied to the stand-by (a failover slot), once without: then the promoted server has none.

Processes reach the database through a proxy, as through an address that moves.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable
from typing import Any

import psycopg

from bothends.demo.proxies import Proxies
from tests.acceptance.ground import Ground, ground
from tests.acceptance.log_reading import Readings, duplicates, said
from tests.acceptance.servers import Server, servers
from tests.acceptance.soak import ATTEMPTS, KEYS, Watch, finish, load

PG = 18
"""Failover slots are of PostgreSQL 17 and later."""
LOAD_S = 10.0
UP_S = 90.0
_EFFECTS = "select count(*) from effects_log"
_IN_STEP = "select exists (select from pg_stat_replication where application_name = 'standby' and sync_state = 'sync')"
_COPIED = """
    select exists (select from pg_replication_slots where slot_type = 'logical' and synced and not temporary
    and invalidation_reason is null)"""
_IS_THE_COPY = "select synced from pg_replication_slots where database = current_database()"


def prove(pg: int, tell: Callable[[str], None]) -> dict[str, Any]:
    found = {}
    for name, copied in (("failover_slot", True), ("no_slot", False)):
        tell(f"{name}:")
        found[name] = _promote(tell, copied)
        tell(f"{name}: {found[name]}")
    return {"pg": PG, **found, "ok": all(one["ok"] for one in found.values())}


def _promote(tell: Callable[[str], None], copied: bool) -> dict[str, Any]:
    with servers() as folder, contextlib.ExitStack() as stack:
        primary = Server(PG, folder, "primary")
        primary.up()
        with psycopg.connect(primary.url, autocommit=True) as connection:
            connection.execute("select pg_create_physical_replication_slot('standby', true)")
        standby = primary.copy("standby", sync_replication_slots="on" if copied else "off")
        standby.up()
        proxies = Proxies({"database": primary.address})
        stack.callback(proxies.close)
        here = stack.enter_context(ground(
            PG, keys=KEYS, server=primary.url, database=proxies.addresses["database"], told=tell, PROVE_ATTEMPTS=ATTEMPTS,
            BOTHENDS_RELAY_SOURCE="wal", BOTHENDS_GROUP_PREFIX=f"promote-{uuid.uuid4().hex[:8]}-",
            BOTHENDS_LOG_FORMAT="json", BOTHENDS_LOG_COUNTS_S="1",
        ))
        _commit_on_both(here)
        here.relays(2)
        here.workers(2)
        readings, watch = Readings(here), Watch(here)
        here.until("the log is read", readings.look, timeout_s=UP_S)
        writers = load(here)
        with psycopg.connect(standby.url, autocommit=True) as other:
            here.until("the slot is copied", lambda: not copied or _first(other, _COPIED), timeout_s=UP_S)
            until = time.monotonic() + LOAD_S
            here.until("effects come", lambda: time.monotonic() > until and int(here.ask(_EFFECTS)) > 1000)
            assert _first(other, _COPIED) == copied
        watch.look()
        assert here.ask(_IN_STEP)
        lost_at = time.monotonic()
        _fail_over(here, primary, standby, proxies, readings)
        tell(f"promoted after {time.monotonic() - lost_at:.1f} s; {watch.written} written, {watch.effects} handled before")
        here.until("the log is read again", readings.look, timeout_s=UP_S)
        went_on = bool(here.ask(_IS_THE_COPY))
        before = int(here.ask(_EFFECTS))
        here.until("effects come again", lambda: int(here.ask(_EFFECTS)) > before + 1000)
        watch.look()
        result = finish(here, writers, tell)
        return result | said(here) | {
            "went_on_with": "the copied slot" if went_on else "a new slot", "read_again_s": round(readings.took_s[-1], 2),
            "duplicates_delivered": duplicates(here), "attempts_spent": result["attempts_spent"] + watch.attempts,
            "ok": result["ok"] and not watch.attempts and went_on == copied,
        }


def _commit_on_both(here: Ground) -> None:
    """From now on a commit is answered when both servers have it, and the log is read when the stand-by has it."""
    here.db.execute("alter system set synchronous_standby_names = 'standby'")
    here.db.execute("alter system set synchronized_standby_slots = 'standby'")
    here.db.execute("select pg_reload_conf()")
    here.until("the stand-by is in step", lambda: bool(here.ask(_IN_STEP)), timeout_s=UP_S)


def _fail_over(here: Ground, primary: Server, standby: Server, proxies: Proxies, readings: Readings) -> None:
    readings.harm()
    primary.kill()
    proxies.cut("database")
    standby.promote()
    proxies.turn("database", standby.address)
    proxies.restore("database")
    here.look_again(standby.url)


def _first(connection: psycopg.Connection[Any], text: str) -> bool:
    row = connection.execute(text).fetchone()
    return row is not None and bool(row[0])
