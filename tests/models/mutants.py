"""Mutants that the models must catch: those of the explorer that have to do with several, and some that only several show."""

from __future__ import annotations

from typing import Any

from bothends.errors import Blame
from bothends.relay.blocked import Blocked
from bothends.relay.held import Held
from bothends.relay.term import Term
from bothends.stores.sqlite import relay_rows
from bothends.stores.sqlite.inbox import SqliteInbox
from bothends.stores.sqlite.relay import LeaseSteps
from bothends.stores.sqlite.relay_held import HeldSteps
from bothends.worker.dealing import Dealing
from tests.exploring.mutants import MUTANTS, Mutant, altered, answers
from tests.models.grounds import Ground

__all__ = ["OF_RELAYS", "OF_WORKERS"]


def _never(plain: Any) -> Any:
    """An attribute that stays empty, whatever it is given."""
    return property(lambda self: [], lambda self, value: None)


def _without(trigger: str) -> Any:
    """A database that lacks this trigger."""

    def replace(plain: Any) -> Any:
        def connect(self: Ground) -> Any:
            connection = plain(self)
            connection.driver.execute(f"drop trigger if exists {trigger}")
            return connection

        return connect

    return replace


def _charging_anybody(plain: Any) -> Any:
    """Whatever goes wrong counts as the event's fault."""

    def judge(self: Held, row: Any, error: Any) -> None:
        if error is not None:
            error.blame = Blame.EVENT
        plain(self, row, error)

    return judge


def _the_explorers(*names: str) -> list[Mutant]:
    found = [mutant for mutant in MUTANTS if mutant.name in names]
    assert len(found) == len(names), f"{set(names) - {mutant.name for mutant in found}}"
    return found


OF_RELAYS = [
    Mutant("a relay that was fenced off goes on", relay_rows, "fenced",
           altered("where id = :me", "where :me > 0 union all select 1")),
    Mutant("lanes of others are taken", LeaseSteps, "take",
           altered(r"where relay is null and lane in.*limit :lanes\)",
                   "where lane in (select lane from bothends_relay_lanes order by lane limit :lanes)")),
    Mutant("lanes are given up with batches in flight", Term, "_leaving_with", _never),
    Mutant("a lease that is over is not ended", LeaseSteps, "expire",
           altered("delete from bothends_relays where id", "delete from bothends_relays where 0 and id")),
    Mutant("a dead relay's lanes stay its own", LeaseSteps, "leave", altered("set relay = null", "set relay = relay")),
    Mutant("held keys are overlooked", HeldSteps, "blocked", answers(set())),
    Mutant("a key that was free stays free", Blocked, "forget", lambda plain: lambda self: None),
    Mutant("a held key's next row is not woken", Ground, "connect", _without("bothends_held_deleted")),
    Mutant("the broker's faults are charged to events", Held, "_judge", _charging_anybody),
    *_the_explorers(
        "the relay marks before the confirmation", "the relay forgets failures",
        "after a failure all in flight counts as confirmed", "the relay never marks", "the relay reads backwards",
        "the relay skips a row",
    ),
]

def _in_turn(dealing: Any) -> int:
    """The next slot, whatever the line."""
    slot: int = sum(dealing.loads()) % len(dealing.loads())
    dealing._loads[slot] += 1
    return slot


OF_WORKERS = [
    Mutant("a drainer does not look whether the key is still its own", SqliteInbox, "hold", answers(True)),
    Mutant("messages of one key go to any slot", Dealing, "deal",
           lambda plain: lambda self, line, now_s: _in_turn(self)),
    *_the_explorers(
        "the inbox row is not written", "a copy counts as new", "the inbox row is committed apart", "waiting keys are not seen",
        "its key does not wait", "the drainer takes the newest first",
        "a drained message is not taken out", "a drained message stays parked", "the key is never freed",
        "an effect's result is not kept",
        "an effect is not recorded before the call", "an unknown effect is called again unasked",
        "an effect's key is made anew",
        "the position is stored when records are handed out", "the position is stored before anything is done",
    ),
]
