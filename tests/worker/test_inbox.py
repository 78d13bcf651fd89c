"""One batch through the engine: every outcome, on both stores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bothends import Permanent, Retry
from bothends.ids import derived_id
from bothends.message import Record
from tests.worker.conftest import Booked, Desk, Placed


def test_effect_and_inbox_row_commit_together(desk: Desk) -> None:
    desk.declare(lambda event, ctx: desk.note(ctx))
    assert desk.deliver(desk.record("1"), desk.record("2", "o2")) == ["processed", "processed"]
    assert desk.effects() == ["1", "2"]
    assert desk.rows("id, state", "inbox") == [("1", "p"), ("2", "p")]
    assert desk.rows("id", "runs") == []


def test_a_copy_is_a_duplicate_also_in_one_batch(desk: Desk) -> None:
    desk.declare(lambda event, ctx: desk.note(ctx))
    one = desk.record("1")
    assert desk.deliver(one, one) == ["processed", "duplicate"]
    assert desk.deliver(one) == ["duplicate"]
    assert desk.effects() == ["1"]


def test_equal_content_in_another_order_is_a_duplicate_and_other_content_a_conflict(desk: Desk) -> None:
    desk.declare(lambda event, ctx: desk.note(ctx))
    first = desk.record("1", body=b'{"order":"o1","amount":2}')
    reordered = desk.record("1", body=b'{"amount":2, "order":"o1"}')
    other = desk.record("1", body=b'{"order":"o1","amount":9}')
    assert desk.deliver(first, reordered, other) == ["processed", "duplicate", "conflict"]
    assert desk.deliver(other) == ["conflict"]  # written down once
    assert desk.rows("reason, message_id, state", "dead_letters") == [("conflict", "1", "open")]
    assert desk.deliver(desk.record("2")) == ["processed"]  # a conflict never holds its key
    assert desk.rows("id, state", "inbox") == [("1", "p"), ("2", "p")]


def test_one_id_of_two_sources_is_two_messages(desk: Desk) -> None:
    desk.declare(lambda event, ctx: desk.note(ctx))
    assert desk.deliver(desk.record("1", source="a"), desk.record("1", source="b")) == ["processed"] * 2


def test_a_type_without_handler_is_ignored_without_a_row(desk: Desk) -> None:
    desk.declare(lambda event, ctx: desk.note(ctx))
    assert desk.deliver(desk.record("1", type="other.thing"), desk.record("2")) == ["ignored", "processed"]
    assert desk.deliver(desk.record("3", type="other.thing")) == ["ignored"]
    assert [id for (id,) in desk.rows("id", "inbox")] == ["2"]


def test_what_cannot_be_decoded_is_dead_with_its_raw_bytes_once(desk: Desk) -> None:
    desk.declare(lambda event, ctx: desk.note(ctx))
    bare = Record(desk.record("1").origin, b"\x83", b"\xff\xfe", [("bad", b"\xc3\x28")], 5)
    truncated = desk.record("2", body=b'{"order":')
    assert desk.deliver(bare, truncated, desk.record("3", "o3")) == ["dead", "dead", "processed"]
    assert desk.deliver(bare) == ["dead"]
    found = desk.rows("message_id, body, record_key, attempts", "dead_letters")
    assert [(m, bytes(b), bytes(k), a) for m, b, k, a in found] == [
        ("", b"\xff\xfe", b"\x83", 0), ("2", b'{"order":', b"o1", 0),
    ]


def test_a_failure_costs_the_others_nothing(desk: Desk) -> None:
    seen: list[tuple[str, int]] = []

    def handler(event: Placed, ctx: Any) -> None:
        seen.append((ctx.message.id, ctx.attempt))
        desk.note(ctx)
        if event.order == "bad":
            raise ValueError("no")

    desk.declare(handler, retry=Retry(attempts=3))
    records = [desk.record("1", "a"), desk.record("2", "bad"), desk.record("3", "c"), desk.record("4", "bad")]
    assert desk.deliver(*records) == ["processed", "parked", "processed", "parked"]
    assert desk.attempts() == [("1", 1), ("3", 1)]
    assert seen == [("1", 1), ("2", 1), ("1", 1), ("3", 1)]  # the failed one is not run again, nor what waits behind it
    assert desk.rows("id, attempts, reason", "parked") == [("2", 1, "handler_error"), ("4", 0, "behind")]
    assert desk.rows("state", "blocked_keys") == [("retrying",)]


@pytest.mark.parametrize(("attempts", "runs"), [(1, 1), (2, 2), (3, 3)])
def test_attempts_counts_runs_in_all(desk: Desk, attempts: int, runs: int) -> None:
    seen: list[int] = []

    def handler(event: Placed, ctx: Any) -> None:
        seen.append(ctx.attempt)
        raise ValueError

    desk.declare(handler, retry=Retry(attempts=attempts))
    desk.deliver(desk.record("1"))
    for _ in range(5):
        desk.drain()
    assert seen == list(range(1, runs + 1))
    assert desk.rows("message_id, reason, attempts", "dead_letters") == [("1", "handler_error", attempts)]
    assert desk.rows("state", "inbox") == [("d",)]
    assert desk.rows("state", "blocked_keys") == []


def test_many_events_are_emitted_by_the_outbox_too(desk: Desk) -> None:
    ids: list[str] = []

    def handler(event: Placed, ctx: Any) -> None:
        ids.extend(desk.service.outbox.add_many(ctx, [Booked("a"), (Booked("b"), {"topic": "elsewhere"})]))

    desk.declare(handler)
    assert desk.deliver(desk.record("1")) == ["processed"]
    assert ids == [derived_id("orders", "1", desk.consumer.name, ordinal) for ordinal in range(2)]
    found = desk.sql(f"select id, topic from {desk.table('outbox')} order by seq")
    assert [row for row in found if row[0] in ids] == [(ids[0], "bookings.events"), (ids[1], "elsewhere")]


def test_without_end_and_success_on_the_last_attempt(desk: Desk) -> None:
    def handler(event: Placed, ctx: Any) -> None:
        if ctx.attempt < 8:
            raise ValueError
        desk.note(ctx)

    desk.declare(handler, retry=Retry(attempts=None))
    assert desk.deliver(desk.record("1")) == ["parked"]
    for _ in range(6):
        assert desk.drain() == [("1", "parked")]
    assert desk.drain() == [("1", "processed")]
    assert desk.attempts() == [("1", 8)]
    assert desk.rows("state", "blocked_keys") == desk.rows("id", "parked") == desk.rows("id", "runs") == []


def test_a_key_waits_in_order_and_the_others_go_on(desk: Desk) -> None:
    broken = True

    def handler(event: Placed, ctx: Any) -> None:
        if broken and ctx.message.id == "1":
            raise ValueError
        desk.note(ctx)

    desk.declare(handler)
    assert desk.deliver(desk.record("1", "k"), desk.record("2", "k"), desk.record("3", "l")) == [
        "parked", "parked", "processed",
    ]
    assert desk.deliver(desk.record("4", "k"), desk.record("5", None)) == ["parked", "processed"]
    broken = False
    assert desk.drain() == [("1", "processed"), ("2", "processed"), ("4", "processed")]
    assert desk.deliver(desk.record("6", "k")) == ["processed"]
    assert desk.effects() == ["3", "5", "1", "2", "4", "6"]


def test_messages_without_a_key_wait_alone_and_the_empty_key_is_a_key(desk: Desk) -> None:
    def handler(event: Placed, ctx: Any) -> None:
        if ctx.message.id in ("1", "3"):
            raise ValueError
        desk.note(ctx)

    desk.declare(handler)
    body = b'{"order":"x"}'
    outcomes = desk.deliver(
        desk.record("1", None, body=body), desk.record("2", None, body=body), desk.record("3", "", body=body),
        desk.record("4", "", body=body),
    )
    assert outcomes == ["parked", "processed", "parked", "parked"]


def test_permanent_is_dead_at_once_and_its_key_passes_or_holds(desk: Desk) -> None:
    def handler(event: Placed, ctx: Any) -> None:
        if ctx.message.id == "1":
            raise Permanent("2 wanted", reason="out_of_stock")
        desk.note(ctx)

    desk.declare(handler)
    assert desk.deliver(desk.record("1"), desk.record("2")) == ["dead", "processed"]
    assert desk.rows("reason, attempts, owner", "dead_letters") == [("out_of_stock", 1, "")]
    held = Desk(desk.store)
    held.declare(lambda e, ctx: handler(e, ctx), retry=Retry(then="hold"), owner="team-stock")
    assert held.deliver(held.record("1"), held.record("2"), held.record("3", "other")) == ["dead", "parked", "processed"]
    assert held.drain() == []  # only an operator lets a held key go
    assert held.rows("state", "blocked_keys") == [("held",)]
    held.close()


def test_emitted_events_commit_with_the_effect_and_derive_their_ids(desk: Desk) -> None:
    def handler(event: Placed, ctx: Any) -> None:
        ctx.emit(Booked(event.order))
        ctx.emit(Booked(event.order), topic="copies.events")
        if event.order == "bad":
            raise ValueError
        desk.note(ctx)

    desk.declare(handler)
    desk.deliver(desk.record("1", "a", headers=[("ce_correlationid", b"corr")]), desk.record("2", "bad"))
    found = desk.sql(
        f"select id, topic, attributes from {desk.table('outbox')} where source = :source order by seq",
        source=desk.service.name,
    )
    assert [topic for _, topic, _ in found] == ["bookings.events", "copies.events"]
    assert all('"causationid":"1"' in a.replace(" ", "") and "corr" in a for _, _, a in found)
    assert [id for id, _, _ in found] == [derived_id("orders", "1", desk.consumer.name, n) for n in (0, 1)]


def test_a_newer_version_parks_its_key_at_no_cost_until_a_worker_knows_it(desk: Desk) -> None:
    desk.declare(lambda event, ctx: desk.note(ctx))
    assert desk.deliver(desk.record("1", version=3), desk.record("2"), desk.record("3", "other")) == [
        "parked", "parked", "processed",
    ]
    assert desk.rows("state", "blocked_keys") == [("schema",)]
    assert desk.rows("id, attempts, reason", "parked") == [("1", 0, "schema"), ("2", 0, "behind")]
    assert desk.drain(forward_s=10) == []
    desk.run(desk.store.inbox.wake_schema(desk.plan.number))
    assert desk.drain(forward_s=10) == [("1", "parked")]  # it still does not know
    assert desk.rows("state", "blocked_keys") == [("schema",)]
    assert desk.drain(forward_s=25 * 3600) == [("1", "dead"), ("2", "processed")]
    assert desk.rows("reason, attempts", "dead_letters") == [("schema", 0)]


def test_without_an_inbox_every_copy_runs(desk: Desk) -> None:
    desk.declare(lambda event, ctx: desk.note(ctx), inbox=False)
    one = desk.record("1")
    assert desk.deliver(one, one) == ["processed", "processed"]
    assert desk.deliver(one) == ["processed"]
    assert desk.rows("id", "inbox") == []


def test_at_most_once_runs_nothing_again(desk: Desk) -> None:
    def handler(event: Placed, ctx: Any) -> None:
        raise ValueError

    desk.declare(handler, at_most_once=True)
    assert desk.deliver(desk.record("1")) == ["dead"]
    assert desk.drain() == []


@pytest.mark.parametrize("bodies", [[None, b"", b"null", b"{}"]])
def test_tombstone_empty_null_and_object_are_four_things(desk: Desk, bodies: list[bytes | None]) -> None:
    seen: list[bytes | None] = []
    desk.declare(lambda event, ctx: seen.append(ctx.message.body))
    records = []
    for n, body in enumerate(bodies):
        record = desk.record(str(n), f"k{n}")
        records.append(replace(record, value=body))
    assert desk.deliver(*records) == ["processed", "dead", "dead", "dead"]
    assert seen == [None]
    kept = [None if b is None else bytes(b) for (b,) in desk.rows("body", "dead_letters", "id")]
    assert kept == [b"", b"null", b"{}"]
