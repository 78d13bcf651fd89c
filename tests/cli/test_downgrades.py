"""A downgrade drops tables with what is in them: the command says in numbers what would be lost, and asks."""

import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from bothends.stores import Store, open_store
from bothends.stores.schema import apply, status
from tests.admin.shelf import Shelf
from tests.cli.conftest import Cli

DOWN = ("schema", "apply", "--to", "0")


def fill(shelf: Shelf) -> None:
    shelf.outbox(3)
    shelf.held(7, "place")
    shelf.letter("m1")
    shelf.parked("m2")


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, project: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    url = f"sqlite:///{project / 'shop.db'}"
    if request.param == "postgresql":
        url = request.getfixturevalue("pg_database")
    monkeypatch.setenv("BOTHENDS_DATABASE_URL", url)
    return open_store(url)


@pytest.mark.needs("postgresql")
def test_off_a_terminal_a_downgrade_needs_yes(bothends: Cli, store: Store) -> None:
    apply(store)
    connection = store.connect()
    fill(Shelf(store, connection))
    bothends(*DOWN, status=2)
    for part in ("3 unpublished events", "1 held event", "1 open dead letter", "1 parked message", "2 inbox rows"):
        assert part in bothends.err
    assert "delayed" not in bothends.err  # there is none
    assert "give --yes" in bothends.err
    assert status(store).ok
    connection.close()
    bothends(*DOWN, "--yes")
    assert status(store).version == 0
    assert "up to date" in bothends(*DOWN)  # nothing is there to lose


@pytest.mark.needs("postgresql")
@pytest.mark.parametrize("now", [1, 2, 3, 4, 5])
def test_what_is_lost_is_counted_whatever_the_version(bothends: Cli, store: Store, now: int) -> None:
    apply(store, now)
    for target in range(now - 1, -1, -1):
        bothends("schema", "apply", "--to", str(target), status=2)
        assert f"from version {now} down to {target} and loses tables that are empty." in bothends.err
    bothends("schema", "apply", "--to", str(now))  # up, or there already: nothing is asked
    bothends("schema", "apply")


def test_on_a_terminal_it_asks_first(bothends: Cli, shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(shelf)
    asked: list[str] = []
    answers = iter([False, True])

    def confirm(question: str, **_: Any) -> bool:
        asked.append(question)
        return next(answers)

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(typer, "confirm", confirm)
    bothends(*DOWN, status=1)
    assert status(shelf.store).ok
    bothends(*DOWN)
    assert status(shelf.store).version == 0
    assert "3 unpublished events, 1 held event, 1 parked message, 1 open dead letter, 2 inbox rows" in asked[0]


def test_one_question_for_all_databases(bothends: Cli, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (project / "shop.py").open("a") as file:
        file.write('\norders = Service("orders")\n')
    monkeypatch.setenv("BOTHENDS_ORDERS_DATABASE_URL", "sqlite:///orders.db")
    bothends("schema", "apply")
    bothends(*DOWN, status=2)
    assert "shop.db goes" in bothends.err
    assert "orders.db goes" in bothends.err
    assert all(one["ok"] for one in bothends.json("schema", "status"))
