"""Frozen processes: a relay past its lease, a worker in the middle of its handler's transaction, on PostgreSQL; on SQLite
a worker whose supervisor has to end it. Frozen with SIGSTOP, and, where it is still there, thawed with SIGCONT."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from bothends.brokers import open_broker
from bothends.demo.processes import Fleet, Process, children_of
from bothends.stores import open_store
from bothends.stores.schema import apply
from tests.acceptance.audit import audit, clean
from tests.acceptance.ground import ROOT, Ground, ground
from tests.acceptance.load import write_one

TAKEOVER_S = 10.0


def prove(pg: int, tell: Callable[[str], None]) -> dict[str, Any]:
    relay = _relay(pg, tell)
    tell(f"relay: {relay}")
    worker = _worker(pg, tell)
    tell(f"worker: {worker}")
    embedded = _embedded()
    tell(f"sqlite: {embedded}")
    return {
        "relay": relay, "worker": worker, "sqlite": embedded,
        "ok": clean(relay) and relay["marked_by_the_zombie"] == 0 and relay["takeover_s"] <= TAKEOVER_S
        and clean(worker) and worker["moved_on_s"] <= TAKEOVER_S
        and embedded["effects"] == embedded["events"] and embedded["moved_on_s"] <= TAKEOVER_S,
    }


def _tree(process: Process) -> list[int]:
    assert process.running is not None
    return [process.running.pid, *children_of(process.running.pid)]


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        os.kill(pid, number)


def _relay(pg: int, tell: Callable[[str], None]) -> dict[str, Any]:
    with ground(pg, keys=64, told=tell) as here:
        relays = here.relays(2)
        here.workers(1)
        share = "select count(*) from (select relay from bothends.relay_lanes group by relay having count(*) > 20) r"
        here.until("two relays share the lanes", lambda: here.ask(share) == 2)
        writers = here.writers(2, keys=64, rate=300)
        here.until("effects come", lambda: int(here.ask("select count(*) from effects_log")) > 500)
        frozen = _tree(relays[0])
        zombie = here.ask("select id from bothends.relays where pid = any(%s)", frozen)
        _signal(frozen, signal.SIGSTOP)
        took = here.until(
            "the other relay has its lanes",
            lambda: here.ask("select count(*) from bothends.relay_lanes where relay = %s or relay is null", zombie) == 0,
            timeout_s=30, tend=False,
        )
        mark = here.ask("select coalesce(max(id), 0) from bothends.relay_progress")
        before = int(here.ask("select count(*) from effects_log"))
        here.until("effects go on", lambda: int(here.ask("select count(*) from effects_log")) > before + 1000, tend=False)
        _signal(frozen, signal.SIGCONT)
        here.until("the thawed relay is back under a new registration", lambda: here.ask(share) == 2)
        before = int(here.ask("select count(*) from effects_log"))
        here.until("effects go on", lambda: int(here.ask("select count(*) from effects_log")) > before + 1000)
        here.stop(writers)
        here.until("everything has settled", here.settled)
        marked = here.ask("select count(*) from bothends.relay_progress where relay = %s and id > %s", zombie, mark)
        return {**audit(here), "takeover_s": round(took, 2), "marked_by_the_zombie": int(marked)}


def _worker(pg: int, tell: Callable[[str], None]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as baton, ground(pg, keys=64, told=tell, PROVE_BATON=baton) as here:
        here.relays(1)
        workers = here.workers(2)
        entered, leave = Path(baton, "entered"), Path(baton, "leave")
        with psycopg.connect(here.url) as c:
            for n in range(200):
                write_one(c, f"k{n % 64}", "", strict=False, roll_back=False, topic=here.topic)
            here.until("both work", here.settled)
            write_one(c, "k1", "wait", strict=False, roll_back=False, topic=here.topic)
            here.until("a handler is in its transaction", entered.exists)
            pid = int(entered.read_text())
            frozen = next(tree for tree in map(_tree, workers) if pid in tree)
            _signal(frozen, signal.SIGSTOP)
            leave.touch()
            for n in range(200):
                write_one(c, f"k{n % 64}", "", strict=False, roll_back=False, topic=here.topic)
        took = here.until("the frozen worker's keys move on", here.settled, timeout_s=60, tend=False)
        _signal(frozen, signal.SIGCONT)
        with psycopg.connect(here.url) as c:
            for n in range(200):
                write_one(c, f"k{n % 64}", "", strict=False, roll_back=False, topic=here.topic)
        here.until("everything has settled", here.settled)
        _graceful(here)
        return {**audit(here), "moved_on_s": round(took, 2)}


def _graceful(here: Ground) -> None:
    """What the thawed worker still does, it does before it has ended."""
    here.stop(list(here.fleet.processes.values()))


# SQLite: a process that is frozen in a write holds the file; only its supervisor can end it.


def _embedded() -> dict[str, Any]:
    from tests.acceptance.shop_sqlite import Moved, service

    with tempfile.TemporaryDirectory(prefix="bothends-prove-") as scratch:
        folder = Path(scratch)
        url, log = f"sqlite:///{folder}/shop.db", f"embedded:///{folder}/log.db"
        apply(open_store(url))
        db = sqlite3.connect(folder / "shop.db", timeout=30)
        db.execute("create table effects_log (seq integer primary key, event_id text not null, key text not null)")
        db.commit()
        broker = open_broker(log)
        broker.create_topic("prove.embedded", 4)
        broker.close()
        fleet = Fleet(folder)
        environ = os.environ | {
            "BOTHENDS_DATABASE_URL": url, "BOTHENDS_BROKER_URL": log, "PROVE_BATON": scratch, "PYTHONPATH": str(ROOT),
            "BOTHENDS_RUNTIME_DIR": str(folder / "run"),
        }
        run = fleet.add("run", ["bothends", "run", "tests.acceptance.shop_sqlite"], environ, folder)
        run.start()
        try:
            ids = [service.outbox.add(db, Moved(f"k{n % 8}", "wait" if n == 50 else "")) for n in range(100)]
            db.commit()
            entered = folder / "entered"
            _wait(entered.exists, "a handler is in its transaction", run)
            os.kill(int(entered.read_text()), signal.SIGSTOP)
            (folder / "leave").touch()
            began = time.monotonic()
            query = "select count(distinct event_id), count(*) from effects_log"
            _wait(lambda: db.execute(query).fetchone()[0] == len(ids), "every event has its effect", run)
            took = time.monotonic() - began
            distinct, rows = db.execute(query).fetchone()
            return {"events": len(ids), "effects": rows, "lost": len(ids) - distinct, "moved_on_s": round(took, 2)}
        finally:
            fleet.stop()
            db.close()


def _wait(done: Callable[[], bool], what: str, process: Process, timeout_s: float = 60) -> None:
    until = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > until:
            raise TimeoutError(f"{what}: not within {timeout_s:.0f} s\n{process.last_words()}")
        time.sleep(0.02)


if __name__ == "__main__":
    print(_embedded(), file=sys.stderr)
