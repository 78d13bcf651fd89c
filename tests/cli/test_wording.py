"""What status and errors say is so: nothing is drained that is kept back, one is not many, errors read as sentences."""

import re
import uuid
from importlib.metadata import version

import psycopg
import pytest

from tests.admin.shelf import Shelf
from tests.cli.conftest import Cli


def test_an_outbox_with_held_events_is_not_drained(bothends: Cli, shelf: Shelf) -> None:
    assert ", drained; 0 relays" in bothends("status")
    shelf.relay("one", left_s=60)
    shelf.held(1, "place")
    assert ", not drained; 1 relay\n" in bothends("status")
    shelf.sql("update {s}.held set state = 'dead'")  # given up on: nothing is left to be done
    assert ", drained; 1 relay\n" in bothends("status")


def test_what_relays_read_is_said_where_it_is_not_simply_the_table(bothends: Cli, shelf: Shelf) -> None:
    shelf.relay("one", left_s=60)
    assert "poll" not in bothends("status")
    shelf.relay("two", left_s=60, wants="auto", reason="the role has no REPLICATION attribute")
    shelf.relay("three", left_s=60, wants="wal", source="wal")
    for name in ("four", "five"):
        shelf.relay(name, left_s=60, wants="wal", source="standby", reason="another relay reads the log")
    said = bothends("status")
    assert "  1 relay polls: the role has no REPLICATION attribute\n" in said
    assert "  1 relay reads the log (wal)\n" in said
    assert "  2 relays stand by: another relay reads the log\n" in said
    [outbox] = bothends.json("status")["outboxes"]
    assert {r["source"] for r in outbox["relays"]} == {"poll", "wal", "standby"}
    assert outbox["slots"] == []


def test_slots_are_said_with_what_they_hold_back(
    bothends: Cli, pg_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOTHENDS_DATABASE_URL", pg_database)
    bothends("schema", "apply")
    with psycopg.connect(pg_database, autocommit=True) as db:
        db.execute("update bothends.relay_log set slot = 'be_none' where messages")
        assert "  slot be_none for messages: missing\n" in bothends("status")
        slot = f"test_{uuid.uuid4().hex}"
        db.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
        db.execute("update bothends.relay_log set slot = %s where not messages", [slot])
        said = bothends("status")
        db.execute("select pg_drop_replication_slot(%s)", [slot])
    assert re.search(f"  slot {slot} for rows: reserved, holds back [\\d.]+ [kM]B of the log, nobody reads it\n", said)


def test_what_waits_in_the_log_is_not_called_drained(bothends: Cli, pg_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOTHENDS_DATABASE_URL", pg_database)
    monkeypatch.setenv("BOTHENDS_RELAY_SOURCE", "message")
    bothends("schema", "apply")
    with psycopg.connect(pg_database, autocommit=True) as db:
        db.execute("select pg_logical_emit_message(true, 'bothends.bothends', repeat('x', 200000))")
        said = bothends("status")
        [numbers] = bothends.json("status")["outboxes"]
        db.execute("select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = current_database()")
    assert ": 0 waiting in the table, " in said
    assert re.search(r", what waits in the log is not counted \(its slot holds back [\d.]+ [kM]B\); 0 relays\n", said)
    assert "  nothing waits in the table\n" in said
    assert "drained;" not in said
    assert numbers["drain_s"] is None
    assert numbers["in_log_bytes"] > 200_000
    assert bothends.json("status")["outboxes"][0]["in_log_bytes"] is None  # the slot is gone, and what was in it


def test_a_consumer_with_parked_messages_is_not_drained(bothends: Cli, shelf: Shelf) -> None:
    bothends("topics", "create")
    shelf.consumer()
    shelf.sql("update {s}.consumers set topics = '[\"orders.events\"]'")

    def drained() -> str:
        header, row = (line.split("\t") for line in bothends("status").splitlines()[-2:])
        return dict(zip(header, row, strict=True))["drained"]

    assert drained() == "drained"
    shelf.block(b"k1", "retrying")
    shelf.parked("m1")
    assert drained() == "not drained"
    shelf.sql("delete from {s}.parked")
    shelf.sql("update {s}.blocked_keys set state = 'held'")
    assert drained() == "not drained"


def test_a_schema_is_named_only_where_there_are_schemas(
    bothends: Cli, pg_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bothends("dead", "list", status=2)
    assert "error: sqlite:///shop.db has no tables of bothends\n" in bothends.err
    monkeypatch.setenv("BOTHENDS_DATABASE_URL", pg_database)
    bothends("dead", "list", status=2)
    assert "has no tables of bothends (schema bothends)\n" in bothends.err


@pytest.mark.parametrize("where", ["127.0.0.1:1/none", "/none?host=/not/there"])
def test_a_database_that_is_away_is_two_sentences(bothends: Cli, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    monkeypatch.setenv("BOTHENDS_DATABASE_URL", f"postgresql://{where}")
    bothends("dead", "list", status=1)
    what, fix = bothends.err.splitlines()
    assert re.search(r"failed: (Connection refused|No such file or directory)$", what)
    assert fix == "  do: is it up, and does `bothends config` show the right URL?"


@pytest.mark.parametrize(("name", "quoted"), [("not_there", "not_there"), ("not%20there", "'not there'")])
def test_a_database_that_nobody_created_is_to_be_created(
    bothends: Cli, postgresql_url: str, monkeypatch: pytest.MonkeyPatch, name: str, quoted: str
) -> None:
    monkeypatch.setenv("BOTHENDS_DATABASE_URL", f"{postgresql_url.rpartition('/')[0]}/{name}")
    bothends("schema", "apply", status=1)
    what, fix = bothends.err.splitlines()
    assert what.endswith("does not exist")
    assert fix == f"  do: create it (`createdb {quoted}`), or set the right URL (`bothends config` shows it)"


@pytest.mark.parametrize("command", [
    ["dead", "list"], ["keys", "list"], ["consumers", "list"], ["dead", "show", "1"], ["consumers", "pause", "stock"],
])
def test_an_application_in_the_wrong_place_is_shown_the_right_one(bothends: Cli, command: list[str]) -> None:
    bothends(*command, "shop", status=2)
    assert "Got unexpected extra argument" in bothends.err
    assert bothends.err.splitlines()[-1] == "  do: this command takes the application as an option: --app shop"


def test_other_extra_arguments_have_the_help_named(bothends: Cli) -> None:
    bothends("status", "shop", "more", status=2)
    assert "Got unexpected extra argument" in bothends.err
    assert "status --help` shows how it is used" in bothends.err


@pytest.mark.parametrize("debug", [[], ["--debug"]])
def test_the_version(bothends: Cli, debug: list[str]) -> None:
    assert bothends(*debug, "--version") == f"bothends {version('bothends')}\n"
