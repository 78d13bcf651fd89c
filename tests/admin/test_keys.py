"""Keys that wait: retry, skip and replace their heads; each once, in order, with an audit row."""

import json

import pytest

from bothends.admin import keys, outbox
from bothends.admin.acts import Act, NotThere, Refused
from bothends.core.hashing import content_hash
from tests.admin.shelf import Shelf

ANNA = Act("anna", "test order")
STOCK = "inventory.stock"


def fail_head(shelf: Shelf) -> None:
    """As a drainer leaves a key whose head failed."""
    shelf.block(state="retrying")


def test_list_says_what_waits_and_in_which_state(shelf: Shelf) -> None:
    shelf.block(b"k1", "held")
    shelf.block(b"\xff\x00", "retrying")
    shelf.parked("m2", b"k1")
    shelf.parked("m3", b"k1")
    rows = {row["key"]: row for row in shelf.run(keys.keys(shelf.admin, STOCK))}
    assert rows["k1"]["state"] == "held"
    assert rows["k1"]["waiting"] == 2
    assert rows["k1"]["next_at"] is None
    assert rows["base64:/wA="]["state"] == "parked"
    assert rows["base64:/wA="]["next_at"].endswith("Z")
    assert [row["key"] for row in shelf.run(keys.keys(shelf.admin, STOCK, state="held"))] == ["k1"]
    assert len(shelf.run(keys.keys(shelf.admin, STOCK, limit=1))) == 1


def test_show_has_the_queue_in_order_and_what_holds_it(shelf: Shelf) -> None:
    letter = shelf.letter("m1")
    shelf.block()
    shelf.parked("m2")
    shelf.parked("m3")
    shown = shelf.run(keys.show(shelf.admin, STOCK, b"k1"))
    assert [w["id"] for w in shown["waiting"]] == ["m2", "m3"]
    assert shown["dead_letters"] == [letter]


def test_retry_of_a_retrying_key_is_due_now(shelf: Shelf) -> None:
    fail_head(shelf)
    shelf.parked("m1")
    assert shelf.key_state() == ("retrying", False)
    assert shelf.run(keys.retry(shelf.admin, STOCK, b"k1", ANNA)) == "due now"
    assert shelf.key_state() == ("retrying", True)


def test_retry_of_a_held_key_redrives_what_holds_it(shelf: Shelf) -> None:
    letter = shelf.letter("m1")
    shelf.block()
    shelf.parked("m2")
    assert f"dead letter {letter} redriven" in shelf.run(keys.retry(shelf.admin, STOCK, b"k1", ANNA))
    assert shelf.waiting() == ["m1", "m2"]
    assert shelf.key_state() == ("retrying", True)
    assert [verb for _, verb, _, _ in shelf.audits()] == ["dead redrive", "keys retry"]


def test_skip_moves_the_failed_head_to_the_dead_letters(shelf: Shelf) -> None:
    fail_head(shelf)
    shelf.parked("m1")
    shelf.parked("m2")
    shelf.sql("update {s}.parked set attempts = 0 where id = 'm2'")
    shelf.run(keys.skip(shelf.admin, STOCK, b"k1", ANNA))
    assert shelf.waiting() == ["m2"]
    assert shelf.inbox_state("m1") == "d"
    assert shelf.inbox_state("m2") == "k"
    [(reason, owner, message, state)] = shelf.sql("select reason, owner, message_id, state from {s}.dead_letters")
    assert (reason, owner, message, state) == ("skipped", "team-stock", "m1", "open")
    assert shelf.key_state() == ("retrying", True)
    assert shelf.audits() == [("anna", "keys skip", "key k1 of inventory.stock", "test order")]


def test_skipping_twice_skips_once(shelf: Shelf) -> None:
    fail_head(shelf)
    shelf.parked("m1")
    shelf.parked("m2")
    shelf.sql("update {s}.parked set attempts = 0 where id = 'm2'")
    shelf.run(keys.skip(shelf.admin, STOCK, b"k1", ANNA))
    assert "nothing was skipped" in shelf.run(keys.skip(shelf.admin, STOCK, b"k1", ANNA))
    assert shelf.waiting() == ["m2"]
    assert len(shelf.audits()) == 1


def test_skip_of_a_held_key_lets_it_go_on_without_its_dead_letter(shelf: Shelf) -> None:
    letter = shelf.letter("m1")
    shelf.block()
    shelf.parked("m2")
    shelf.run(keys.skip(shelf.admin, STOCK, b"k1", ANNA))
    assert shelf.letter_state(letter) == "open"
    assert shelf.waiting() == ["m2"]
    assert shelf.key_state() == ("retrying", True)


