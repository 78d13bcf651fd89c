"""Which source a relay takes, and what it says when it is not the log."""

from __future__ import annotations

import pytest

from bothends.core.sources import Facts, Slot, again_s, over_budget, plan

GOOD = Facts(
    version=150_000, logical=True, recovering=False, may_replicate=True, slots_free=3, senders_free=3, pollers=0, slot=None,
    position=None)
SLOT = Slot(here=True, active_pid=None, confirmed=100, retained=10, lost=False)


@pytest.mark.parametrize(("change", "word"), [
    ({"version": 130_010}, "14"), ({"logical": False}, "wal_level"), ({"recovering": True}, "stand-by"),
    ({"may_replicate": False}, "REPLICATION"), ({"slots_free": 0}, "max_replication_slots"),
    ({"senders_free": 0}, "max_wal_senders"), ({"pollers": 1}, "told to read elsewhere"),
])
@pytest.mark.parametrize("messages", [True, False])
@pytest.mark.parametrize("keeps", [True, False])
def test_what_is_missing_is_said(change: dict[str, int], word: str, keeps: bool, messages: bool) -> None:
    found = plan(GOOD._replace(**change), keeps=keeps, messages=messages)
    assert found.act == "poll"
    assert word in found.reason


def test_a_slot_is_made_where_there_is_none() -> None:
    assert plan(GOOD, keeps=True, messages=False).act == "create"
    assert plan(GOOD, keeps=False, messages=False).act == "create"


def test_a_slot_that_stands_where_it_was_left_goes_on() -> None:
    assert plan(GOOD._replace(slot=SLOT, position=100, slots_free=0), keeps=True, messages=False).act == "resume"
    assert plan(GOOD._replace(slot=SLOT, position=500), keeps=True, messages=False).act == "resume"


def test_a_slot_whose_publication_was_changed_is_not_trusted() -> None:
    """It has shown less for a while, and nobody knows for how long."""
    before = GOOD._replace(slot=SLOT, position=100, published="1.5 7.5", read_under="1.5 7.5")
    assert plan(before, keeps=True, messages=False).act == "resume"
    assert plan(before._replace(published="1.6 7.5"), keeps=True, messages=False).act == "recreate"
    assert plan(before._replace(published=""), keeps=True, messages=False).act == "recreate"


@pytest.mark.parametrize(("slot", "position"), [
    (SLOT, 99), (SLOT, None), (SLOT._replace(lost=True), 100), (SLOT._replace(here=False), 100)])
def test_a_slot_that_somebody_moved_is_not_trusted(slot: Slot, position: int | None) -> None:
    """A slot that was dropped and made again skips what lies between, without a word (debezium#3970)."""
    found = plan(GOOD._replace(slot=slot, position=position), keeps=True, messages=False)
    assert found.act == "recreate"
    assert found.reason


def test_what_a_slot_of_messages_has_is_never_thrown_away() -> None:
    """It is nowhere else: a slot that was made and not yet noted, or that somebody made again, is read from where it begins."""
    there = GOOD._replace(slot=SLOT)
    assert plan(there, keeps=True, messages=True) == ("resume", "")
    assert plan(there._replace(position=100), keeps=True, messages=True) == ("resume", "")
    found = plan(there._replace(position=99), keeps=True, messages=True)
    assert found.act == "resume"
    assert "by somebody else" in found.reason
    for slot in (SLOT._replace(lost=True), SLOT._replace(here=False)):
        assert plan(there._replace(slot=slot, position=100), keeps=True, messages=True).act == "recreate"


def test_a_slot_of_messages_that_is_still_being_made_is_left_to_who_makes_it() -> None:
    """``schema apply``, or a relay's session that waits for open transactions. One of rows is made by its reader alone."""
    there = GOOD._replace(slot=SLOT._replace(confirmed=0, active_pid=7))
    assert plan(there, keeps=True, messages=True).act == "poll"
    assert plan(there, keeps=True, messages=False).act == "recreate"


def test_a_position_in_another_log_says_nothing() -> None:
    """The tables were restored on another server, whose log is shorter."""
    there = GOOD._replace(slot=SLOT, position=10**9, ahead=True)
    assert plan(there, keeps=True, messages=False).act == "recreate"
    found = plan(there, keeps=True, messages=True)
    assert found.act == "resume"
    assert "another log" in found.reason


def test_tries_come_later_each_time_and_budgets_are_bytes() -> None:
    waits = [again_s(n) for n in range(1, 2000)]
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (0.2, 30.0)
    assert over_budget(16 * 1024 * 1024 + 1, 16)
    assert not over_budget(16 * 1024 * 1024, 16)
