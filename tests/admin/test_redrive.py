"""Redrive: once, in its old place, with its id; never what was processed already."""

import json
import threading

import pytest

from bothends.admin.acts import Act, NotThere, Refused, in_transaction
from bothends.admin.dead import discard, edit, show
from bothends.admin.redrive import decision, outcomes, redrive
from bothends.core.hashing import content_hash
from bothends.errors import ConfigError
from bothends.stores import Store
from tests.admin.shelf import Shelf

ANNA = Act("anna", "fixed in 4.2")


def test_a_redriven_letter_waits_in_its_old_place(shelf: Shelf) -> None:
    number = shelf.letter("m1")
    shelf.block(state="held")
    shelf.parked("m2")
    assert shelf.run(redrive(shelf.admin, number, ANNA)) == "redriven"
    assert shelf.waiting() == ["m1", "m2"]
    assert shelf.key_state() == ("retrying", True)
    assert shelf.inbox_state("m1") == "k"
    assert shelf.letter_state(number) == "redriven"
    row = shelf.sql("select attempts, crashes, redrives, dead_letter, body from {s}.parked where id = 'm1'")[0]
    assert tuple(row[:4]) == (0, 0, 1, number)
    assert bytes(row[4]) == b'{"sku":"a"}'
    assert shelf.audits() == [("anna", "dead redrive", f"dead letter {number}", "fixed in 4.2")]


def test_a_key_that_flows_is_blocked_so_that_nothing_overtakes(shelf: Shelf) -> None:
    number = shelf.letter("m1")
    shelf.run(redrive(shelf.admin, number, ANNA))
    assert shelf.key_state() == ("retrying", True)


def test_twice_is_once_and_leaves_one_audit_row(shelf: Shelf) -> None:
    number = shelf.letter("m1")
    assert shelf.run(redrive(shelf.admin, number, ANNA)) == "redriven"
    assert shelf.run(redrive(shelf.admin, number, ANNA)) == "already_waiting"
    assert shelf.waiting() == ["m1"]
    assert len(shelf.audits()) == 1


def test_two_operators_at_once_redrive_once(shelf: Shelf, store: Store) -> None:
    number = shelf.letter("m1")
    answers: list[str] = []
    begin = threading.Barrier(2)

    def operator() -> None:
        mine = store.connect()
        begin.wait(10)
        answers.append(in_transaction(mine, lambda: redrive(store.admin, number, ANNA)))
        mine.close()

    threads = [threading.Thread(target=operator) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(answers) == ["already_waiting", "redriven"]
    assert shelf.waiting() == ["m1"]


def test_what_was_processed_meanwhile_is_recognised_as_done(shelf: Shelf) -> None:
    number = shelf.letter("m1", inbox="p")
    assert shelf.run(redrive(shelf.admin, number, ANNA)) == "already_done"
    assert shelf.letter_state(number) == "done"
    assert shelf.waiting() == []


def test_a_conflict_is_refused_and_says_what_to_do(shelf: Shelf) -> None:
    number = shelf.letter("m1", inbox="p", reason="conflict")
    with pytest.raises(Refused, match="Discard it"):
        shelf.run(redrive(shelf.admin, number, ANNA))
    assert shelf.letter_state(number) == "open"


def test_what_could_not_be_decoded_waits_alone(shelf: Shelf) -> None:
    number = shelf.letter("", None, reason="undecodable", inbox=None, offset=41)
    assert shelf.run(redrive(shelf.admin, number, ANNA)) == "redriven"
    assert shelf.waiting(b"orders.events/0/41") == [""]


def test_a_message_without_inbox_row_is_redriven_too(shelf: Shelf) -> None:
    number = shelf.letter("m1", inbox=None)
    assert shelf.run(redrive(shelf.admin, number, ANNA)) == "redriven"
    assert shelf.waiting() == ["m1"]


def test_a_discarded_letter_can_be_redriven_by_its_number(shelf: Shelf) -> None:
    number = shelf.letter("m1")
    shelf.run(discard(shelf.admin, number, ANNA))
    assert shelf.run(redrive(shelf.admin, number, ANNA)) == "redriven"
    assert shelf.inbox_state("m1") == "k"


def test_no_such_letter(shelf: Shelf) -> None:
    with pytest.raises(NotThere, match="dead list"):
        shelf.run(redrive(shelf.admin, 4711, ANNA))


def test_an_edited_redrive_keeps_its_id_and_both_hashes(shelf: Shelf) -> None:
    number = shelf.letter("m1", body=b'{"sku":"a"}')
    assert shelf.run(edit(shelf.admin, number, b'{"sku":"b"}', ANNA)) is True
    assert shelf.run(edit(shelf.admin, number, b'{"sku":"b"}', ANNA)) is False
    shelf.run(redrive(shelf.admin, number, ANNA))
    [(id_, body, hash_)] = shelf.sql("select id, body, hash from {s}.parked")
    assert (id_, bytes(body), bytes(hash_)) == ("m1", b'{"sku":"b"}', content_hash(b'{"sku":"a"}'))
    shown = shelf.run(show(shelf.admin, number))
    assert shown["hash"] == content_hash(b'{"sku":"a"}').hex()
    assert shown["edited_hash"] == content_hash(b'{"sku":"b"}').hex()
    assert [act["verb"] for act in shown["acts"]] == ["dead redrive", "dead edit"]
    with pytest.raises(Refused, match="redriven"):
        shelf.run(edit(shelf.admin, number, b"{}", ANNA))


@pytest.mark.parametrize(("given", "state", "result"), [
    ("charge=repeat", "not_sent", None), ("charge=not-done", "not_sent", None),
    ('charge=done:{"id":"r1"}', "completed", b'{"id":"r1"}'),
])
def test_an_unknown_effect_needs_a_decision(shelf: Shelf, given: str, state: str, result: bytes | None) -> None:
    number = shelf.letter("m1", reason="outcome_unknown")
    shelf.sql(
        "insert into {s}.effects (consumer, source, message_id, name, state, key) "
        "values (:consumer, 'orders', 'm1', 'charge', 'unknown', 'charge-1')", consumer=shelf.consumer())
    with pytest.raises(Refused, match="charge=done:JSON"):
        shelf.run(redrive(shelf.admin, number, ANNA))
    made = decision(given)
    shelf.run(redrive(shelf.admin, number, ANNA, {made.name: made}))
    [row] = shelf.sql("select state, decided_by, result from {s}.effects")
    assert row[0] == state
    assert row[1] == made.verdict
    assert (None if row[2] is None else bytes(row[2])) == result
    detail = json.loads(shelf.one("select detail from {s}.audit"))
    assert detail["effects"] == {"charge": made.verdict}


def test_a_decision_on_an_effect_that_is_none(shelf: Shelf) -> None:
    number = shelf.letter("m1")
    with pytest.raises(Refused, match="no open effect 'charge'"):
        shelf.run(redrive(shelf.admin, number, ANNA, {"charge": decision("charge=repeat")}))
    assert shelf.letter_state(number) == "open"
    assert shelf.waiting() == []


@pytest.mark.parametrize("text", ["charge", "=repeat", "charge=maybe", "charge=done", "charge=done:{", "charge=repeat:1"])
def test_decisions_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="--effect"):
        decision(text)


def test_outcomes_counts_states(shelf: Shelf) -> None:
    numbers = [shelf.letter(f"m{n}") for n in range(3)]
    shelf.run(redrive(shelf.admin, numbers[0], ANNA))
    assert shelf.run(outcomes(shelf.admin, numbers)) == {"redriven": 1, "open": 2}
