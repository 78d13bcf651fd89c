"""Run: one demo from its empty databases to its verdict."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bothends.demo import names
from bothends.demo.audit import Effect, audit
from bothends.demo.export import write_export
from bothends.demo.faults import Kind, plan
from bothends.demo.gateway import read_charges
from bothends.demo.orders import InvalidOrders, Order
from bothends.demo.processes import Fleet, end_with_us
from bothends.demo.producer import Share, Source
from bothends.demo.proxies import Address, Proxies
from bothends.demo.report import Report
from bothends.demo.result import Result
from bothends.demo.settling import Waiting, look
from bothends.demo.shop import Connection
from bothends.demo.tormentor import Tormentor
from bothends.demo.world import World, address_of

__all__ = ["Options", "run_demo"]

STUCK_S = 120.0
"""Without any progress for so long, a run is not ok."""
_TICK_S = 0.1
_TICK_SHARE = 20
"""Counting costs the database: after a count that took long, so many times as long passes before the next."""
_LOOK_EVERY_S = 1.0
_PRODUCERS = 2
APP = "bothends.demo.app"


@dataclass(frozen=True)
class Options:
    """What the command line asked for."""

    source: Source
    faults: Kind = "crash"
    database: str | None = None
    broker: str | None = None
    export: Path | None = None
    keep: bool = False
    relay_source: str = "auto"


def run_demo(options: Options, report: Report) -> Result:
    """Runs, audits and takes everything away again (unless ``keep``). Raises what the command line turns into an error:
    InvalidOrders, BothendsError, OSError, RuntimeError."""
    orders = options.source.orders()
    if not orders:
        raise InvalidOrders("there is not one order in the input")
    folder = Path(tempfile.mkdtemp(prefix="bothends-demo-"))
    world = World(names.new_run(), folder, options.database, options.broker or "", relay_source=options.relay_source)
    try:
        with _Run(options, report, world, orders) as run:
            result = run.to_the_end()
        if options.keep:
            servers = ", ".join(filter(None, (options.database, options.broker)))
            report.note(f"kept: {folder}" + (f"; {world.run}* on the servers" if servers else ""))
        return result
    finally:
        try:
            if options.keep:
                world.remove_logs()
            else:
                world.remove()
        finally:
            world.close()
            if not options.keep:
                shutil.rmtree(folder, ignore_errors=True)


class _Run:
    def __init__(self, options: Options, report: Report, world: World, orders: list[Order]) -> None:
        self._options, self._report, self._world, self._orders = options, report, world, orders
        self._charged = sum(order.charge is not None for order in orders)
        self._due = 3 * len(orders) + self._charged
        self._ledger = world.folder / "charges.jsonl"
        self._result = Result(events=len(orders), run=world.run, seed=options.source.seed)
        self._fleet = Fleet(world.folder / "logs")
        self._proxies: Proxies | None = None
        self._gateway: subprocess.Popen[str] | None = None
        self._producers: list[subprocess.Popen[bytes]] = []
        self._counting: dict[str, Connection] = {}
        self._last = Waiting()
        self._marks: dict[str, str] = {}
        self._stuck_s = STUCK_S

    def __enter__(self) -> _Run:
        try:
            self._begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._producers:
            process.kill()
            process.wait()
        self._fleet.stop()
        if self._proxies is not None:
            self._proxies.close()
        if self._gateway is not None:
            assert self._gateway.stdin is not None
            self._gateway.stdin.close()
            self._gateway.wait()
        for db in self._counting.values():
            db.close()

    def _begin(self) -> None:
        self._report.phase("preparing databases and topics")
        self._world.folder.joinpath("logs").mkdir()
        self._sweep()
        self._world.prepare()
        addresses = self._start_proxies()
        environ = self._world.environ(addresses)
        self._gateway = subprocess.Popen(
            [sys.executable, "-m", "bothends.demo.gateway", str(self._ledger)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        assert self._gateway.stdout is not None
        environ["DEMO_GATEWAY_URL"] = self._gateway.stdout.readline().strip()
        for n in (1, 2):
            self._fleet.add(f"relay-{n}", ["bothends", "relay", APP], environ, self._world.folder)
        for service in ("inventory", "payments", "analytics"):
            command = ["bothends", "work", APP, "--service", service]
            self._fleet.add(f"work-{service}", command, environ, self._world.folder)
        for process in self._fleet.processes.values():
            process.tied = True
        self._environ = environ
        self._counting = {service: self._world.connect(service) for service in names.SERVICES}

    def _sweep(self) -> None:
        """What killed runs have left that would fill the server's disk."""
        if self._options.database is not None:
            from bothends.demo.leftovers import sweep

            for slot in sweep(self._options.database):
                self._report.note(f"dropped {slot}: a demo that was killed had left this replication slot")

    def _start_proxies(self) -> dict[str, Address]:
        """Only where outages are wanted: who is not cut off connects directly."""
        if self._options.faults not in ("outage", "all"):
            return {}
        to: dict[str, Address] = {}
        for name, url in (("database", self._options.database), ("broker", self._options.broker)):
            if url and (address := address_of(url)):
                to[name] = address
        if not to:
            return {}
        self._proxies = Proxies(to, kafka=["broker"])
        return self._proxies.addresses

    def to_the_end(self) -> Result:
        self._report.phase("orders are placed, relayed and handled")
        started = time.monotonic()
        self._fleet.start()
        self._start_producers()
        tormentor = Tormentor(
            plan(
                self._options.faults, self._options.source.seed, len(self._orders), list(self._fleet.processes),
                [consumer for consumer in names.CONSUMERS if consumer != names.CONFIRMED],
            ),
            self._world, self._fleet, self._proxies, self._environ, self._report,
            random.Random(self._options.source.seed),
        )
        try:
            settled = self._wait(tormentor)
        finally:
            tormentor.close()
        result = self._result
        result.seconds = round(time.monotonic() - started, 2)
        result.events_per_second = round(len(self._orders) / result.seconds, 1)
        result.kills, result.acks_lost, result.outages = tormentor.kills, tormentor.acks_lost, tormentor.outages
        result.problems += tormentor.not_done()
        self._report.phase("stopping")
        self._fleet.stop()
        self._audit(settled)
        return result

    def _start_producers(self) -> None:
        url = self._environ["BOTHENDS_ORDERS_DATABASE_URL"]
        for n in range(_PRODUCERS):
            share = Share(self._options.source, n, _PRODUCERS, url)
            with self._world.folder.joinpath("logs", f"producer-{n}.log").open("ab") as log:
                self._producers.append(subprocess.Popen(
                    [sys.executable, "-m", "bothends.demo.producer", share.to_json()],
                    env=self._environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    preexec_fn=end_with_us,
                ))

    def _wait(self, tormentor: Tormentor) -> bool:
        """Until everything has settled (True), or nothing has moved for too long (False)."""
        moved_at = looked_at = time.monotonic()
        before: object = None
        counting_s = 0.0
        while True:
            time.sleep(max(_TICK_S, _TICK_SHARE * counting_s))
            self._fleet.tend()
            began = time.monotonic()
            placed, effects = self._counts()
            counting_s = time.monotonic() - began
            progress = effects / self._due
            self._report.progress(progress)
            tormentor.tick(progress)
            now = time.monotonic()
            placing = self._still_placing()
            if not placing and tormentor.idle and now - looked_at >= _LOOK_EVERY_S and progress > 0.5:
                looked_at = now
                self._last = look(self._world, self._marks)
                if self._last.settled:
                    self._report.progress(1.0)
                    return True
            seen = (placed, effects, self._last, tormentor.done)
            if seen != before:
                before, moved_at = seen, now
            elif now - moved_at > self._stuck_s:
                self._last = look(self._world, self._marks)
                self._result.problems.append(f"nothing has moved for {self._stuck_s:.0f} s: {self._last}")
                return False

    def _counts(self) -> tuple[int, int]:
        shops = self._world.shops
        placed = shops["orders"].count_orders(self._counting["orders"])
        done = sum(shops[s].count_effects(self._counting[s]) for s in names.SERVICES if s != "orders")
        return placed, done

    def _still_placing(self) -> bool:
        codes = [process.poll() for process in self._producers]
        for n, code in enumerate(codes):
            if code:
                log = self._world.folder.joinpath("logs", f"producer-{n}.log").read_text(errors="replace")
                raise RuntimeError(f"producer {n} ended with status {code}:\n{log[-2000:]}")
        return None in codes

    def _audit(self, settled: bool) -> None:
        self._report.phase("auditing")
        world, result = self._world, self._result
        effects = {}
        for consumer in names.CONSUMERS:
            service = consumer.partition(".")[0]
            rows = world.shops[service].effects(self._counting[service], consumer)
            effects[consumer] = [Effect(*row) for row in rows]
        charges = read_charges(self._ledger) if self._ledger.exists() else []
        sums = world.sums()
        findings = audit(self._orders, effects, charges, sums, only_charged=frozenset({names.CONFIRMED}))
        result.take(findings)
        result.charges = len(charges)
        for group, topic in ((world.groups[c], world.topics[t]) for c, t in _one_reader_each()):
            result.published += sum(lag.high - lag.low for lag in world.broker.lag(group, [topic]))
        result.parked, result.dead = self._last.parked, self._last.dead
        result.sources = self._fleet.sources()
        outcomes = self._fleet.outcomes()
        result.deliveries = outcomes.total()
        result.duplicates, result.conflicts = outcomes["duplicate"], outcomes["conflict"]
        if self._options.export is not None:
            write_export(self._options.export, sums)
        result.judge(settled=settled)


def _one_reader_each() -> list[tuple[str, str]]:
    return [(next(c for c, read in names.CONSUMERS.items() if read == topic), topic) for topic in names.TOPICS]
