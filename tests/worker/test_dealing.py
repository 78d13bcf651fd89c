"""Which slot a message goes to: lines are never split, quick work fills one slot, slow work is spread."""

from hypothesis import given
from hypothesis import strategies as st

from bothends.worker.dealing import SOON_S, Dealing, Line

A, B = ("orders", b"a"), ("orders", b"b")


def quick(dealing: Dealing) -> None:
    """Batches of 100 in a millisecond each."""
    for n in range(50):
        dealing.begin(0, n)
        dealing.end(0, n + 0.001, 100)


def test_until_something_is_known_each_slot_gets_one() -> None:
    dealing = Dealing(3)
    assert [dealing.deal(("t", bytes([n])), 0.0) for n in range(3)] == [0, 1, 2]


def test_quick_messages_share_a_slot_and_what_would_wait_goes_to_the_next() -> None:
    dealing = Dealing(4)
    quick(dealing)
    dealt = [dealing.deal(None, 0.0) for _ in range(10_000)]
    assert dealt[:1000] == [0] * 1000
    assert {n: dealt.count(n) > 1000 for n in range(4)} == dict.fromkeys(range(4), True)


def test_a_line_stays_on_its_slot_while_any_of_it_is_there() -> None:
    dealing = Dealing(4)
    assert (dealing.deal(A, 0.0), dealing.deal(B, 0.0), dealing.deal(B, 0.0)) == (0, 1, 1)
    dealing.leave(0, [A])
    dealing.leave(1, [B])
    assert dealing.deal(B, 0.0) == 1
    dealing.leave(1, [B, B])
    assert dealing.deal(B, 0.0) == 0


def test_nothing_new_waits_behind_a_batch_that_takes_its_time() -> None:
    dealing = Dealing(2)
    quick(dealing)
    assert dealing.deal(A, 100.0) == 0
    dealing.begin(0, 100.0)
    assert dealing.deal(B, 100.0 + 2 * SOON_S) == 1
    assert dealing.deal(A, 100.0 + 2 * SOON_S) == 0, "its line goes before"


def test_slow_messages_are_spread_evenly() -> None:
    dealing = Dealing(4)
    dealing.begin(0, 0.0)
    dealing.end(0, 10.0, 1)
    dealt = [dealing.deal(None, 20.0) for _ in range(40)]
    assert [dealt.count(n) for n in range(4)] == [10] * 4


_ACTS = st.sampled_from(["deal", "leave", "begin", "end"])
_moves = st.lists(st.tuples(_ACTS, st.integers(0, 4), st.floats(0, 1)), max_size=80)


@given(_moves)
def test_a_line_is_never_on_two_slots_and_loads_add_up(moves: list[tuple[str, int, float]]) -> None:
    dealing = Dealing(3)
    there: list[tuple[int, Line | None]] = []
    now_s = 0.0
    for what, which, wait_s in moves:
        now_s += wait_s
        if what == "deal":
            line = ("t", bytes([which])) if which else None
            there.append((dealing.deal(line, now_s), line))
        elif what == "leave" and there:
            slot, line = there.pop(which % len(there))
            dealing.leave(slot, [line])
        elif what == "begin":
            dealing.begin(which % 3, now_s)
        elif what == "end":
            dealing.end(which % 3, now_s, which)
        for line in {line for _, line in there if line is not None}:
            assert len({slot for slot, other in there if other == line}) == 1
    assert dealing.loads() == [sum(slot == n for slot, _ in there) for n in range(3)]
    assert dealing.lines() == len({line for _, line in there if line is not None})
