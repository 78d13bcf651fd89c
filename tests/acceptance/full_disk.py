"""Full disks. The embedded world on two file systems of its own, one for the shop's database, one for the broker's log: each is
full for a while, again and again, with a few pages left or none. And a table of PostgreSQL whose tablespace is full.

Nothing may be lost, no attempt spent; what was refused is refused with an error that says so, and works when there is room.
Mounts: needs root.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg

from bothends.brokers import open_broker
from bothends.demo.processes import Fleet
from bothends.stores import open_store
from bothends.stores.schema import apply
from tests.acceptance.audit import audit, clean
from tests.acceptance.ground import ROOT, ground, server_url
from tests.acceptance.shop_sqlite import Moved, service
from tests.acceptance.soak import ATTEMPTS, finish, load
from tests.acceptance.soak import KEYS as KEYS_POSTGRESQL

SIZE_MB = 64
KEYS, PARTITIONS = 16, 4
FULL_S, ROOM_S, SETTLE_S = 6.0, 2.0, 60.0
FULL_POSTGRESQL_S = 15.0
"""Long enough for five attempts, if any were charged."""
LEFT_PAGES_MAX = 24
"""A full disk has room for 0 to so many pages of 4 KiB: what is refused is now this, now that."""
APP = "tests.acceptance.shop_sqlite"
_TABLES = """
create table state (key text primary key, version integer not null default 0);
create table written (event_id text primary key, key text not null, version integer not null);
create table effects_log (seq integer primary key, event_id text not null, key text not null);
"""
_EFFECTS = "select count(*) from effects_log"
_STANDS = "select max(at) < clock_timestamp() - interval '2 seconds' from effects_log"
_ATTEMPTS = "select (select coalesce(sum(attempts), 0) from bothends_held) + (select count(*) from bothends_dead_letters)"


def prove(pg: int, tell: Callable[[str], None], seconds: float = 60.0, seed: int = 1) -> dict[str, Any]:
    embedded = _embedded(tell, seconds, seed)
    tell(f"embedded: {embedded}")
    postgresql = _postgresql(pg, tell)
    tell(f"postgresql: {postgresql}")
    return {"embedded": embedded, "postgresql": postgresql, "ok": embedded["ok"] and postgresql["ok"]}


def _postgresql(pg: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """The table that handlers write to has a tablespace of its own, and that is full for a while."""
    with tempfile.TemporaryDirectory(prefix="bothends-prove-") as scratch, contextlib.ExitStack() as stack:
        folder = Path(scratch, "space")
        stack.enter_context(disk(folder))
        Path(scratch).chmod(0o755)
        shutil.chown(folder, "postgres")
        name = f"prove_{uuid.uuid4().hex[:8]}"
        with psycopg.connect(server_url(pg), autocommit=True) as server:
            server.execute(f"create tablespace {name} location '{folder}'")
            stack.callback(_drop_tablespace, pg, name)
        here = stack.enter_context(ground(
            pg, keys=KEYS_POSTGRESQL, told=tell, PROVE_ATTEMPTS=ATTEMPTS, BOTHENDS_LOG_FORMAT="json",
            BOTHENDS_GROUP_PREFIX=f"{name}-",
        ))
        here.db.execute(f"alter table effects_log set tablespace {name}")
        here.relays(1)
        here.workers(2)
        writers = load(here)
        here.until("effects come", lambda: int(here.ask(_EFFECTS)) > 1000)
        with full(folder, 0):
            tell("the tablespace is full")
            here.until("work stands still", lambda: bool(here.ask(_STANDS)))
            until = time.monotonic() + FULL_POSTGRESQL_S
            here.until("its time is over", lambda: time.monotonic() > until)
            waiting = int(here.ask("select count(*) from written")) - int(here.ask(_EFFECTS))
            parked = here.waiting().parked
        tell(f"there is room again; {waiting} events wait")
        seen = int(here.ask(_EFFECTS))
        resumed_s = here.until("effects come again", lambda: int(here.ask(_EFFECTS)) > seen + 1000)
        result = finish(here, writers, tell)
        return result | {
            "waiting": waiting, "parked_while_full": parked, "resumed_s": round(resumed_s, 1),
            "ok": result["ok"] and waiting > 0 and not parked,
        }


def _drop_tablespace(pg: int, name: str) -> None:
    with psycopg.connect(server_url(pg), autocommit=True) as server:
        server.execute(f"drop tablespace {name}")


def _embedded(tell: Callable[[str], None], seconds: float, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="bothends-prove-") as scratch, contextlib.ExitStack() as stack:
        folder = Path(scratch)
        disks = {"database": folder / "database" / "shop.db", "log": folder / "log" / "log.db"}
        for file in disks.values():
            stack.enter_context(disk(file.parent))
        here = Shop(folder, stack)
        here.work(ROOM_S)
        began, rng = time.monotonic(), random.Random(seed)
        fulls: Counter[str] = Counter()
        while (gone_s := time.monotonic() - began) < seconds:
            name = rng.choice(sorted(disks))
            handled = here.ask("select count(*) from effects_log")
            tell(f"{gone_s:.0f} of {seconds:.0f} s: {here.written} written, {handled} handled; the disk of the {name} is full")
            _empty_wal(disks[name])
            with full(disks[name].parent, rng.randrange(LEFT_PAGES_MAX)):
                here.work(FULL_S)
                if fulls[name] == 0:
                    tell(f"`bothends health` says: {here.health()}")
            fulls[name] += 1
            here.work(ROOM_S)
        tell("there is room; waiting until all is quiet")
        quiet_s = here.settle()
        found, attempts = audit(here), int(here.ask(_ATTEMPTS))
        for line in here.charged()[:10]:
            tell(f"charged: {line}")
        dead = int(here.ask("select count(*) from bothends_dead_letters"))
        return found | {
            "full": dict(fulls), "refused": dict(here.refused), "dead": dead,
            "attempts_spent": attempts + len(here.charged()), "waits": dict(here.waits()),
            "restarts": here.run.started - 1, "quiet_s": round(quiet_s, 1),
            "ok": clean(found) and not attempts and not here.charged() and len(fulls) == 2 and bool(here.refused)
            and {"relay: broker paused", "work: consumption waits for the database"} <= set(here.waits()),
        }


@contextlib.contextmanager
def disk(folder: Path) -> Iterator[None]:
    """A small file system."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@contextlib.contextmanager
