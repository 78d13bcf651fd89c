"""Processes that stand by, and what a start may cost: counted in modules, because seconds depend on the machine."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bothends.operating.standby import CANNOT, IDLE, WORKS, StandBy, spawn, standing_by
from bothends.stores import open_store
from bothends.stores.schema import apply
from tests.conftest import fresh_database

ROOT = Path(__file__).parents[2]
SUPERVISED = "tests.operating.supervised"

APP = '''
from dataclasses import dataclass
from bothends import Service, event

@event("order.placed", key="id", topic="standby-orders")
@dataclass(frozen=True)
class OrderPlaced:
    id: str

shop = Service("shop")
stock = shop.consumer("stock", owner="us", start="latest")

@stock.handle(OrderPlaced)
def deduct(order: OrderPlaced) -> None:
    pass
'''

PREPARED = """
import asyncio, json, sys
from bothends.operating import child
from bothends.operating.apps import load
from bothends.operating.roles import Roles, prepare
prepare(load("app"))
before = set(sys.modules)
async def begin():
    changed = asyncio.Event()
    loop = asyncio.get_running_loop()
    tell = lambda: loop.call_soon_threadsafe(changed.set)
    async with Roles(load("app"), loop).crew({"role": sys.argv[1], "stop_timeout_s": 5}, tell) as crew:
        crew.start()
        while not crew.is_ready():
            changed.clear()
            await changed.wait()
        assert crew.first_error() is None, crew.first_error()
        await asyncio.to_thread(crew.stop, 5)
asyncio.run(begin())
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def modules_after(code: str, *arguments: str, cwd: Path, **environ: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=cwd, capture_output=True, text=True,
        env={**os.environ, "BOTHENDS_RUNTIME_DIR": str(cwd), **environ})
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def until_ended(one: StandBy) -> int:
    return one.process.wait(10)


def test_the_module_of_a_supervisor_command_brings_nothing_that_it_does_not_need(tmp_path: Path) -> None:
    """A supervisor that was killed must be back in a moment, on a busy machine as well."""
    code = "import json, sys; from bothends.cli.commands import build; build(['work']); print(json.dumps(list(sys.modules)))"
    loaded = modules_after(code, cwd=tmp_path)
    for heavy in ("rich", "asyncio", "psycopg", "sqlalchemy", "confluent_kafka", "pydantic", "ssl", "importlib.metadata",
                  "bothends.admin", "bothends.cli.dead", "bothends.demo", "bothends.relay", "bothends.worker"):
        assert heavy not in loaded, heavy


def test_the_first_child_is_on_its_way_before_the_command_line_is_read(tmp_path: Path) -> None:
    code = "import json, sys; import bothends.cli; print(json.dumps(list(sys.modules)))"
    loaded = modules_after(code, cwd=tmp_path)
    assert {name for name in loaded if name.startswith(("typer", "click", "msgspec", "bothends."))} == {
        "bothends.cli", "bothends.operating", "bothends.operating.standby"}


@pytest.mark.parametrize(("check", "answer"), [
    ({"relays": False, "workers": True}, WORKS), ({"relays": True, "workers": True}, WORKS),
    ({"relays": True, "workers": False}, IDLE), ({"relays": False, "workers": True, "consumers": ["stokc"]}, CANNOT),
    ({"relays": True, "workers": True, "service": "shoop"}, CANNOT),
])
def test_it_says_whether_the_application_has_what_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: dict[str, object], answer: bytes,
) -> None:
    (tmp_path / "app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    flags = {"database_url": f"sqlite:///{tmp_path / 'db'}", "broker_url": f"embedded:///{tmp_path / 'log'}"}
    with standing_by(["bothends.operating.child"]) as early:
        early[0].prepare({"app": "app", "flags": flags, "log_format": "json", "log_level": "info",
                          "check": {"service": None, "consumers": [], **check}})
        assert early[0].answer() == answer


def test_one_that_died_answers_that_it_cannot() -> None:
    with standing_by([SUPERVISED]) as early:
        early[0].process.kill()
        assert early[0].answer() == CANNOT


def test_a_relays_child_does_without_the_drivers_that_the_application_does_not_name(tmp_path: Path) -> None:
    code = "import json, sys; from bothends.operating import child, roles; print(json.dumps(list(sys.modules)))"
    loaded = modules_after(code, cwd=tmp_path)
    for heavy in ("rich", "typer", "psycopg", "sqlalchemy", "confluent_kafka", "pydantic", "importlib.metadata"):
        assert heavy not in loaded, heavy


@pytest.mark.needs("postgresql", "kafka")
@pytest.mark.parametrize("role", ["relay", "work"])
def test_what_stands_by_has_imported_what_its_work_needs(tmp_path: Path, role: str) -> None:
    (tmp_path / "app.py").write_text(APP)
    with fresh_database(os.environ["BOTHENDS_TEST_POSTGRESQL_URL"]) as url:
        apply(open_store(url))
        late = modules_after(
            PREPARED, role, cwd=tmp_path, BOTHENDS_DATABASE_URL=url, BOTHENDS_BROKER_URL=os.environ["BOTHENDS_TEST_KAFKA_URL"])
    assert {name for name in late if name.startswith(("bothends", "psycopg", "confluent"))} == set()


def test_one_that_stands_by_takes_any_task(tmp_path: Path) -> None:
    one = spawn(SUPERVISED)
    one.prepare({"app": "whatever"})
    one.give({"log": str(tmp_path / "log"), "does": "exits", "status": 7})
    assert until_ended(one) == 7
    assert (tmp_path / "log").read_text() == f"{one.process.pid}\n"
    one.drop()


def test_one_that_nobody_needs_ends_by_itself(tmp_path: Path) -> None:
    one = spawn(SUPERVISED)
    one.prepare({})
    one.link.close()
    assert until_ended(one) in (0, 1)


def test_what_was_not_taken_is_dropped() -> None:
    with standing_by([SUPERVISED, SUPERVISED]) as early:
        left = list(early)
        assert all(one.is_alive() for one in early)
    assert early == []
    assert [one.process.returncode for one in left] == [-signal.SIGKILL] * 2


def test_they_are_dropped_where_the_application_is_wrong() -> None:
    def begin() -> None:
        with standing_by([SUPERVISED]) as early:
            left.extend(early)
            raise LookupError

    left: list[StandBy] = []
    with pytest.raises(LookupError):
        begin()
    assert [one.is_alive() for one in left] == [False]


def test_a_broken_application_is_told_by_the_child_that_runs_it_not_by_the_one_that_stands_by(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("raise RuntimeError('broken on purpose')")
    log = tmp_path / "log"
    task = {"app": "app", "flags": {}, "log_format": "json", "log_level": "info", "role": "work", "stop_timeout_s": 1}
    before, here = os.dup(2), Path.cwd()
    with log.open("w") as out:
        os.dup2(out.fileno(), 2)
        os.chdir(tmp_path)
        try:
            one = spawn("bothends.operating.child")
        finally:
            os.chdir(here)
            os.dup2(before, 2)
            os.close(before)
    one.prepare(task)
    one.give(task)
    assert until_ended(one) == 1
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line["role"], line["event"]) for line in lines] == [("work", "broke")]
    one.drop()
