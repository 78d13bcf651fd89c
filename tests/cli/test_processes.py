"""`bothends run`, `relay` and `work` as a user starts them: real processes, real kills, on the embedded default."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.operating.test_supervisor import exists

BIN = Path(sys.executable).parent
APP = '''
import os, signal, sqlite3, threading
from dataclasses import dataclass
from pathlib import Path
from bothends import Context, Retry, Service, event

@event("order.placed", key="order_id", topic="shop.events")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str
    n: int

shop = Service("shop")
stock = shop.consumer("stock", owner="team", retry=Retry(attempts=5, first_s=0.05, crashes=None))

@stock.handle(OrderPlaced)
def reserve(order: OrderPlaced, ctx: Context[sqlite3.Connection]) -> None:
    ctx.connection.execute("insert into handled (id, n) values (?, ?)", (order.order_id, order.n))
    if Path("freeze").exists():
        os.rename("freeze", "frozen")
        signal.pthread_kill(threading.get_ident(), 19)  # SIGSTOP to this thread: not one statement more
'''
TOML = """\
app = "shop"
database_url = "sqlite:///shop.db"
broker_url = "embedded:///events.db"
create_topics = true
partitions = 2
"""


class Running:
    """One `bothends` command and its log."""

    def __init__(self, folder: Path, *arguments: str, **variables: str) -> None:
        keep = {name: value for name, value in os.environ.items() if not name.startswith("BOTHENDS_")}
        self.log = folder / f"{arguments[0]}-{time.monotonic_ns()}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [str(BIN / "bothends"), *arguments], cwd=folder, stderr=log, stdin=subprocess.DEVNULL,
                env={**keep, "BOTHENDS_RUNTIME_DIR": str(folder / "run"), "BOTHENDS_LOG_COUNTS_S": "0.5", **variables})

    def lines(self, event: str) -> list[dict[str, Any]]:
        found = []
        for line in self.log.read_text().splitlines():
            if line.startswith("{") and line.endswith("}"):
                found.append(json.loads(line))
        return [line for line in found if line["event"] == event]

    def until(self, condition: Callable[[], object], within_s: float = 60) -> float:
        began = time.monotonic()
        while not condition():
            assert time.monotonic() - began < within_s, self.log.read_text()[-4000:]
            time.sleep(0.02)
        return time.monotonic() - began

    def ready(self, count: int) -> None:
        self.until(lambda: len(self.lines("ready")) >= count)

    def stop(self, status: int = 0) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(40) == status, self.log.read_text()[-4000:]


class Project:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[Running] = []
        (folder / "shop.py").write_text(APP)
        (folder / "bothends.toml").write_text(TOML)
        self.call("schema", "apply")
        self.sql("create table handled (at integer primary key, id text, n integer)")

    def call(self, *arguments: str) -> str:
        keep = {name: value for name, value in os.environ.items() if not name.startswith("BOTHENDS_")}
        return subprocess.run([str(BIN / "bothends"), *arguments], cwd=self.folder, env=keep, check=True, text=True,
                              capture_output=True, timeout=60).stdout

    def start(self, *arguments: str, **variables: str) -> Running:
        self.started.append(Running(self.folder, *arguments, **variables))
        return self.started[-1]

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(self.folder / "shop.db", timeout=20)
        try:
            with connection:
                return connection.execute(text).fetchall()
        finally:
            connection.close()

    def place(self, begin: int, count: int, keys: int = 5) -> None:
        """Orders number ``begin`` and on, of ``keys`` keys in turn, each in a transaction of its own."""
        code = (
            "import sqlite3, sys, shop\n"
            "begin, count, keys = map(int, sys.argv[1:])\n"
            "c = sqlite3.connect('shop.db', timeout=20)\n"
            "for n in range(begin, begin + count):\n"
            "    c.execute('begin immediate')\n"
            "    shop.shop.outbox.add(c, shop.OrderPlaced(f'k{n % keys}', n))\n"
            "    c.commit()\n")
        subprocess.run([sys.executable, "-c", code, str(begin), str(count), str(keys)], cwd=self.folder, check=True, timeout=60)

    def handled(self) -> int:
        return int(self.sql("select count(*) from handled")[0][0])

    def audit(self, count: int) -> None:
        """Each order once, and those of a key in order."""
        rows = self.sql("select id, n from handled order by at")
        assert sorted(n for _, n in rows) == list(range(count))
        for key in {key for key, _ in rows}:
            numbers = [n for k, n in rows if k == key]
            assert numbers == sorted(numbers)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    found = Project(tmp_path)
    yield found
    for running in found.started:
        if running.process.poll() is None:
            running.process.kill()
        running.process.wait()


@pytest.mark.timeout(240)
def test_killed_children_come_back_and_nothing_is_lost_or_doubled(project: Project) -> None:
    running = project.start("run", "--stop-timeout", "10")
    running.ready(2)
    for round_ in range(4):
        project.place(round_ * 100, 100)
        before = len(running.lines("ready"))
        role = ("relay", "work")[round_ % 2]
        os.kill(running.lines("ready")[-1]["pid"] if running.lines("ready")[-1]["role"] == role else next(
            line["pid"] for line in reversed(running.lines("ready")) if line["role"] == role), signal.SIGKILL)
        running.ready(before + 1)
    running.until(lambda: project.handled() >= 400)
    # A worker that was killed had stored no position for the last half second: the next one has to see that these are done.
    running.until(lambda: json.loads(project.call("status", "--json"))["consumers"][0]["lag"] == 0)
    project.audit(400)
    running.stop()
    assert len(running.lines("child died: restarting")) == 4
    processed = sum(line.get("processed", 0) for line in running.lines("counts"))
    assert 0 < processed <= 400  # what killed workers had counted is not said
    status = json.loads(project.call("status", "--json"))
    assert (status["outboxes"][0]["waiting"], status["consumers"][0]["lag"], status["consumers"][0]["dead"]) == (0, 0, 0)


@pytest.mark.timeout(240)
def test_a_worker_frozen_in_its_transaction_is_killed_and_its_work_goes_on(project: Project) -> None:
    running = project.start("run")
    running.ready(2)
    (project.folder / "freeze").touch()
    project.place(0, 3)
    running.until(lambda: (project.folder / "frozen").exists())
    took_s = running.until(lambda: project.handled() == 3)
    assert took_s < 30
    assert len(running.lines("child is silent: killed")) == 1, running.log.read_text()
    project.audit(3)
    running.stop()


@pytest.mark.timeout(240)
def test_ready_lines_name_consumers_and_members(project: Project) -> None:
    relay = project.start("relay", "--json")
    work = project.start("work", "--processes", "2", "--consumers", "stock")
    relay.ready(1)
    work.ready(2)
    assert relay.lines("ready")[0]["outboxes"] == ["shop"]
    assert [line["consumers"] for line in work.lines("ready")] == [["shop.stock"]] * 2
    assert sorted(line["member"] for line in work.lines("ready")) == [0, 1]
    project.place(0, 20)
    work.until(lambda: project.handled() == 20)
    project.audit(20)
    children = [line["pid"] for line in work.lines("ready")]
    work.process.kill()
    work.until(lambda: not any(exists(pid) for pid in children), 5)
    relay.stop()


@pytest.mark.timeout(120)
def test_a_wrong_configuration_ends_with_2_and_one_line(project: Project) -> None:
    relay = project.start("relay")
    relay.ready(1)
    relay.stop()
    other = project.start("relay", "--broker", "embedded:///other.db")
    assert other.process.wait(60) == 2
    assert "--adopt" in other.log.read_text()
    adopted = project.start("relay", "--broker", "embedded:///other.db", "--adopt")
    adopted.ready(1)
    adopted.stop()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("source", ["wal", "message"])
def test_a_log_that_sqlite_has_not_is_wrong_use(project: Project, source: str) -> None:
    relay = project.start("relay", "--source", source)
    assert relay.process.wait(60) == 2
    assert f"relay_source is {source} (--source), but only PostgreSQL has a log" in relay.log.read_text()
    assert "Traceback" not in relay.log.read_text()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("command", ["relay", "work", "run"])
def test_a_database_without_our_tables_ends_with_2_and_says_what_makes_them(project: Project, command: str) -> None:
    bare = project.start(command, BOTHENDS_DATABASE_URL=f"sqlite:///{project.folder}/bare.db")
    assert bare.process.wait(60) == 2
    said = bare.log.read_text()
    assert "bothends schema apply" in said
    assert "Traceback" not in said
