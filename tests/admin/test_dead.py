"""Dead letters listed, grouped, shown, discarded."""

import pytest

from bothends.admin.acts import Act, Refused
from bothends.admin.dead import Filter, discard, groups, letters, show
from tests.admin.shelf import Shelf

ANNA = Act("anna")


def ids(shelf: Shelf, wanted: Filter, **more: int) -> list[str]:
    return [letter.message_id for letter in shelf.run(letters(shelf.admin, wanted, **more))]


def test_filters_narrow_together(shelf: Shelf) -> None:
    first = shelf.letter("m1", fingerprint="aaaa1", age_s=100)
    shelf.letter("m2", fingerprint="aaaa2", reason="schema")
    shelf.letter("m3", fingerprint="bbbb1", consumer="inventory.audit")
    assert ids(shelf, Filter()) == ["m1", "m2", "m3"]
    assert ids(shelf, Filter(consumer="inventory.stock")) == ["m1", "m2"]
    assert ids(shelf, Filter(fingerprint="aaaa")) == ["m1", "m2"]
    assert ids(shelf, Filter(fingerprint="aaaa", reason="schema")) == ["m2"]
    assert ids(shelf, Filter(older_than_s=50)) == ["m1"]
    assert ids(shelf, Filter(ids=[first, 999])) == ["m1"]
    assert ids(shelf, Filter(), limit=2) == ["m1", "m2"]
    assert ids(shelf, Filter(), after=first) == ["m2", "m3"]
    assert ids(shelf, Filter(fingerprint="%")) == []


def test_a_filter_that_names_nothing_is_not_narrow() -> None:
    assert not Filter().narrow()
    assert Filter(reason="schema").narrow()
    assert Filter(older_than_s=1).narrow()


def test_groups_count_by_fingerprint(shelf: Shelf) -> None:
    for n in range(3):
        shelf.letter(f"a{n}", fingerprint="aaaa")
    example = shelf.letter("b", fingerprint="bbbb", reason="schema")
    found = shelf.run(groups(shelf.admin))
    assert [(g["fingerprint"], g["count"], g["reason"], g["owner"]) for g in found] == [
        ("aaaa", 3, "handler_error", "team-stock"), ("bbbb", 1, "schema", "team-stock")]
    assert found[1]["example"] == example
    assert found[0]["error"] == "ValueError: no"
    assert shelf.run(groups(shelf.admin, "inventory.stock", limit=1)) == found[:1]


def test_show_has_bytes_headers_and_history(shelf: Shelf) -> None:
    number = shelf.letter("m1", b"\x83", body=b"\xc3\x28")
    shown = shelf.run(show(shelf.admin, number))
    assert shown["body"] == "base64:wyg="
    assert shown["key"] == "base64:gw=="
    assert shown["headers"] == [["ce_id", "m1"]]
    assert shown["history"] == []
    assert shown["edited_hash"] is None


def test_a_tombstone_differs_from_an_empty_body_and_from_null(shelf: Shelf) -> None:
    bodies = [None, b"", b"null"]
    numbers = [shelf.letter(f"m{n}", body=body) for n, body in enumerate(bodies)]
    assert [shelf.run(show(shelf.admin, number))["body"] for number in numbers] == [None, "", "null"]


def test_discard_closes_the_letter_and_lets_its_key_go_on(shelf: Shelf) -> None:
    number = shelf.letter("m1")
    shelf.block()
    shelf.parked("m2")
    assert shelf.run(discard(shelf.admin, number, ANNA)) is True
    assert shelf.run(discard(shelf.admin, number, ANNA)) is False
    assert shelf.letter_state(number) == "discarded"
    assert shelf.inbox_state("m1") == "x"
    assert shelf.key_state() == ("retrying", True)
    assert shelf.audits() == [("anna", "dead discard", f"dead letter {number}", "")]


def test_a_key_stays_held_while_another_letter_holds_it(shelf: Shelf) -> None:
    first, second = shelf.letter("m1"), shelf.letter("m2")
    shelf.block()
    shelf.run(discard(shelf.admin, first, ANNA))
    assert shelf.key_state() == ("held", False)
    shelf.run(discard(shelf.admin, second, ANNA))
    assert shelf.key_state() == ("retrying", True)


def test_what_waits_again_is_not_discarded(shelf: Shelf) -> None:
    number = shelf.letter("m1")
    shelf.sql("update {s}.dead_letters set state = 'redriven'")
    with pytest.raises(Refused, match="redriven"):
        shelf.run(discard(shelf.admin, number, ANNA))
