"""The positions that may be stored, against a model that is too slow to ship."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bothends.core.ordering import Run, Runs


def test_the_position_waits_for_the_oldest() -> None:
    run = Run(0)
    for offset in range(10):
        run.hand_out(offset)
    for offset in range(1, 10):
        assert not run.settle(offset)
    assert run.position == 0
    assert run.settle(0)
    assert run.position == 10
    assert len(run) == 0


def test_gaps_in_the_log_do_not_hold_the_position() -> None:
    run = Run(3)
    for offset in (5, 9, 10, 40):
        run.hand_out(offset)
    run.settle(9)
    assert run.position == 3
    run.settle(5)
    assert run.position == 10
    run.settle(10)
    run.settle(40)
    assert run.position == 41


def test_offsets_in_a_gap_are_strangers() -> None:
    run = Run(0)
    for offset in (0, 10):
        run.hand_out(offset)
    assert not run.settle(5)
    assert run.settle(0)
    assert run.position == 1
    assert run.settle(10)
    assert run.position == 11


@pytest.mark.parametrize("stranger", [-1, 2, 6, 10**15])
def test_what_was_never_handed_out_is_ignored(stranger: int) -> None:
    run = Run(3)
    run.hand_out(3)
    run.hand_out(5)
    assert not run.settle(stranger)
    run.settle(5)
    assert run.position == 3


def test_a_record_is_handed_out_once() -> None:
    run = Run(3)
    run.hand_out(3)
    for offset in (3, 2):
        with pytest.raises(ValueError):
            run.hand_out(offset)


def test_rewinding_below_the_position_moves_it_back() -> None:
    runs: Runs[str] = Runs()
    runs.begin("p", 0)
    for offset in range(5):
        runs.hand_out("p", offset)
        runs.settle("p", offset)
    runs.stored({"p": 5})
    assert runs.rewind("p", 2)
    assert runs.to_store() == {"p": 2}
    runs.hand_out("p", 2)
    assert runs.unsettled == 1


def test_a_partition_that_is_gone_takes_nothing() -> None:
    runs: Runs[str] = Runs()
    runs.begin("p", 0)
    runs.hand_out("p", 0)
    runs.settle("p", 0)
    runs.end("p")
    runs.settle("p", 0)
    runs.not_stored("p")
    assert runs.to_store() == {}
    assert not runs.rewind("p", 0)
    assert "p" not in runs
    assert runs.unsettled == 0


def test_a_position_that_moved_while_it_was_stored_is_due_again() -> None:
    runs: Runs[str] = Runs()
    runs.begin("p", 0)
    runs.hand_out("p", 0)
    runs.hand_out("p", 1)
    runs.settle("p", 0)
    storing = runs.to_store()
    runs.settle("p", 1)
    runs.stored(storing)
    assert runs.to_store() == {"p": 2}
    runs.stored({"p": 2})
    assert runs.to_store() == {}
    runs.not_stored("p")
    assert runs.to_store() == {"p": 2}


def test_room_is_bounded() -> None:
    runs: Runs[str] = Runs(unsettled_max=3)
    runs.begin("p", 0)
    runs.begin("q", 0)
    for partition, offset in (("p", 0), ("q", 0), ("p", 1)):
        runs.hand_out(partition, offset)
    assert runs.room == 0
    runs.settle("p", 1)
    assert runs.room == 0, "it is held in memory until the oldest is settled"
    runs.settle("p", 0)
    assert runs.room == 2
    runs.begin("q", 7)
    assert runs.room == 3


@given(st.lists(st.integers(1, 5), min_size=1, max_size=60), st.randoms(use_true_random=False))
def test_any_order_of_settling_ends_behind_the_last(steps: list[int], random: object) -> None:
    offsets = [sum(steps[: n + 1]) for n in range(len(steps))]
    run = Run(0)
    for offset in offsets:
        run.hand_out(offset)
    order = offsets[:]
    random.shuffle(order)  # type: ignore[attr-defined]
    positions = []
    for n, offset in enumerate(order):
        run.settle(offset)
        positions.append(run.position)
        left = set(offsets) - set(order[: n + 1])
        assert all(run.position <= offset for offset in left), "nothing unsettled is skipped"
    assert positions == sorted(positions)
    assert run.position == offsets[-1] + 1


class Positions(RuleBasedStateMachine):
    """``Runs`` of one partition beside plain sets."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: Runs[str] = Runs()
        self.runs.begin("p", 0)
        self.delivered: list[int] = []
        self.settled: set[int] = set()
        self.floor = 0
        self.next = 0

    @rule(gap=st.integers(0, 3))
    def hand_out(self, gap: int) -> None:
        self.runs.hand_out("p", self.next + gap)
        self.delivered.append(self.next + gap)
        self.next += gap + 1

    @precondition(lambda self: self.delivered)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(self.delivered))
        self.runs.settle("p", offset)
        self.settled.add(offset)

    @rule(offset=st.integers(0, 30))
    def rewind(self, offset: int) -> None:
        offset = min(offset, self.next)
        self.runs.rewind("p", offset)
        self.floor = min(self.expected(), offset)
        self.delivered = [d for d in self.delivered if d < offset]
        self.settled = {d for d in self.settled if d < offset}
        self.next = offset

    def expected(self) -> int:
        position = self.floor
        for offset in self.delivered:
            if offset not in self.settled:
                break
            position = max(position, offset + 1)
        return position

    @invariant()
    def agrees(self) -> None:
        assert self.runs.position("p") == self.expected()
        unsettled = [d for d in self.delivered if d not in self.settled]
        assert all(self.runs.position("p") <= offset for offset in unsettled)
        assert self.runs.unsettled >= len(unsettled)


TestPositions = Positions.TestCase
TestPositions.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
