"""The tables of states agree with themselves."""

import pytest

from bothends.core.states import KEY_MOVES, MESSAGE_MOVES, InboxState, KeyState, check_move


def test_every_state_has_its_row_and_can_be_reached() -> None:
    assert set(MESSAGE_MOVES) == {None, *InboxState}
    assert set(KEY_MOVES) == {None, *KeyState}
    assert set().union(*MESSAGE_MOVES.values()) == set(InboxState)
    assert set().union(*KEY_MOVES.values()) == {None, *KeyState}


def test_done_is_done() -> None:
    assert MESSAGE_MOVES[InboxState.PROCESSED] == frozenset()
    with pytest.raises(AssertionError):
        check_move(InboxState.PROCESSED, InboxState.PARKED)
    assert check_move(None, InboxState.DEAD) is InboxState.DEAD


def test_a_held_key_goes_on_only_by_an_operator() -> None:
    assert KeyState.SCHEMA not in KEY_MOVES[KeyState.HELD]
