"""The supervisor with real processes and real signals: restarts, freezes, drains, orphans."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bothends.demo.processes import children_of

PARENT = """
import json, sys
from bothends.operating.supervisor import Supervisor, Task
from bothends.telemetry import logs
given = json.loads(sys.argv[1])
logs.setup("json", "info")
tasks = [Task(f"c{n}", task, module="tests.operating.supervised") for n, task in enumerate(given["tasks"])]
sys.exit(Supervisor(tasks, stop_timeout_s=given["stop"], silence_s=given["silence"], spares=given["spares"]).run())
"""


class Family:
    """A supervisor in a process of its own, and what its children wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.parent: subprocess.Popen[str] | None = None

    def start(self, *tasks: dict[str, object], stop: float = 5, silence: float = 5, spares: int = 0) -> None:
        given = {
            "tasks": [{"log": str(self.folder / f"{n}.log"), **task} for n, task in enumerate(tasks)],
            "stop": stop, "silence": silence, "spares": spares}
        (self.folder / "lines").touch()
        with (self.folder / "lines").open("w") as lines:
            self.parent = subprocess.Popen(
                [sys.executable, "-c", PARENT, json.dumps(given)], stderr=lines, text=True, cwd=Path(__file__).parents[2],
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])})

    def pids(self, child: int = 0) -> list[int]:
        log = self.folder / f"{child}.log"
        return [int(line) for line in log.read_text().split()] if log.exists() else []

    def said(self) -> list[dict[str, object]]:
        lines = (self.folder / "lines").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def events(self) -> list[object]:
        return [line["event"] for line in self.said()]

    def wait(self, timeout_s: float = 20) -> int:
        assert self.parent is not None
        return self.parent.wait(timeout_s)

    def signal(self, number: int) -> None:
        assert self.parent is not None
        self.parent.send_signal(number)

    def until(self, condition: Callable[[], object], within_s: float = 20) -> float:
        """Seconds until the condition holds."""
        began = time.monotonic()
        while not condition():
            assert time.monotonic() - began < within_s, (self.events(), (self.folder / "lines").read_text()[-2000:])
            time.sleep(0.01)
        return time.monotonic() - began


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Family]:
    found = Family(tmp_path)
    yield found
    if found.parent is not None and found.parent.poll() is None:
        found.parent.kill()
        found.parent.wait()