def full(folder: Path, left_pages: int) -> Iterator[None]:
    """A ballast fills the file system."""
    ballast = folder / "ballast"
    state = os.statvfs(folder)
    size = state.f_bavail * state.f_bsize - left_pages * 4096
    with ballast.open("wb") as filling:
        if size > 0:
            os.posix_fallocate(filling.fileno(), 0, size)
    yield
    ballast.unlink()


def _empty_wal(file: Path) -> None:
    """Or it would have room of its own on a full disk. Others write meanwhile: until it has been empty for once."""
    with contextlib.closing(sqlite3.connect(file, timeout=10)) as db:
        for _ in range(1_000):
            if db.execute("pragma wal_checkpoint(truncate)").fetchone()[0] == 0:
                return


class Shop:
    """The embedded world: ``bothends run``, and a writer that repeats what was refused."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self._url, self._log = f"sqlite:///{folder}/database/shop.db", f"embedded:///{folder}/log/log.db"
        apply(open_store(self._url))
        broker = open_broker(self._log)
        broker.create_topic("prove.embedded", PARTITIONS)
        broker.close()
        self._db = stack.enter_context(contextlib.closing(sqlite3.connect(folder / "database" / "shop.db", timeout=10)))
        self._db.executescript(_TABLES)
        self._db.executemany("insert into state (key) values (?)", [(f"k{n}",) for n in range(KEYS)])
        self._db.commit()
        self._environ = dict(os.environ) | {
            "BOTHENDS_DATABASE_URL": self._url, "BOTHENDS_BROKER_URL": self._log, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
            "BOTHENDS_RUNTIME_DIR": str(folder / "run"), "BOTHENDS_LOG_FORMAT": "json",
        }
        self._fleet = Fleet(folder)
        self.run = self._fleet.add("run", ["bothends", "run", APP], self._environ, folder)
        self.run.start()
        stack.callback(self._fleet.stop)
        self.written = 0
        self.refused: Counter[str] = Counter()
        """How often the writer was refused, by error."""

    def ask(self, text: str) -> Any:
        return self._db.execute(text).fetchone()[0]

    def work(self, seconds: float) -> None:
        """Writes for so long; a refused transaction is tried again, as a user's would be."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._fleet.tend()
            try:
                self._write(f"k{self.written % KEYS}")
                self.written += 1
            except sqlite3.OperationalError as error:
                self._db.rollback()
                self.refused[f"{error.sqlite_errorname}: {error}"] += 1
            time.sleep(0.01)

    def _write(self, key: str) -> None:
        self._db.execute("update state set version = version + 1 where key = ?", (key,))
        event_id = service.outbox.add(self._db, Moved(key))
        self._db.execute(
            "insert into written select ?, key, version from state where key = ?", (event_id, key))
        self._db.commit()

    def settle(self) -> float:
        began = time.monotonic()
        while int(self.ask("select count(*) from written where event_id not in (select event_id from effects_log)")):
            if time.monotonic() - began > SETTLE_S:
                break  # the audit says what is missing
            self._fleet.tend()
            time.sleep(0.05)
        quiet_s = time.monotonic() - began
        self._fleet.stop()
        return quiet_s

    def charged(self) -> list[str]:
        said = ("run failed, it is tried again", "message dead", "dead")
        return [str(line) for line in self.run.log_lines() if line.get("event") in said]

    def waits(self) -> Counter[str]:
        """How often somebody said that it waits for room."""
        return Counter(
            f"{line['role']}: {line['event'].partition(':')[0]}" for line in self.run.log_lines()
            if "full" in f"{line.get('event')} {line.get('reason')} {line.get('error')}"
        )

    def health(self) -> str:
        """What an operator is told meanwhile."""
        done = subprocess.run(
            [sys.executable, "-m", "bothends", "health", APP], env=self._environ, capture_output=True, text=True, check=False)
        return " | ".join((done.stdout + done.stderr).splitlines())
