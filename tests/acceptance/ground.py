"""Ground: a fresh database, topics of its own, and the processes of one proof. Everything is gone at the end."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg.sql import SQL, Identifier

from bothends.admin.status import consumer_status, outbox_status
from bothends.brokers import open_broker
from bothends.demo.processes import Fleet, Process
from bothends.demo.proxies import Address
from bothends.demo.settling import Waiting, behind
from bothends.demo.world import moved
from bothends.ports import Broker
from bothends.stores import open_store
from bothends.stores.schema import apply
from bothends.stores.steps import run
from tests.conftest import fresh_database

APP = "tests.acceptance.shop"
CONSUMER = "prove.ledger"
PARTITIONS = 8
ROOT = Path(__file__).parents[2]
SETTLE_S = 180.0

TABLES = """
create table state (key text primary key, version bigint not null default 0);
create table written (event_id text primary key, key text not null, version bigint not null);
create index on written (key, version);
create table effects_log (
    seq bigint generated always as identity primary key, event_id text not null, key text not null, part int not null,
    pid int not null, at timestamptz not null default clock_timestamp()
);
create index on effects_log (event_id);
"""


@dataclass
class Ground:
    url: str
    broker: str
    topic: str
    folder: Path
    environ: dict[str, str]
    fleet: Fleet
    db: psycopg.Connection[Any]
    admin: Broker
    own: dict[str, dict[str, str]] = field(default_factory=dict)
    """What single processes have in their environment, by name."""
    told: Callable[[str], None] = field(repr=False, default=lambda line: None)

    def relays(self, count: int) -> list[Process]:
        """``bothends relay``, so many times: each a supervisor with one child."""
        return [self._start(f"relay-{n}", ["bothends", "relay", APP]) for n in range(count)]

    def workers(self, count: int, processes: int = 1) -> list[Process]:
        """``bothends work``, so many times, with ``processes`` children each."""
        return [
            self._start(f"work-{n}", ["bothends", "work", APP, "--processes", str(processes)]) for n in range(count)
        ]

    def writers(self, processes: int, *, first: int = 0, **options: object) -> list[Process]:
        """Writer processes of ``load.py``, numbered from ``first``; each ends by itself when its share is written, or on
        SIGTERM."""
        started = []
        for n in range(first, first + processes):
            arguments = ["tests.acceptance.load", "--writer", str(n)]
            for name, value in options.items():
                arguments += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
            writer = self._start(f"writer-{n}", arguments)
            writer.wanted = False  # nobody starts it again when it is done
            started.append(writer)
        return started

    def stop(self, processes: list[Process]) -> None:
        """SIGTERM to all of these, and waits for their end."""
        for process in processes:
            process.begin_stop()
        while not all([process.has_stopped() for process in processes]):
            time.sleep(0.02)

    def _start(self, name: str, arguments: list[str]) -> Process:
        process = self.fleet.add(name, arguments, self.environ | self.own.get(name, {}), self.folder)
        process.own_session = True
        process.start()
        return process

    def look_again(self, server: str | None = None) -> None:
        """After the database's server was away: connects anew; to ``server``, where another one has the database now."""
        if server is not None:
            self.url = urlsplit(self.url)._replace(netloc=urlsplit(server).netloc).geturl()
        self.db.close()
        self.db = psycopg.connect(self.url, autocommit=True)

    def ask(self, text: str, *parameters: object) -> Any:
        """The first value of the first row."""
        row = self.db.execute(text, parameters).fetchone()
        return row[0] if row is not None else None

    def until(self, what: str, done: Callable[[], bool], timeout_s: float = SETTLE_S, tend: bool = True) -> float:
        """Waits for ``done``; seconds that it took. Raises TimeoutError with the last words of every process."""
        began = time.monotonic()
        while not done():
            if time.monotonic() - began > timeout_s:
                words = "\n".join(f"--- {p.name}\n{p.last_words()}" for p in self.fleet.processes.values())
                raise TimeoutError(f"{what}: not within {timeout_s:.0f} s\n{words}")
            if tend:
                self.fleet.tend()
            time.sleep(0.05)
        return time.monotonic() - began

    def settled(self) -> bool:
        """Every written event has an effect."""
        return int(self.ask("""
            select count(*) from (select from written w where not exists (
                select from effects_log e where e.event_id = w.event_id) limit 1) missing""")) == 0

    def outbox_attempts(self) -> tuple[int, int]:
        """(attempts spent, dead rows) in the outbox."""
        row = self.db.execute(
            "select coalesce(sum(attempts), 0)::int, count(*) filter (where state = 'dead')::int from bothends.held"
        ).fetchone()
        assert row is not None
        return row[0], row[1]

    def waiting(self) -> Waiting:
        """What is still under way, looked at from upstream down, as a user sees it. ``dead`` counts both ends."""
        store = open_store(self.url)
        connection = store.connect(name="prove")
        try:
            outbox = run(outbox_status(store.admin), connection)
            lags = self.admin.lag(self.environ.get("BOTHENDS_GROUP_PREFIX", "") + CONSUMER, [self.topic])
            consumers = run(consumer_status(store.admin), connection)
        finally:
            connection.close()
        return Waiting(
            outbox=outbox["waiting"] + outbox["held"] + outbox["delayed"], lag=sum(map(behind, lags)),
            parked=sum(one["parked"] for one in consumers), dead=outbox["dead"] + sum(one["dead"] for one in consumers),
        )

    def failed_runs(self) -> list[str]:
        """What relays and workers said of runs that they charged to an event: a line each ten seconds and kind."""
        said = ("run failed, it is tried again", "message dead", "dead")
        return [
            f"{process.name}: {line}" for process in self.fleet.processes.values() for line in process.log_lines()
            if line.get("event") in said
        ]

    def dead(self) -> list[tuple[str, str]]:
        """(reason, error) of every dead letter."""
        return list(self.db.execute("select reason, error from bothends.dead_letters order by id").fetchall())


