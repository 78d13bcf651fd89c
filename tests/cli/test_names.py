"""What an operator names: the names that the tools print are understood, and what does not exist is refused."""

import pytest

from tests.admin.shelf import Shelf
from tests.cli.conftest import Cli

CHANGE = ("--by", "anna", "--reason", "test", "--yes")
PREFIXED = "ncpsy.inventory.stock"


@pytest.fixture
def prefixed(bothends: Cli, shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """An environment with a prefix, and one dead letter and a held key of its consumer."""
    monkeypatch.setenv("BOTHENDS_GROUP_PREFIX", "ncpsy.")
    shelf.consumer(PREFIXED)
    shelf.sql("update {s}.consumers set service = 'inventory'")
    shelf.letter("m1", consumer=PREFIXED)
    shelf.block(consumer=PREFIXED)
    return bothends


@pytest.mark.parametrize("name", [PREFIXED, "inventory.stock", "stock"])
def test_with_a_prefix_the_printed_name_is_understood_everywhere(prefixed: Cli, name: str) -> None:
    assert [row["consumer"] for row in prefixed.json("consumers", "list")] == [PREFIXED]
    assert prefixed.json("dead", "list", "--consumer", name)[0]["consumer"] == PREFIXED
    assert prefixed.json("dead", "list", "--group", "fingerprint", "--consumer", name)[0]["count"] == 1
    assert prefixed.json("keys", "list", "--consumer", name)[0]["key"] == "k1"
    assert prefixed.json("keys", "show", "k1", "--consumer", name)["state"] == "held"
    assert prefixed.json("consumers", "pause", name, *CHANGE) == {"consumer": PREFIXED, "paused": True, "changed": True}
    assert prefixed.json("consumers", "resume", name, *CHANGE)["changed"] is True
    assert prefixed.json("dead", "redrive", "--consumer", name, *CHANGE)["redriven"] == 1


def test_what_health_advises_can_be_typed(prefixed: Cli) -> None:
    fixes = [finding["fix"] for finding in prefixed.json("health", status=1)["findings"]]
    assert f"`bothends dead list --group fingerprint --consumer {PREFIXED}`" in fixes
    for fix in fixes:
        prefixed(*fix.strip("`").split()[1:])


def test_a_prefix_may_look_like_a_service(bothends: Cli, shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOTHENDS_GROUP_PREFIX", "inventory.")
    shelf.letter("m1", consumer="inventory.inventory.stock")
    for name in ("inventory.inventory.stock", "inventory.stock", "stock"):
        assert len(bothends.json("dead", "list", "--consumer", name)) == 1


def test_a_consumer_that_the_code_lost_is_known_by_its_rows(
    bothends: Cli, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.letter("m1", consumer="inventory.gone")
    assert len(bothends.json("dead", "list", "--consumer", "inventory.gone")) == 1
    monkeypatch.setenv("BOTHENDS_GROUP_PREFIX", "eu-")
    bothends("dead", "list", "--consumer", "inventory.gone", status=2)
    shelf.letter("m2", b"k2", consumer="eu-inventory.gone")
    for name in ("inventory.gone", "eu-inventory.gone"):
        assert [row["message_id"] for row in bothends.json("dead", "list", "--consumer", name)] == ["m2"]


@pytest.mark.parametrize("name", ["store.mial", "inventory.nope", "nope"])
@pytest.mark.parametrize("command", [
    ["dead", "list"], ["dead", "list", "--group", "fingerprint"], ["keys", "list"], ["keys", "show", "k1"],
    ["dead", "redrive", *CHANGE], ["dead", "redrive", "--dry-run"], ["keys", "retry", "k1", *CHANGE],
])
def test_a_mistyped_consumer_is_refused(bothends: Cli, shelf: Shelf, command: list[str], name: str) -> None:
    shelf.letter("m1")
    bothends(*command, "--consumer", name, status=2)
    assert f"has no consumer '{name}'" in bothends.err
    assert "do: write one of: inventory.stock" in bothends.err
    assert bothends.out == ""
    assert shelf.audits() == []


def test_pausing_a_mistyped_consumer_is_refused_the_same_way(bothends: Cli, shelf: Shelf) -> None:
    bothends("consumers", "pause", "inventory.nope", *CHANGE, status=2)
    assert "do: write one of: inventory.stock" in bothends.err


def test_a_number_that_is_no_dead_letter_is_refused_before_anything_is_done(bothends: Cli, shelf: Shelf) -> None:
    number = shelf.letter("m1")
    for more in (CHANGE, ("--dry-run",)):
        bothends("dead", "redrive", str(number), "99", *more, status=2)
        assert "there is no dead letter 99" in bothends.err
        assert "do: `bothends dead list` shows them" in bothends.err
    assert shelf.letter_state(number) == "open"
    assert bothends.json("dead", "redrive", str(number), *CHANGE)["redriven"] == 1
    assert bothends.json("dead", "redrive", str(number), *CHANGE)["redriven"] == 0  # twice does it once


def test_a_number_of_another_consumer_is_refused(bothends: Cli, shelf: Shelf) -> None:
    number = shelf.letter("m1", consumer="inventory.audit")
    bothends("dead", "redrive", str(number), "--consumer", "stock", *CHANGE, status=2)
    assert f"dead letter {number} is not of inventory.stock" in bothends.err
    assert shelf.audits() == []


def test_a_number_that_is_not_dead_in_the_outbox_is_refused(bothends: Cli, shelf: Shelf) -> None:
    shelf.held(5, "dead")
    shelf.held(6, "place", key=b"k2")
    for number in ("6", "99"):
        bothends("dead", "redrive", "5", number, "--outbox", *CHANGE, status=2)
        assert f"no event {number} is dead in the outbox" in bothends.err
        assert "do: `bothends dead list --outbox`" in bothends.err
    assert shelf.audits() == []
    assert bothends.json("dead", "redrive", "5", "5", "--outbox", *CHANGE) == {"total": 1, "requested": 1}
