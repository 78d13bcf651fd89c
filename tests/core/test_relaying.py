from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bothends.core.relaying import (
    EVERY_LANE,
    PAGE_BYTES,
    Stream,
    advance,
    fair_share,
    is_full,
    lanes_of,
    mask_of,
    merge,
    pause_s,
    signed,
    surplus,
)

masks = st.integers(0, EVERY_LANE)


def rows(*seqs: int) -> list[tuple[int, int]]:
    return [(1, seq) for seq in seqs]


def step(stream: Stream, late: list[tuple[int, int]], new: list[tuple[int, int]], last: int = 100) -> tuple[Stream, bool]:
    return advance(
        stream, late, new, late_full=len(late) >= 3, new_full=len(new) >= 3, now="20:20:", last=last, seq=1)


def test_a_page_that_is_not_full_moves_on_to_the_last_value_of_the_sequence() -> None:
    assert step(Stream(1, 5, "10:10:"), [], rows(6, 9)) == (Stream(1, 100, "20:20:"), True)
    assert step(Stream(1, 5, "10:10:"), [], []) == (Stream(1, 100, "20:20:"), True)


def test_a_full_page_ends_at_its_last_row() -> None:
    assert step(Stream(1, 5, "10:10:"), [], rows(6, 7, 9)) == (Stream(1, 9, "20:20:"), True)


def test_the_cursor_never_goes_back() -> None:
    assert step(Stream(1, 200, "10:10:"), [], [], last=100)[0].hwm == 200


def test_a_page_full_of_late_rows_freezes_the_target_and_leaves_the_new_rows() -> None:
    stream, with_new = step(Stream(1, 50, "10:10:"), rows(2, 3, 7), rows(51))
    assert (stream, with_new) == (Stream(1, 50, "10:10:", "20:20:", 7), False)
    again, with_new = advance(
        stream, rows(8), rows(51), late_full=False, new_full=False, now="30:30:", last=100, seq=1)
    assert with_new
    assert again == Stream(1, 51, "20:20:"), "the rows after the frozen target are not seen yet"


@given(st.lists(st.tuples(masks, st.integers(0, 2), st.sampled_from(["", "a"])), max_size=20))
def test_merging_keeps_every_lane_at_its_place(parts: list[tuple[int, int, str]]) -> None:
    taken = 0
    streams = []
    for mask, hwm, snapshot in parts:
        streams.append(Stream(mask & ~taken, hwm, snapshot))
        taken |= mask
    merged = merge(streams)
    assert len({(s.hwm, s.snapshot) for s in merged}) == len(merged)
    place = {lane: (s.hwm, s.snapshot) for s in merged for lane in lanes_of(s.lanes)}
    assert place == {lane: (s.hwm, s.snapshot) for s in streams for lane in lanes_of(s.lanes)}


@given(masks)
def test_masks_survive_the_way_through_a_signed_integer(mask: int) -> None:
    assert mask_of(lanes_of(mask)) == mask
    assert -(2**63) <= signed(mask) < 2**63
    assert signed(mask) % 2**64 == mask
    assert [(signed(mask) >> lane) & 1 for lane in range(64)] == [(mask >> lane) & 1 for lane in range(64)]


@given(st.integers(1, 200))
def test_fair_shares_cover_all_lanes(relays: int) -> None:
    assert fair_share(relays) * relays >= 64
    assert (fair_share(relays) - 1) * relays < 64


@given(masks, st.integers(1, 100))
def test_what_is_given_up_is_mine_and_leaves_a_fair_share(mine: int, relays: int) -> None:
    given_up = surplus(mine, relays)
    assert given_up & ~mine == 0
    assert (mine & ~given_up).bit_count() == min(mine.bit_count(), fair_share(relays))


def test_a_page_is_full_by_rows_or_by_bytes() -> None:
    small, large = (1, b"x"), (2, b"x" * PAGE_BYTES)
    assert not is_full([small, (3, None)], 3, 1)
    assert is_full([small] * 3, 3, 1)
    assert is_full([small, large], 3, 1)


seconds = st.floats(0.0001, 10.0)


def next_s(last_s: float, *, rows: int = 5, took_s: float = 0.001, busy: bool = True) -> float:
    return pause_s(last_s, took_s=took_s, rows=rows, busy=busy, busy_s=0.003, idle_s=0.05)


def test_a_quick_look_is_repeated_soon_and_a_slow_one_later() -> None:
    assert next_s(0.003, took_s=0.0005) == 0.003
    assert next_s(0.003, took_s=0.010) == 0.020
    assert next_s(0.003, took_s=0.100) == 0.05


def test_a_trickle_is_looked_at_less_often_and_a_stream_at_once_again() -> None:
    pause = 0.003
    for _ in range(20):
        pause = next_s(pause, rows=0)
    assert pause == 0.012
    assert next_s(pause, rows=1) == 0.012
    assert next_s(next_s(pause, rows=8), rows=8) == 0.003


@given(seconds, seconds, st.integers(0, 100), st.booleans(), seconds, seconds)
def test_a_pause_is_within_what_was_set(
    last_s: float, took_s: float, rows: int, busy: bool, busy_s: float, idle_s: float
) -> None:
    found = pause_s(last_s, took_s=took_s, rows=rows, busy=busy, busy_s=busy_s, idle_s=idle_s)
    assert (busy_s if busy else 0) <= found <= max(busy_s, idle_s)


def test_idle_pauses_grow_to_the_limit() -> None:
    pause = 0.003
    for _ in range(20):
        pause = next_s(pause, rows=0, busy=False)
    assert pause == 0.05