def server_url(pg: int) -> str:
    return os.environ["BOTHENDS_TEST_POSTGRESQL18_URL" if pg == 18 else "BOTHENDS_TEST_POSTGRESQL_URL"]


@contextmanager
def _database(server: str) -> Iterator[str]:
    """On a server of the proof's own: it goes with its server, which may be dead by then."""
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(SQL("create database {}").format(Identifier("prove")))
    yield urlsplit(server)._replace(path="/prove").geturl()


@contextmanager
def ground(
    pg: int, *, keys: int, kafka: str | None = None, broker: str | None = None, database: Address | None = None,
    server: str | None = None, told: Callable[[str], None], **environ: str,
) -> Iterator[Ground]:
    """A world with ``keys`` keys of state. ``environ`` goes to every process; so do ``broker`` and ``database``, where a proxy
    stands between. What looks and judges connects directly. ``kafka``, ``server``: others than those of the tests."""
    real_broker = kafka or os.environ["BOTHENDS_TEST_KAFKA_URL"]
    topic = f"prove-{uuid.uuid4().hex[:10]}"
    fresh = _database(server) if server is not None else fresh_database(server_url(pg))
    with fresh as url, tempfile.TemporaryDirectory(prefix="bothends-prove-") as scratch:
        folder = Path(scratch)
        apply(open_store(url))
        with psycopg.connect(url, autocommit=True) as db:
            db.execute(TABLES)
            db.execute("insert into state (key) select 'k' || g from generate_series(0, %s) g", (keys - 1,))
            admin = open_broker(real_broker)
            admin.create_topic(topic, PARTITIONS)
            fleet = Fleet(folder)
            here = Ground(
                url=url, broker=broker or real_broker, topic=topic, folder=folder, fleet=fleet, db=db, admin=admin, told=told,
                # An installed package has its bytecode: a start does not compile.
                environ={k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {
                    "BOTHENDS_DATABASE_URL": moved(url, database) if database else url,
                    "BOTHENDS_BROKER_URL": broker or real_broker, "PROVE_TOPIC": topic,
                    "BOTHENDS_RUNTIME_DIR": str(folder / "run"), "PYTHON": sys.executable,
                    "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
                } | environ,
            )
            try:
                yield here
            finally:
                here.stop(list(fleet.processes.values()))
                for name in (topic, f"{topic}.elsewhere"):
                    with contextlib.suppress(Exception):  # the world is being torn down; the topic may not exist
                        admin.delete_topic(name)
                admin.close()
                here.db.close()