def test_skip_of_a_redrive_opens_its_dead_letter_again(shelf: Shelf) -> None:
    letter = shelf.letter("m0", b"other")
    shelf.sql("update {s}.dead_letters set state = 'redriven' where id = :id", id=letter)
    fail_head(shelf)
    shelf.parked("m1", dead_letter=letter)
    shelf.run(keys.skip(shelf.admin, STOCK, b"k1", ANNA))
    assert shelf.letter_state(letter) == "open"
    assert shelf.one("select count(*) from {s}.dead_letters") == 1


def test_replace_keeps_the_id_and_audits_both_hashes(shelf: Shelf) -> None:
    fail_head(shelf)
    shelf.parked("m1")
    shelf.run(keys.replace(shelf.admin, STOCK, b"k1", b'{"a":1}', ANNA))
    [(id_, body)] = shelf.sql("select id, body from {s}.parked")
    assert (id_, bytes(body)) == ("m1", b'{"a":1}')
    detail = json.loads(shelf.one("select detail from {s}.audit"))
    assert detail["hash"] == content_hash(b"{}").hex()
    assert detail["edited_hash"] == content_hash(b'{"a":1}').hex()


def test_replace_of_what_holds_a_key_edits_and_redrives_it(shelf: Shelf) -> None:
    letter = shelf.letter("m1")
    shelf.block()
    shelf.run(keys.replace(shelf.admin, STOCK, b"k1", b"[]", ANNA))
    assert shelf.letter_state(letter) == "redriven"
    assert bytes(shelf.one("select body from {s}.parked where id = 'm1'")) == b"[]"


def test_replace_where_nothing_waits(shelf: Shelf) -> None:
    shelf.block()
    with pytest.raises(Refused, match="keys retry"):
        shelf.run(keys.replace(shelf.admin, STOCK, b"k1", b"{}", ANNA))


def test_unknown_keys_and_consumers_are_named(shelf: Shelf) -> None:
    shelf.consumer()
    with pytest.raises(NotThere, match=r"no key 'nope' waits at inventory\.stock"):
        shelf.run(keys.skip(shelf.admin, STOCK, b"nope", ANNA))
    with pytest.raises(NotThere, match=r"inventory\.stock"):
        shelf.run(keys.keys(shelf.admin, "inventory.stok"))


def test_a_key_of_several_topics_needs_its_topic(shelf: Shelf) -> None:
    shelf.block()
    shelf.sql(
        "insert into {s}.blocked_keys (consumer, topic, keyed, key, next_at) values (:c, 'more', :keyed, :key, {now})",
        c=shelf.consumer(), keyed=True, key=b"k1")
    with pytest.raises(Refused, match=r"more, orders\.events"):
        shelf.run(keys.retry(shelf.admin, STOCK, b"k1", ANNA))
    shelf.run(keys.retry(shelf.admin, STOCK, b"k1", ANNA, topic="orders.events"))


def test_the_outbox_gets_requests_that_a_relay_carries_out(shelf: Shelf) -> None:
    shelf.held(5, "dead")
    shelf.held(6, "behind")
    assert [row["seq"] for row in shelf.run(outbox.dead(shelf.admin))] == [5]
    assert [row["key"] for row in shelf.run(outbox.keys(shelf.admin))] == ["k1"]
    assert shelf.run(outbox.request(shelf.admin, 5, "retry", ANNA)) is True
    assert shelf.run(outbox.request(shelf.admin, 5, "retry", ANNA)) is False
    assert shelf.one("select owner_request from {s}.held where seq = 5") == "retry"
    assert "asked for" in shelf.run(outbox.request_key(shelf.admin, b"k1", "skip", ANNA))
    with pytest.raises(Refused, match="behind"):
        shelf.run(outbox.request(shelf.admin, 6, "retry", ANNA))
    with pytest.raises(NotThere, match="dead list --outbox"):
        shelf.run(outbox.request(shelf.admin, 99, "retry", ANNA))
    assert [verb for _, verb, _, _ in shelf.audits()] == ["outbox retry", "outbox skip"]


def test_a_dead_event_of_the_outbox_is_replaced(shelf: Shelf) -> None:
    shelf.held(5, "dead")
    shelf.run(outbox.replace(shelf.admin, b"k1", b"[1]", ANNA))
    [(body, request)] = shelf.sql("select body, owner_request from {s}.held")
    assert (bytes(body), request) == (b"[1]", "retry")


def test_an_event_that_is_still_tried_is_not_replaced(shelf: Shelf) -> None:
    shelf.held(5, "retrying")
    with pytest.raises(Refused, match="once it is dead"):
        shelf.run(outbox.replace(shelf.admin, b"k1", b"[1]", ANNA))
    with pytest.raises(NotThere, match="keys list --outbox"):
        shelf.run(outbox.request_key(shelf.admin, b"nope", "retry", ANNA))
