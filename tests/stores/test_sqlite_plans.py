"""SQLite: what is asked of a long table for each message goes by its whole key [S8], whatever the planner knows."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bothends.letters import KeyOf
from bothends.stores import open_store, schema
from bothends.stores.steps import Steps

NAMES = [("orders", f"id-{n}") for n in range(3)]
KEY = KeyOf("t", True, b"k")


@pytest.mark.parametrize(
    ("table", "ask"),
    [
        ("bothends_inbox", lambda inbox: inbox.known(1, NAMES)),
        ("bothends_inbox", lambda inbox: inbox.take(1, NAMES)),
        ("bothends_blocked_keys", lambda inbox: inbox.blocked(1, [KEY])),
    ],
)
def test_the_whole_key_is_searched(tmp_path: Path, table: str, ask: Callable[[Any], Steps[Any]]) -> None:
    store = open_store(f"sqlite:///{tmp_path}/x.db")
    schema.apply(store)
    statement = next(ask(store.inbox))
    db = sqlite3.connect(tmp_path / "x.db")
    plan = [row[3] for row in db.execute(f"explain query plan {statement.text}", statement.params)]
    db.close()
    alias = {"bothends_inbox": ("i", "bothends_inbox"), "bothends_blocked_keys": ("b",)}[table]
    searches = [line for line in plan if line.startswith(tuple(f"SEARCH {name} " for name in alias))]
    assert searches, plan
    wanted = "id=? AND source=?" if table == "bothends_inbox" else "topic=? AND key=? AND keyed=?"
    assert all(wanted in line for line in searches), plan
