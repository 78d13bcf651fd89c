"""What a soak draws: everything comes, in time, and from the seed alone."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from tests.acceptance.drawing import LENGTHS_S, PAUSES_S, PROCESS_PACK, WAY_PACK, Line, schedule

SEEDS = range(30)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_seed_decides(seed: int) -> None:
    assert schedule(seed, 300) == schedule(seed, 300)
    assert schedule(seed, 300) != schedule(seed + 1, 300)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_longer_soak_begins_as_a_shorter_one(seed: int) -> None:
    short, long = schedule(seed, 200), schedule(seed, 600)
    for line in PAUSES_S:
        ours = [fault for fault in short if fault.line == line]
        assert ours == [fault for fault in long if fault.line == line][: len(ours)]


@pytest.mark.parametrize("seed", SEEDS)
def test_faults_come_in_order_and_end_within_the_soak(seed: int) -> None:
    faults = schedule(seed, 120)
    assert [fault.at_s for fault in faults] == sorted(fault.at_s for fault in faults)
    assert all(0 < fault.at_s and fault.at_s + fault.length_s <= 120.01 for fault in faults)
    assert all(0 <= fault.dice < 1 for fault in faults)


@pytest.mark.parametrize("seed", SEEDS)
def test_in_ten_minutes_every_kind_comes_often_on_every_line(seed: int) -> None:
    counts = Counter((fault.line, fault.kind) for fault in schedule(seed, 600))
    assert all(counts[("processes", kind)] >= 25 for kind in PROCESS_PACK)
    assert all(counts[(way, kind)] >= 4 for way in ("broker", "database") for kind in WAY_PACK)
    assert max(counts[("broker", kind)] for kind in WAY_PACK) - min(counts[("broker", kind)] for kind in WAY_PACK) <= 1


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("way", ["broker", "database"])
def test_a_way_has_one_fault_at_a_time_and_peace_in_between(seed: int, way: Line) -> None:
    faults = [fault for fault in schedule(seed, 600) if fault.line == way]
    pauses = [after.at_s - before.at_s - before.length_s for before, after in itertools.pairwise(faults)]
    assert min(pauses) > PAUSES_S[way][0] - 0.03  # moments and lengths are rounded


def test_a_case_draws_only_its_kinds() -> None:
    faults = schedule(1, 60, {"broker": ["drop"]})
    assert {fault.name for fault in faults} == {"broker drop"}
    assert len(faults) >= 4


def test_a_stop_outlasts_lease_and_watchdog() -> None:
    stops = [fault.length_s for fault in schedule(1, 600) if fault.kind.startswith("stop")]
    assert min(stops) > 5
    assert set(LENGTHS_S) <= {*PROCESS_PACK, *WAY_PACK}


@pytest.mark.parametrize("seconds", [0, 2, 5])
def test_a_soak_that_is_too_short_draws_little(seconds: float) -> None:
    assert len(schedule(1, seconds)) <= 3
