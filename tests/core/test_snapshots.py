"""Snapshots: what they see, against PostgreSQL's own rule; and whether one sees all that another sees."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothends.core.lanes import lane
from bothends.core.relaying import EVERY_LANE, Stream
from bothends.core.snapshots import Snapshot, covers

XIDS = range(1, 12)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    xmax = draw(st.integers(1, 11))
    running = frozenset(draw(st.sets(st.integers(1, max(1, xmax - 1)), max_size=5))) - {xmax}
    return Snapshot(min(running, default=xmax), xmax, running)


@pytest.mark.parametrize(("text", "seen"), [
    ("5:5:", {1, 2, 3, 4}),
    ("3:8:3,5", {1, 2, 4, 6, 7}),
    ("1:1:", set()),
])
def test_what_a_snapshot_sees(text: str, seen: set[int]) -> None:
    snapshot = Snapshot.parse(text)
    assert {xid for xid in XIDS if snapshot.sees(xid)} == seen


@pytest.mark.parametrize("text", ["", "1:2", "a:b:c", "1:2:x"])
def test_what_is_no_snapshot_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        Snapshot.parse(text)


@given(snapshots(), snapshots())
def test_a_snapshot_that_includes_another_sees_all_that_it_sees(one: Snapshot, other: Snapshot) -> None:
    if one.includes(other):
        assert {xid for xid in XIDS if other.sees(xid)} <= {xid for xid in XIDS if one.sees(xid)}


@given(snapshots(), st.integers(0, 5))
def test_a_later_snapshot_includes_an_earlier_one(early: Snapshot, more: int) -> None:
    """Running transactions end, new ones begin above: what a server's own snapshots do."""
    xmax = early.xmax + more
    running = frozenset(xid for xid in early.running if xid % 2)
    assert Snapshot(min(running, default=xmax), xmax, running).includes(early)


def test_a_row_is_covered_by_the_stream_of_its_lane_alone() -> None:
    mine = 1 << lane(b"k")
    done = covers([Stream(mine, 10, "5:8:6"), Stream(EVERY_LANE & ~mine, 3, "2:2:")])
    assert done(10, 4, b"k")
    assert done(10, 7, b"k")
    assert not done(10, 6, b"k")  # was running
    assert not done(11, 4, b"k")  # above the high-water mark
    assert not done(4, 1, b"j" if lane(b"j") != lane(b"k") else b"i")
    assert done(3, 1, None)
