"""What an operator would do about what a disturbance has killed: redrive it, once."""

from __future__ import annotations

from bothends.admin.acts import Act, Refused
from bothends.admin.redrive import redrive
from bothends.stores import Store
from bothends.stores.steps import Sql, Steps
from bothends.testing.clock import table
from bothends.testing.exploring.databases import Database

__all__ = ["redrive_dead"]

LETTERS_MAX = 1_000
_ACT = Act("crash explorer", "what the disturbance has caused is over")


def redrive_dead(database: Database) -> bool:
    """Redrives every open dead letter that a redrive can help. Whether there was any. A conflict, and an effect of which only
    a human can find out what became of it, stay."""
    return any([_redrive_dead_of(store, database) for store in database.stores])


def _redrive_dead_of(store: Store, database: Database) -> bool:
    found = database.ask(_open(f"select id from {table(store, 'dead_letters')} where state = 'open' "
                               f"and reason not in ('conflict', 'outcome_unknown') order by id limit {LETTERS_MAX}"))
    moved = False
    for letter in found:
        try:
            moved = database.ask_in_transaction(redrive(store.admin, letter, _ACT)) == "redriven" or moved
        except Refused:
            continue  # it says itself that only a human can decide
    return moved


def _open(text: str) -> Steps[list[int]]:
    result = yield Sql(text)
    return [int(row[0]) for row in result.rows]
