"""Tormenting with real processes and recorded ways."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bothends.demo.processes import Fleet, Process
from tests.acceptance.drawing import Fault
from tests.acceptance.tormenting import Tormentor


class Ways:
    """Records what proxies are told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def __getattr__(self, verb: str) -> Any:
        return lambda *arguments: self.told.append((verb, *arguments))


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    fleet = Fleet(tmp_path)
    one = fleet.add("sleeper-0", [], dict(os.environ), tmp_path)
    one.command = [sys.executable, "-c", "import signal; signal.pause()"]
    one.start()
    yield one
    assert one.running is not None
    one.running.kill()
    one.running.wait()


def tormentor(faults: list[Fault], processes: list[Process]) -> tuple[Tormentor, Ways, list[str]]:
    ways, told = Ways(), []
    return Tormentor(faults, processes, ways, 1, told.append), ways, told  # type: ignore[arg-type]


def state_of(process: Process) -> int:
    """The next change of its state, waited for: CLD_STOPPED, CLD_CONTINUED or CLD_KILLED."""
    assert process.running is not None
    changed = os.waitid(os.P_PID, process.running.pid, os.WSTOPPED | os.WCONTINUED | os.WEXITED | os.WNOWAIT)
    os.waitid(os.P_PID, process.running.pid, os.WSTOPPED | os.WCONTINUED | os.WNOHANG)
    assert changed is not None
    return changed.si_code


def test_a_kill_is_counted_when_it_was_done(process: Process) -> None:
    it, _, told = tormentor([Fault(1, "processes", "kill"), Fault(2, "processes", "kill")], [process])
    it.tick(0.5)
    assert (it.done.total(), it.idle) == (0, False)
    it.tick(1.0)
    assert it.done == {"kill": 1}
    assert "sleeper-0" in told[0]
    it.tick(2.0)  # nobody is there
    assert it.done == {"kill": 1}
    assert it.idle
    assert process.running is not None
    assert process.running.returncode == -signal.SIGKILL


def test_a_stop_lasts_and_is_taken_back(process: Process) -> None:
    it, _, _ = tormentor([Fault(1, "processes", "stop tree", 5)], [process])
    it.tick(1.0)
    assert state_of(process) == os.CLD_STOPPED
    assert it.lasting == ["stop tree"]
    it.tick(5.9)
    assert not it.idle
    it.tick(6.0)
    assert state_of(process) == os.CLD_CONTINUED
    assert it.idle


def test_closing_takes_back_what_lasts(process: Process) -> None:
    it, ways, _ = tormentor([Fault(1, "processes", "stop child", 50), Fault(1, "broker", "outage", 50)], [process])
    it.tick(1.0)
    assert state_of(process) == os.CLD_STOPPED
    it.close()
    assert state_of(process) == os.CLD_CONTINUED
    assert ways.told == [("cut", "broker"), ("restore", "broker")]
    assert it.idle


def test_what_ways_are_told() -> None:
    faults = [
        Fault(1, "broker", "drop"), Fault(2, "database", "delay", 1, 0.0), Fault(3, "broker", "silent requests", 1),
        Fault(4, "database", "silent answers", 1), Fault(5, "broker", "lost answers", 0.2),
    ]
    it, ways, _ = tormentor(faults, [])
    for now_s in (1, 2, 3, 4, 5, 6):
        it.tick(now_s)
    assert ways.told == [
        ("drop", "broker"), ("delay", "database", 0.01), ("restore", "database"), ("silence", "broker", "requests"),
        ("restore", "broker"), ("silence", "database", "answers"), ("restore", "database"),
        ("silence", "broker", "answers"), ("restore", "broker"),
    ]
    assert it.done == {f"{fault.line} {fault.kind}": 1 for fault in faults}
