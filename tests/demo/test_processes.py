"""The fleet, with real processes and real signals."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bothends.demo.processes import RESTARTS_MAX, Fleet, Process, children_of

# A supervisor with one child: both live until they are told to end.
SUPERVISOR = (
    "import subprocess, sys, signal;"
    "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()']);"
    "signal.signal(signal.SIGTERM, lambda *_: (child.kill(), sys.exit(0)));"
    "print('{\"event\":\"ready\"}', flush=True);"
    "child.wait(); signal.pause()"
)


def until(condition: Callable[[], object], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.005)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path)
    yield fleet
    for process in fleet.processes.values():
        if process.running is not None:
            for pid in children_of(process.running.pid):
                os.kill(pid, signal.SIGKILL)
            process.running.kill()
            process.running.wait()


def started(fleet: Fleet, tmp_path: Path, program: str = SUPERVISOR) -> Process:
    process = fleet.add("work-stock", ["x"], os.environ, tmp_path)
    process.command = [sys.executable, "-c", program]
    process.start()
    return process


def ready(process: Process) -> bool:
    return {"event": "ready"} in list(process.log_lines())


def pid_of(process: Process) -> int:
    assert process.running is not None
    return process.running.pid


DEMO = """
import os, signal, sys
from pathlib import Path
from bothends.demo.processes import Fleet
fleet = Fleet(Path(sys.argv[1]))
process = fleet.add("work-stock", ["x"], os.environ, Path(sys.argv[1]))
process.command = [sys.executable, "-c", sys.argv[2]]
process.tied = True
process.start()
signal.pause()
"""
TOLD = (
    "import signal, sys;"
    "signal.signal(signal.SIGTERM, lambda *_: (print('{\"event\":\"told\"}', flush=True), sys.exit(0)));"
    "print('{\"event\":\"ready\"}', flush=True);"
    "signal.pause()"
)


def test_what_is_tied_ends_where_the_demo_is_killed(tmp_path: Path) -> None:
    """Else relays and workers would go on for ever, and nobody would know of them."""
    log = tmp_path / "work-stock.log"
    with subprocess.Popen([sys.executable, "-c", DEMO, str(tmp_path), TOLD]) as demo:
        try:
            until(lambda: log.exists() and "ready" in log.read_text())
        finally:
            demo.kill()
    until(lambda: "told" in log.read_text())


class Always(random.Random):
    """Chooses the supervisor (0.0) or a child (0.9)."""

    def __init__(self, value: float) -> None:
        super().__init__(1)
        self._value = value

    def random(self) -> float:
        return self._value


def test_children_are_found(fleet: Fleet, tmp_path: Path) -> None:
    process = started(fleet, tmp_path)
    until(lambda: ready(process))
    (child,) = children_of(pid_of(process))
    assert child != pid_of(process)
    assert children_of(child) == []


def test_a_killed_supervisor_is_started_again(fleet: Fleet, tmp_path: Path) -> None:
    process = started(fleet, tmp_path)
    until(lambda: ready(process))
    first = pid_of(process)
    orphans = children_of(first)
    killed = process.kill(Always(0.0))
    assert killed is not None
    assert (killed.what, killed.pid) == ("supervisor", first)
    assert process.kill(Always(0.0)) is None  # it is dead already
    fleet.tend()
    assert pid_of(process) != first
    assert (process.started, process.restarts) == (2, 0)
    for pid in orphans:
        os.kill(pid, signal.SIGKILL)


def test_a_killed_child_is_its_supervisors_business(fleet: Fleet, tmp_path: Path) -> None:
    process = started(fleet, tmp_path)
    until(lambda: ready(process))
    (child,) = children_of(pid_of(process))
    killed = process.kill(Always(0.9))
    assert killed is not None
    assert (killed.what, killed.pid) == ("child", child)
    until(lambda: children_of(pid_of(process)) == [])
    fleet.tend()
    assert process.started == 1


def test_who_dies_on_and_on_ends_the_run(fleet: Fleet, tmp_path: Path) -> None:
    process = started(fleet, tmp_path, "raise SystemExit('no such database')")

    def die_on() -> None:
        for _ in range(RESTARTS_MAX + 2):
            assert process.running is not None
            process.running.wait()
            fleet.tend()

    with pytest.raises(RuntimeError, match=r"work-stock ended with status 1(?s:.*)no such database"):
        die_on()


def test_wrong_configuration_is_not_tried_twice(fleet: Fleet, tmp_path: Path) -> None:
    process = started(fleet, tmp_path, "import sys; print('wrong URL'); sys.exit(2)")
    assert process.running is not None
    process.running.wait()
    with pytest.raises(RuntimeError, match="wrong URL"):
        fleet.tend()


def test_stopping_is_a_sigterm_and_nobody_is_started_again(fleet: Fleet, tmp_path: Path) -> None:
    process = started(fleet, tmp_path)
    until(lambda: ready(process))
    fleet.stop()
    assert process.running is not None
    assert process.running.returncode == 0
    fleet.tend()
    assert process.started == 1


def test_who_does_not_stop_is_killed(fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bothends.demo.processes.STOP_S", 0.05)
    program = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "print('{\"event\":\"ready\"}', flush=True); signal.pause(); signal.pause()"
    )
    process = started(fleet, tmp_path, program)
    until(lambda: ready(process))
    process.begin_stop()
    until(process.has_stopped)
    assert process.running is not None
    assert process.running.returncode == -signal.SIGKILL


def test_log_lines_are_the_json_ones(fleet: Fleet, tmp_path: Path) -> None:
    process = started(fleet, tmp_path, "print('{\"a\":1}\\nTraceback\\n{broken\\n{\"b\":2}')")
    assert process.running is not None
    process.running.wait()
    assert list(process.log_lines()) == [{"a": 1}, {"b": 2}]
    assert process.last_words(1) == '{"b":2}'
