"""Each command, in text and JSON, with its exit status; errors in two lines."""

import json
import re
import uuid
from pathlib import Path

import pytest

from bothends.stores import open_store
from bothends.stores.schema import status
from tests.admin.shelf import Shelf
from tests.cli.conftest import Cli

CHANGE = ("--by", "anna", "--reason", "test", "--yes")


def test_schema_is_applied_and_checked(bothends: Cli) -> None:
    assert bothends.json("schema", "status", status=1)[0]["pending"][0] == "0001_outbox"
    assert "0001_outbox up" in bothends("schema", "apply")
    assert "up to date" in bothends("schema", "apply", "shop")
    assert bothends.json("schema", "status")[0]["ok"] is True
    bothends("schema", "apply", "--to", "0", "--yes")
    assert status(open_store("sqlite:///shop.db")).version == 0


def test_schema_sql_has_the_grants(bothends: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOTHENDS_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")  # nothing is connected to
    text = bothends("schema", "sql", "--grants", "app=shop_api,relay=shop_relay")
    assert "create table" in text
    assert '"shop_api"' in text
    assert '"shop_relay"' in text
    bothends("schema", "sql", "--grants", "shop_api", status=2)


def test_a_role_without_rights_is_told_which(bothends: Cli, pg_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import psycopg

    role = f"poor_{uuid.uuid4().hex[:12]}"
    monkeypatch.setenv("BOTHENDS_DATABASE_URL", pg_database)
    bothends("schema", "apply")
    with psycopg.connect(pg_database, autocommit=True) as owner:
        owner.execute(f"create role {role} login".encode())
        try:
            owner.execute(f"grant usage on schema bothends to {role}".encode())
            monkeypatch.setenv("BOTHENDS_DATABASE_URL", pg_database.replace("postgres@", f"{role}@"))
            bothends("status", status=1)
        finally:
            owner.execute(f"drop owned by {role}".encode())
            owner.execute(f"drop role {role}".encode())
    assert "permission denied" in bothends.err
    assert "bothends schema sql --grants relay=ROLE" in bothends.err


def test_topics_are_checked_and_created(bothends: Cli) -> None:
    assert bothends.json("topics", "check", status=1)[0]["state"] == "missing"
    assert bothends.json("topics", "create") == {"created": ["orders.events"], "there": []}
    assert bothends.json("topics", "create") == {"created": [], "there": ["orders.events"]}
    row, _default = bothends.json("topics", "check")
    assert (row["state"], row["partitions"]) == ("ok", 2)
    assert "inventory.stock" in row["used_by"]


def test_without_tables_every_command_says_what_to_do(bothends: Cli) -> None:
    for command in (["dead", "list"], ["keys", "list"], ["trace", "x"], ["purge", "--yes"]):
        bothends(*command, status=2)
        assert "error: sqlite:///shop.db has no tables of bothends" in bothends.err
        assert "bothends schema apply" in bothends.err
    assert "no tables" in bothends("status")  # a reading command shows it, and goes on


def test_status_shows_what_waits_without_anybody_at_work(bothends: Cli, shelf: Shelf) -> None:
    shelf.outbox(3)
    shelf.letter("m1", age_s=7300)
    shelf.block()
    numbers = bothends.json("status")
    assert numbers["outboxes"][0]["waiting"] == 3
    [consumer] = numbers["consumers"]
    assert (consumer["dead"], consumer["held_keys"], consumer["lag"]) == (1, 1, 0)
    text = bothends("status")
    assert "3 waiting" in text
    assert "not draining" in text
    assert "2 h" in text


def test_status_without_its_broker_still_shows_the_rest(bothends: Cli, shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf.outbox(1)
    shelf.consumer()
    monkeypatch.setenv("BOTHENDS_BROKER_URL", "kafka://127.0.0.1:1")
    numbers = bothends.json("status")
    assert numbers["consumers"][0]["lag"] is None
    assert any("does not answer" in problem for problem in numbers["problems"])


def test_health_finds_and_says_the_fix(bothends: Cli, shelf: Shelf) -> None:
    assert bothends("health") == "healthy\n"
    shelf.outbox(1)
    shelf.letter("m1")
    found = bothends.json("health", status=1)
    assert found["ok"] is False
    assert len(found["findings"]) == 2
    assert all(finding["fix"] for finding in found["findings"])
    assert "do: start `bothends relay`" in bothends("health", status=1)


def test_config_shows_values_sources_and_slips(bothends: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOTHENDS_INVENTORY_DATABASE_URL", "postgresql://u:secret@h/d")
    monkeypatch.setenv("BOTHENDS_PARTITONS", "3")
    shown = bothends.json("config")
    assert shown["services"]["inventory"]["database_url"] == {
        "value": "postgresql://u:***@h/d", "from": "BOTHENDS_INVENTORY_DATABASE_URL"}
    assert shown["unknown_variables"] == ["BOTHENDS_PARTITONS"]
    assert "secret" not in bothends("config")


def test_dead_letters_listed_shown_and_grouped(bothends: Cli, shelf: Shelf) -> None:
    number = shelf.letter("m1", b"\x83")
    assert [row["key"] for row in bothends.json("dead", "list")] == ["base64:gw=="]
    assert bothends.json("dead", "list", "--consumer", "stock")[0]["id"] == number
    assert bothends.json("dead", "list", "--group", "fingerprint")[0]["count"] == 1
    assert bothends.json("dead", "show", str(number))["body"] == '{"sku":"a"}'
    assert "fingerprint" in bothends("dead", "list")
    assert "ValueError: no" in bothends("dead", "show", str(number))
    bothends("dead", "list", "--group", "owner", status=2)
    bothends("dead", "show", "99", status=2)
    assert "do: " in bothends.err or "dead list" in bothends.err


def test_a_letter_after_redrives_says_what_is_counted_and_what_ended_it(bothends: Cli, shelf: Shelf) -> None:
    number = shelf.letter("m1")
    assert "attempts, the last time" not in bothends("dead", "show", str(number))
    runs = [{"at": f"t{n}", "attempt": 1 + n % 3, "error": "ValueError: no"} for n in range(9)]
    shelf.sql("update {s}.dead_letters set state = 'done', attempts = 3, redrives = 3, history = :history",
              history=json.dumps(runs))
    said = bothends("dead", "show", str(number))
    assert re.search(r"\nstate +done\nended +\S+Z: the run after redrive 3 succeeded\nit died of +handler_error\n", said), said
    assert re.search(r"\nits last error +ValueError: no\n", said)
    assert re.search(r"\nattempts, the last time +3\nfailed runs +9\n", said)
    for state, ended in (("redriven", "redriven, it waits for its run"), ("discarded", "discarded"), ("open", None)):
        shelf.sql("update {s}.dead_letters set state = :state", state=state)
        shown = bothends.json("dead", "show", str(number))["ended"]
        assert shown is None if ended is None else shown.endswith(f": {ended}")


def test_a_dead_letter_is_shown_whichever_database_has_it(
    bothends: Cli, shelf: Shelf, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (project / "shop.py").open("a") as file:
        file.write('\norders = Service("orders")\n')
    monkeypatch.setenv("BOTHENDS_ORDERS_DATABASE_URL", "sqlite:///orders.db")
    bothends("schema", "apply")
    connection = open_store("sqlite:///orders.db").connect()
    other = Shelf(open_store("sqlite:///orders.db"), connection)
    both = other.letter("o1")
    assert shelf.letter("m1") == both
    only = other.letter("o2")
    assert bothends.json("dead", "show", str(only))["message_id"] == "o2"
    assert bothends.json("dead", "show", str(both), "--service", "orders")["message_id"] == "o1"
    bothends("dead", "show", str(both), status=2)
    assert bothends.err == (
        f"error: 2 databases have a dead letter {both}\n  do: add --service (inventory, orders)\n"), bothends.err
    bothends("dead", "show", "99", status=2)
    assert "there is no dead letter 99" in bothends.err
    bothends("dead", "discard", str(only), *CHANGE, status=2)  # a change is never a guess
    assert other.letter_state(only) == "open"
    connection.close()


def test_a_consumer_that_never_ran_has_nothing_to_list(bothends: Cli, shelf: Shelf) -> None:
    assert shelf.sql("select 1 from {s}.consumers") == []
    assert bothends.json("dead", "list", "--consumer", "inventory.stock") == []
    assert bothends("keys", "list", "--consumer", "inventory.stock") == "no keys wait\n"


def test_redrive_counts_first_then_acts(bothends: Cli, shelf: Shelf) -> None:
    for n in range(3):
        shelf.letter(f"m{n}", f"k{n}".encode(), fingerprint="8f31aa")
    select = ("--consumer", "inventory.stock", "--fingerprint", "8f31")
    assert bothends("dead", "redrive", *select, "--dry-run") == "3: 3 ready, 0 overtaken\n"
    assert shelf.audits() == []
    done = bothends.json("dead", "redrive", *select, *CHANGE, "--rate", "1000")
    assert (done["redriven"], done["waiting"], done["refused"]) == (3, 3, [])
    assert len(shelf.audits()) == 3
    assert {by for by, _, _, _ in shelf.audits()} == {"anna"}
    assert bothends.json("dead", "redrive", *select, *CHANGE)["total"] == 0


def test_redrive_needs_a_choice_and_a_yes(bothends: Cli, shelf: Shelf) -> None:
    shelf.letter("m1")
    bothends("dead", "redrive", status=2)
    assert "nothing says which" in bothends.err
    bothends("dead", "redrive", "--consumer", "stock", status=2)
    assert "give --yes" in bothends.err
    assert shelf.audits() == []


def test_redrive_stops_when_too_many_fail_again(bothends: Cli, shelf: Shelf) -> None:
    for n in range(5):
        shelf.letter(f"m{n}", f"k{n}".encode())
    # What a worker does meanwhile, as a trigger: each redrive is dead again at once.
    shelf.sql("create trigger dies_again after update of state on {s}.dead_letters when new.state = 'redriven' "
              "begin update {s}.dead_letters set state = 'open' where id = new.id; end")
    done = bothends.json("dead", "redrive", "--consumer", "stock", "--stop-after-failures", "2", "--rate", "4", "--wait",
                         *CHANGE, status=1)
    assert done["stopped"] is True
    assert 2 <= done["failed_again"] < 5


def test_edit_shows_the_difference(bothends: Cli, shelf: Shelf, project: Path) -> None:
    number = shelf.letter("m1", body=b'{"sku":"a"}')
    (project / "new.json").write_bytes(b'{"sku":"b"}')
    text = bothends("dead", "edit", str(number), "--body", "new.json", "--redrive", *CHANGE)
    assert '-{"sku":"a"}' in text
    assert '+{"sku":"b"}' in text
    assert "redriven" in text
    bothends("dead", "edit", str(number), "--body", "missing.json", *CHANGE, status=2)


def test_edit_opens_the_editor(bothends: Cli, shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    number = shelf.letter("m1", body=b'{"sku":"a"}')
    monkeypatch.setenv("EDITOR", "sed -i s/a\\\"/b\\\"/")
    monkeypatch.delenv("VISUAL", raising=False)
    assert bothends.json("dead", "edit", str(number), *CHANGE)["changed"] is True
    assert bytes(shelf.one("select body from {s}.dead_letters")) == b'{"sku":"b"}'
    monkeypatch.setenv("EDITOR", "false")
    bothends("dead", "edit", str(number), *CHANGE, status=2)
    monkeypatch.delenv("EDITOR")
    bothends("dead", "edit", str(number), *CHANGE, status=2)
    assert "--body" in bothends.err


def test_discard(bothends: Cli, shelf: Shelf) -> None:
    number = shelf.letter("m1")
    assert bothends("dead", "discard", str(number), *CHANGE) == "1 discarded\n"
    assert bothends.json("dead", "discard", str(number), *CHANGE) == {"asked": 1, "discarded": 0}


def test_keys(bothends: Cli, shelf: Shelf, project: Path) -> None:
    shelf.letter("m1")
    shelf.block()
    shelf.parked("m2")
    assert "held behind a dead letter" in bothends("keys", "list")
    [row] = bothends.json("keys", "list", "--consumer", "inventory.stock")
    assert (row["key"], row["state"], row["waiting"]) == ("k1", "held", 1)
    assert bothends.json("keys", "show", "k1", "--consumer", "stock")["waiting"][0]["id"] == "m2"
    assert "m2" in bothends("keys", "show", "k1", "--consumer", "stock")
    assert "goes on" in bothends("keys", "skip", "k1", "--consumer", "inventory.stock", *CHANGE)
    assert "retrying (key held)" in bothends("keys", "list")
    assert bothends.json("keys", "list")[0]["state"] == "parked"
    assert "due now" in bothends("keys", "retry", "base64:azE=", "--consumer", "stock", *CHANGE)
    (project / "body").write_bytes(b"{}")
    assert "new body" in bothends("keys", "replace", "k1", "--consumer", "stock", "--body", "body", *CHANGE)
    assert [verb for _, verb, _, _ in shelf.audits()] == ["keys skip", "keys retry", "keys replace"]


def test_keys_are_never_guessed(bothends: Cli, shelf: Shelf) -> None:
    shelf.block()
    bothends("keys", "skip", "k1", *CHANGE, status=2)
    assert "give --consumer" in bothends.err
    bothends("keys", "skip", "k1", "--consumer", "inventory.stock", "--outbox", *CHANGE, status=2)
    bothends("keys", "skip", "nope", "--consumer", "inventory.stock", *CHANGE, status=2)
    bothends("keys", "skip", "base64:!", "--consumer", "inventory.stock", *CHANGE, status=2)
    assert shelf.audits() == []


def test_the_outbox_has_its_own(bothends: Cli, shelf: Shelf) -> None:
    shelf.held(5, "dead")
    assert bothends.json("dead", "list", "--outbox")[0]["seq"] == 5
    assert bothends.json("keys", "list", "--outbox")[0]["key"] == "k1"
    assert bothends.json("dead", "redrive", "--outbox", *CHANGE) == {"total": 1, "requested": 1}
    assert "was asked for before" in bothends("keys", "retry", "k1", "--outbox", *CHANGE)
    assert bothends.json("dead", "discard", "5", "--outbox", *CHANGE)["discarded"] == 1
    assert "k1" in bothends("keys", "list", "--outbox")
    assert "5" in bothends("dead", "list", "--outbox")


def test_trace(bothends: Cli, shelf: Shelf) -> None:
    [id_] = shelf.outbox(1)
    assert bothends.json("trace", id_)[0]["place"] == "outbox"
    assert "outbox" in bothends("trace", id_)
    assert "nothing is known" in bothends("trace", "nobody")


def test_purge_says_what_is_kept_and_leaves_an_audit_row(bothends: Cli, shelf: Shelf) -> None:
    shelf.consumer()
    shelf.sql("insert into {s}.audit (by, verb, target, at) values ('x', 'y', 'z', 0)")
    assert "kept for ever" in bothends("purge", *CHANGE)  # nothing leaves an embedded log by age
    assert [verb for _, verb, _, _ in shelf.audits()] == ["purge"]
    assert bothends.json("purge", *CHANGE)["kept_s"] == {"inventory.stock": None}


def test_init_makes_a_project_whose_test_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bothends = Cli(tmp_path, capsys)
    assert bothends.json("init", str(tmp_path / "new"))["written"] == ["shop.py", "test_shop.py", "pyproject.toml"]
    (tmp_path / "new" / "shop.py").write_text("mine")
    again = bothends.json("init", str(tmp_path / "new"))
    assert again["kept"] == ["shop.py", "test_shop.py", "pyproject.toml"]
    assert (tmp_path / "new" / "shop.py").read_text() == "mine"
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "pyproject.toml").write_text('[project]\nname = "old"\n')
    assert "wrote" in bothends("init", str(tmp_path / "old"))
    assert (tmp_path / "old" / "pyproject.toml").read_text().count("[project]") == 1


@pytest.mark.parametrize(("arguments", "says"), [
    (["nonsense"], "nonsense"), (["dead"], "Usage"), (["relay", "nosuch"], "no module 'nosuch'"),
    (["relay", "shop:nothing"], "no Service named 'nothing'"), (["work", "--consumers", "nope"], "no consumer 'nope'"),
    (["work", "--service", "nope"], "no service 'nope'"), (["work", "--processes", "0"], "--processes"),
    (["status", "--app", "not a module"], "not a module's name"), (["relay", "--database", "mysql://x"], "postgresql://"),
])
def test_wrong_use_is_2_and_says_why(bothends: Cli, arguments: list[str], says: str) -> None:
    bothends(*arguments, status=2)
    assert says in bothends.err
    assert "Traceback" not in bothends.err


def test_a_broken_application_is_named_without_a_traceback(bothends: Cli, project: Path) -> None:
    (project / "broken.py").write_text("import not_installed_anywhere\n")
    bothends("status", "broken", status=2)
    assert "not_installed_anywhere" in bothends.err
    assert "--debug" in bothends.err
    with pytest.raises(ModuleNotFoundError):
        bothends("--debug", "status", "broken")


def test_an_unreachable_database_is_1(bothends: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOTHENDS_DATABASE_URL", "postgresql://u:secret@127.0.0.1:1/none")
    bothends("dead", "list", status=1)
    assert "secret" not in bothends.err