def exists(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_it_says_when_all_are_ready_and_drains_on_sigterm(family: Family) -> None:
    family.start({"does": "works"}, {"does": "works"})
    family.until(lambda: "running" in family.events())
    family.signal(signal.SIGTERM)
    assert family.wait() == 0
    assert family.events() == ["running", "stopping", "stopped"]
    assert not any(exists(pid) for n in range(2) for pid in family.pids(n))


def test_a_killed_child_is_back_within_a_second_or_two(family: Family) -> None:
    family.start({"does": "works"}, {"does": "works"})
    family.until(lambda: "running" in family.events())
    os.kill(family.pids(0)[0], signal.SIGKILL)
    assert family.until(lambda: len(family.pids(0)) == 2) < 5
    assert len(family.pids(1)) == 1
    [died] = [line for line in family.said() if line["event"] == "child died: restarting"]
    assert (died["how"], died["delay_s"]) == ("signal SIGKILL", 0.0)


def test_one_that_dies_on_and_on_is_slowed_down_and_others_go_on(family: Family) -> None:
    family.start({"does": "dies_ready"}, {"does": "works"})
    family.until(lambda: family.events().count("child died: restarting") >= 4, 30)
    delays = [line["delay_s"] for line in family.said() if line["event"] == "child died: restarting"]
    assert delays[:4] == [0.0, 0.25, 0.5, 1.0]
    assert len(family.pids(1)) == 1


def test_a_frozen_child_is_killed_and_replaced(family: Family) -> None:
    family.start({"does": "works"}, silence=1)
    family.until(lambda: "running" in family.events())
    os.kill(family.pids()[0], signal.SIGSTOP)
    assert family.until(lambda: len(family.pids()) == 2) < 5
    assert "child is silent: killed" in family.events()
    assert not exists(family.pids()[0])


def test_a_child_whose_work_has_stopped_falls_silent_and_is_killed(family: Family) -> None:
    family.start({"does": "stalls"}, silence=1)
    family.until(lambda: "child is silent: killed" in family.events())
    family.until(lambda: len(family.pids()) >= 2)


def test_a_parent_that_was_frozen_itself_kills_nobody(family: Family) -> None:
    family.start({"does": "works"}, silence=1)
    family.until(lambda: "running" in family.events())
    family.signal(signal.SIGSTOP)
    time.sleep(2)  # the freeze itself: nothing can be waited for
    family.signal(signal.SIGCONT)
    family.signal(signal.SIGTERM)
    assert family.wait() == 0
    assert "child is silent: killed" not in family.events()
    assert len(family.pids()) == 1


def test_children_end_when_their_parent_is_killed(family: Family) -> None:
    family.start({"does": "works"}, {"does": "ignores"})
    family.until(lambda: "running" in family.events())
    pids = [*family.pids(0), *family.pids(1)]
    family.signal(signal.SIGKILL)
    family.wait()
    assert family.until(lambda: not any(exists(pid) for pid in pids)) < 2


def test_one_that_does_not_stop_in_time_is_killed(family: Family) -> None:
    family.start({"does": "ignores"}, {"does": "works"}, stop=1)
    family.until(lambda: "running" in family.events())
    family.signal(signal.SIGTERM)
    began = time.monotonic()
    assert family.wait() == 1
    assert 0.9 < time.monotonic() - began < 4
    assert "child did not stop in time: killed" in family.events()


def test_a_second_signal_ends_the_wait(family: Family) -> None:
    family.start({"does": "ignores"}, stop=60)
    family.until(lambda: "running" in family.events())
    family.signal(signal.SIGINT)
    family.until(lambda: "stopping" in family.events())
    time.sleep(0.6)  # sooner it would count as the same wish
    family.signal(signal.SIGINT)
    assert family.wait(5) == 1


def test_the_same_wish_twice_is_one(family: Family) -> None:
    family.start({"does": "works"}, stop=60)
    family.until(lambda: "running" in family.events())
    family.signal(signal.SIGTERM)
    family.signal(signal.SIGTERM)
    assert family.wait() == 0


def test_wrong_configuration_ends_it_all_at_once_with_2(family: Family) -> None:
    family.start({"does": "exits", "status": 2}, {"does": "works"})
    assert family.wait() == 2
    assert "child died: restarting" not in family.events()


def started_at(pid: int) -> int:
    """Ticks since the machine came up."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def test_one_that_cannot_start_is_tried_again(family: Family) -> None:
    family.start({"does": "exits", "status": 1})
    family.until(lambda: len(family.pids()) >= 3)
    family.signal(signal.SIGTERM)
    assert family.wait() == 0


def test_a_spare_takes_the_place_of_a_dead_child(family: Family) -> None:
    """It has started before, and is another process than any that has worked."""
    family.start({"does": "works"}, spares=1)
    family.until(lambda: "running" in family.events())
    assert family.parent is not None
    parent = family.parent.pid
    family.until(lambda: len(children_of(parent)) == 2)
    [spare] = set(children_of(parent)) - set(family.pids(0))
    os.kill(family.pids(0)[0], signal.SIGKILL)
    family.until(lambda: len(family.pids(0)) == 2)
    assert family.pids(0)[1] == spare
    family.until(lambda: len(children_of(parent)) == 2)
    family.signal(signal.SIGTERM)
    assert family.wait() == 0
    assert not exists(spare)


def test_two_spares_cover_two_deaths_in_a_row_the_oldest_first(family: Family) -> None:
    family.start({"does": "works"}, spares=2)
    family.until(lambda: "running" in family.events())
    assert family.parent is not None
    parent = family.parent.pid
    family.until(lambda: len(children_of(parent)) == 3)
    first, second = sorted(set(children_of(parent)) - set(family.pids(0)), key=started_at)
    os.kill(family.pids(0)[-1], signal.SIGKILL)
    family.until(lambda: len(family.pids(0)) == 2)
    os.kill(family.pids(0)[-1], signal.SIGKILL)
    family.until(lambda: len(family.pids(0)) == 3)
    assert family.pids(0)[1:] == [first, second]
    family.until(lambda: len(children_of(parent)) == 3)
    family.signal(signal.SIGTERM)
    assert family.wait() == 0


def test_a_spare_ends_with_its_parent(family: Family) -> None:
    family.start({"does": "works"}, spares=1)
    family.until(lambda: "running" in family.events())
    assert family.parent is not None
    parent = family.parent.pid
    family.until(lambda: len(children_of(parent)) == 2)
    both = children_of(parent)
    family.signal(signal.SIGKILL)
    family.wait()
    family.until(lambda: not any(exists(pid) for pid in both))
