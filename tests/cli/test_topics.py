"""``topics``: what the code declares, what events wait for, and the default topic; a broker that is away."""

import time
from pathlib import Path

import pytest

from tests.admin.shelf import Shelf
from tests.cli.conftest import Cli

TWO = '''
from dataclasses import dataclass
from bothends import Service, event

orders = Service("orders")
billing = Service("billing")
'''
OWN = '''
from dataclasses import dataclass
from bothends import Service, event

@event("note.added", key="n")
@dataclass(frozen=True)
class NoteAdded:
    n: str

notes = Service("notes")
'''


def states(bothends: Cli, *arguments: str, status: int) -> dict[str, tuple[str, bool]]:
    rows = bothends.json("topics", "check", *arguments, status=status)
    return {row["topic"]: (row["state"], row["needed"]) for row in rows}


def test_a_default_topic_that_nothing_uses_is_shown_and_not_made(bothends: Cli, shelf: Shelf) -> None:
    assert bothends.json("topics", "create")["created"] == ["orders.events"]
    assert states(bothends, status=0) == {"orders.events": ("ok", True), "inventory.events": ("missing", False)}
    text = bothends("topics", "check")
    assert "not needed" in text
    assert "topics create" not in text


def test_events_that_wait_for_the_default_topic_have_it_made(bothends: Cli, shelf: Shelf) -> None:
    bothends("topics", "create")
    shelf.held(1, "place", topic="inventory.events")
    shelf.held(2, "behind", topic="inventory.events")
    assert states(bothends, status=1)["inventory.events"] == ("missing", True)
    text = bothends("topics", "check", status=1)
    assert "2 waiting events" in text
    assert "`bothends topics create` makes those that are missing" in text
    assert bothends.json("topics", "create")["created"] == ["inventory.events"]
    assert states(bothends, status=0)["inventory.events"] == ("ok", True)


def test_topics_that_only_events_name(bothends: Cli, shelf: Shelf) -> None:
    shelf.outbox(1, topic="named.at.add")
    shelf.held(1, "place", topic="held.back")
    shelf.held(2, "dead", key=b"k2", topic="given.up")
    shelf.sql("insert into {s}.delayed (seq, lane, id, source, type, topic, time, version, deliver_at) "
              "values (9, 0, 'd', 'inventory', 't', 'for.later', 't', 1, {now})")
    assert set(states(bothends, status=1)) == {
        "orders.events", "named.at.add", "held.back", "for.later", "inventory.events"}
    assert bothends.json("topics", "create")["created"] == ["orders.events", "for.later", "held.back", "named.at.add"]


def test_an_event_class_without_a_topic_needs_the_default_one(bothends: Cli, project: Path) -> None:
    (project / "own.py").write_text(OWN)
    assert states(bothends, "own", status=1) == {"notes.events": ("missing", True)}
    assert bothends.json("topics", "create", "own")["created"] == ["notes.events"]


def test_services_that_share_an_outbox_have_each_its_own(bothends: Cli, shelf: Shelf, project: Path) -> None:
    (project / "two.py").write_text(TWO)
    shelf.outbox(1, topic="billing.events")
    shelf.outbox(1, topic="free")
    rows = bothends.json("topics", "check", "two", status=1)
    assert [(r["topic"], r["service"], r["needed"]) for r in rows] == [
        ("free", "orders", True), ("orders.events", "orders", False), ("billing.events", "billing", True)]
    assert bothends.json("topics", "create", "two")["created"] == ["free", "billing.events"]
    assert set(states(bothends, "two", "--service", "billing", status=0)) == {"free", "billing.events"}


@pytest.mark.parametrize("url", ["postgresql://u:secret@127.0.0.1:1/none", "sqlite:///no-tables.db"])
def test_without_a_database_what_is_declared_is_made(bothends: Cli, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("BOTHENDS_DATABASE_URL", url)
    assert bothends.json("topics", "create") == {"created": ["orders.events"], "there": []}
    assert "note: topics that only waiting events of inventory name" in bothends.err
    assert "secret" not in bothends.err


@pytest.mark.parametrize("command", ["check", "create"])
def test_a_kafka_that_is_away_is_two_lines_within_three_seconds(
    bothends: Cli, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("BOTHENDS_BROKER_URL", "kafka://127.0.0.1:1")
    began = time.monotonic()
    bothends("topics", command, status=1)
    assert time.monotonic() - began < 9  # two, and what a busy machine adds; a request that is waited for takes ten
    what, fix = [line for line in bothends.err.splitlines() if not line.startswith("note: ")]
    assert what.startswith("error: kafka://127.0.0.1:1: ")
    assert fix == "  do: see that the broker is up, and that `bothends config` shows the right URL"
