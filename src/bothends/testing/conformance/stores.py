"""What every store must do, step by step. Subclass ``StoreConformance`` in a test module and give it a fixture ``store``:
an open store with our schema applied and no rows.

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def store(self): ...

Each test works with two or more connections of its own, as relays and workers do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

from bothends.drafts import Draft, draft
from bothends.errors import DuplicateEventId
from bothends.letters import Block, KeyOf, Letter, pack_headers
from bothends.stores import Store
from bothends.stores.connection import CommitRefused, Connection
from bothends.stores.inboxes import Entry
from bothends.stores.steps import Sql, Steps, run
from bothends.testing.clock import clock_forward, table

__all__ = ["StoreConformance"]

T = TypeVar("T")

LEASE_S = 4.0
KEY = KeyOf("orders", True, b"17")
OTHER = KeyOf("orders", True, b"18")


def hash_of(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()


def letter(id: str, *, queue: KeyOf = KEY, body: bytes | None = b"{}", **more: Any) -> Letter:
    """One message as it was delivered."""
    values: dict[str, Any] = {
        "queue": queue, "source": "shop", "id": id, "type": "order.created", "hash": hash_of(body or b""), "partition": 0,
        "offset": int(hash_of(id.encode()).hex()[:6], 16), "timestamp_ms": 1_700_000_000_000,
        "record_key": queue.key if queue.keyed else None, "body": body, "headers": pack_headers([("ce_id", id.encode())]),
    }
    return Letter(**(values | more))


class Work:
    """One connection, and step functions run on it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.connection: Connection = store.connect(name="conformance")

    def do(self, steps: Steps[T]) -> T:
        return run(steps, self.connection)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.connection.begin()
        try:
            yield
            self.connection.commit()
        finally:
            self.connection.rollback()

    def rows(self, text: str, **parameters: Any) -> list[tuple[Any, ...]]:
        def steps() -> Steps[list[tuple[Any, ...]]]:
            return (yield Sql(text, parameters)).rows

        return self.do(steps())

    def count(self, name: str) -> int:
        return int(self.rows(f"select count(*) from {table(self.store, name)}")[0][0])


class StoreConformance:
    """The suite."""

    @pytest.fixture
    def workers(self, store: Store) -> Iterator[Callable[[], Work]]:
        """Makes connections; all are closed at the end."""
        made: list[Work] = []

        def make() -> Work:
            made.append(Work(store))
            return made[-1]

        yield make
        for work in made:
            work.connection.close()

    @pytest.fixture
    def work(self, workers: Callable[[], Work]) -> Work:
        return workers()

    @pytest.fixture
    def consumer(self, work: Work) -> int:
        with work.transaction():
            registered = work.do(work.store.inbox.register(
                name="shop.stock", service="shop", owner="team", start_at="earliest", topics=["orders"],
            ))
        return int(registered.id)

    # Helpers

    @contextmanager
    def admitting(self, work: Work, consumer: int, *names: str) -> Iterator[set[tuple[str, str]]]:
        """A work transaction: admission first, the gate last; gives what was fresh."""
        entries = [Entry("shop", name, hash_of(b"{}")) for name in names]
        with work.transaction():
            admitted = work.do(work.store.inbox.admit(consumer, entries, lock_timeout_ms=50, lease_s=LEASE_S))
            yield set(admitted.fresh)
            assert work.do(work.store.inbox.gate(None, admitted.transaction, last=True))

    def process(self, work: Work, consumer: int, *names: str) -> set[tuple[str, str]]:
        """A whole work transaction with nothing in it."""
        with self.admitting(work, consumer, *names) as fresh:
            return fresh

    def park(self, work: Work, consumer: int, *letters: Letter, delay_s: float = 0.0, state: str = "retrying") -> None:
        """Admits and parks; keys that don't wait yet begin to."""
        queues = dict.fromkeys(one.queue for one in letters)
        with self.admitting(work, consumer, *(one.id for one in letters)):
            work.do(work.store.inbox.park(consumer, letters, [Block(queue, state, delay_s) for queue in queues]))

    def state(self, work: Work, consumer: int, id: str) -> str | None:
        known = work.do(work.store.inbox.known(consumer, [("shop", id)]))
        return known[("shop", id)].state if known else None

    def lease(self, work: Work, consumer: int, drainer: str = "d1", most: int = 10) -> list[Any]:
        with work.transaction():
            return list(work.do(work.store.inbox.lease_due(consumer, drainer, lease_s=LEASE_S, most=most)))

    def forward(self, work: Work, seconds: float) -> None:
        with work.transaction():
            work.do(clock_forward(work.store, seconds))

    # Outbox

    @staticmethod
    def made(body: object = b"x", **more: Any) -> Draft:
        arguments: dict[str, Any] = {"source": "shop", "default_topic": "orders", "type": "t", "key": "17"}
        return draft(body, **(arguments | more))

    def outbox(self, work: Work, columns: str) -> list[tuple[Any, ...]]:
        return work.rows(f"select {columns} from {table(work.store, 'outbox')} order by seq")

    def test_events_stand_in_the_order_of_add(self, work: Work) -> None:
        with work.transaction():
            work.do(work.store.outbox.add([self.made(id=None, key=str(n)) for n in range(5)]))
            work.do(work.store.outbox.add([self.made(key="last")]))
        keys = [bytes(key) for (key,) in self.outbox(work, "key")]
        assert keys == [b"0", b"1", b"2", b"3", b"4", b"last"]

    def test_many_events_are_one_batch_in_order(self, work: Work) -> None:
        with work.transaction():
            work.do(work.store.outbox.add([self.made(key=str(n)) for n in range(1_203)]))
        assert [int(bytes(key)) for (key,) in self.outbox(work, "key")] == list(range(1_203))

    def test_a_rolled_back_event_is_not_there(self, work: Work) -> None:
        work.connection.begin()
        work.do(work.store.outbox.add([self.made()]))
        work.connection.rollback()
        assert work.count("outbox") == 0

    def test_bytes_keys_and_nothing_keep_their_differences(self, work: Work) -> None:
        from bothends.events import Tombstone

        drafts = [
            self.made(b""), self.made(b"null"), self.made(bytes(range(256)), key=""), self.made(b"x", key=None),
            draft(Tombstone("t", key="k"), source="shop", default_topic="orders"),
        ]
        with work.transaction():
            work.do(work.store.outbox.add(drafts))
        rows = [(key if key is None else bytes(key), body if body is None else bytes(body))
                for key, body in self.outbox(work, "key, body")]
        assert rows == [(b"17", b""), (b"17", b"null"), (b"", bytes(range(256))), (None, b"x"), (b"k", None)]

    def test_the_same_id_twice_is_refused_and_the_transaction_goes_on(self, work: Work) -> None:
        with work.transaction():
            work.do(work.store.outbox.add([self.made(id="a")]))
            with pytest.raises(DuplicateEventId, match="'a'"):
                work.do(work.store.outbox.add([self.made(id="a")]))
            work.do(work.store.outbox.add([self.made(id="b")]))
            work.do(work.store.outbox.add([self.made(id="a", source="other")]))
        assert [id for (id,) in self.outbox(work, "id")] == ["a", "b", "a"]

    def test_the_lane_depends_on_the_key_alone(self, work: Work) -> None:
        with work.transaction():
            work.do(work.store.outbox.add([self.made(key=key) for key in ("a", "é", "a", "é")]))
        lanes = [lane for (lane,) in self.outbox(work, "lane")]
        assert lanes[:2] == lanes[2:]
        assert all(0 <= lane < 64 for lane in lanes)

    # Inbox

    def test_a_consumer_keeps_its_number_and_its_first_start(self, work: Work, consumer: int) -> None:
        with work.transaction():
            again = work.do(work.store.inbox.register(
                name="shop.stock", service="shop", owner="other", start_at="latest", topics=["orders"],
            ))
        assert (again.id, again.start_at, again.first) == (consumer, "earliest", False)

    def test_a_renamed_consumer_takes_its_inbox_along(self, work: Work, consumer: int) -> None:
        with work.transaction():
            assert work.do(work.store.inbox.rename("shop.stock", "shop.shelf"))
            again = work.do(work.store.inbox.register(
                name="shop.shelf", service="shop", owner="team", start_at="latest", topics=["orders"],
            ))
            assert not work.do(work.store.inbox.rename("shop.stock", "shop.shelf"))
        assert (again.id, again.start_at) == (consumer, "earliest")

    def test_a_message_is_fresh_once(self, work: Work, consumer: int) -> None:
        assert self.process(work, consumer, "m2", "m1") == {("shop", "m1"), ("shop", "m2")}
        assert self.process(work, consumer, "m1", "m3") == {("shop", "m3")}
        known = work.do(work.store.inbox.known(consumer, [("shop", "m1"), ("shop", "m9")]))
        assert set(known) == {("shop", "m1")}
        assert known[("shop", "m1")].state == "p"
        assert known[("shop", "m1")].hash == hash_of(b"{}")

    def test_two_consumers_and_two_sources_do_not_meet(self, work: Work, consumer: int) -> None:
        with work.transaction():
            other = work.do(work.store.inbox.register(
                name="shop.mail", service="shop", owner="", start_at="earliest", topics=["orders"],
            ))
        self.process(work, consumer, "m1")
        assert self.process(work, other.id, "m1") == {("shop", "m1")}
        with work.transaction():
            entries = [Entry("elsewhere", "m1", hash_of(b"{}"))]
            admitted = work.do(work.store.inbox.admit(consumer, entries, lock_timeout_ms=50, lease_s=LEASE_S))
            assert admitted.fresh == {("elsewhere", "m1")}
            work.do(work.store.inbox.gate(None, admitted.transaction, last=True))

    def test_a_rolled_back_message_is_fresh_again(self, work: Work, consumer: int) -> None:
        work.connection.begin()
        entries = [Entry("shop", "m1", hash_of(b"{}"))]
        assert work.do(work.store.inbox.admit(consumer, entries, lock_timeout_ms=50, lease_s=LEASE_S)).fresh
        work.connection.rollback()
        assert self.process(work, consumer, "m1") == {("shop", "m1")}

    def test_the_gate_knows_the_transaction_and_the_mark(self, work: Work, consumer: int) -> None:
        inbox = work.store.inbox
        mark = work.do(inbox.mark(consumer, "w1", '[["shop","m1"]]'))
        with work.transaction():
            admitted = work.do(inbox.admit(consumer, [Entry("shop", "m1", b"h")], lock_timeout_ms=50, lease_s=LEASE_S))
            assert work.do(inbox.gate(mark, admitted.transaction, last=True))
        assert work.count("runs") == 0
        work.connection.begin()
        admitted = work.do(inbox.admit(consumer, [Entry("shop", "m2", b"h")], lock_timeout_ms=50, lease_s=LEASE_S))
        assert not work.do(inbox.gate(mark, admitted.transaction, last=True)), "the mark is gone: somebody took it"
        work.connection.rollback()

    def test_marks_of_others_are_found_open_until_they_are_closed(self, work: Work, consumer: int) -> None:
        inbox = work.store.inbox
        mark = work.do(inbox.mark(consumer, "w1", '[["shop","m1"]]', alone=True, crashes=1))
        (found,) = work.do(inbox.open_runs(consumer, "w2"))
        assert (found.id, found.worker, found.alone, found.crashes) == (mark, "w1", True, 1)
        assert work.do(inbox.open_runs(consumer, "w1")) == []
        work.do(inbox.void("w1", [mark]))
        assert work.do(inbox.open_runs(consumer, "w2")) == []
        work.do(inbox.unmark([mark]))
        assert work.count("runs") == 0

    # Parking

    def test_a_parked_message_makes_its_key_wait_and_no_other(self, work: Work, consumer: int) -> None:
        self.park(work, consumer, letter("m1"), delay_s=30)
        assert self.state(work, consumer, "m1") == "k"
        with work.transaction():
            assert work.do(work.store.inbox.blocked(consumer, [KEY, OTHER])) == {KEY: "retrying"}

    def test_a_key_of_bytes_and_a_message_without_key_are_two_queues(self, work: Work, consumer: int) -> None:
        keyed, alone = KeyOf("orders", True, b"m1"), KeyOf("orders", False, b"m1")
        self.park(work, consumer, letter("m1", queue=alone))
        with work.transaction():
            assert work.do(work.store.inbox.blocked(consumer, [keyed, alone])) == {alone: "retrying"}

    def test_a_queue_stands_in_the_order_of_parking_byte_for_byte(self, work: Work, consumer: int) -> None:
        letters = [
            letter("m3", body=bytes(range(256)), attempts=2, history='[{"attempt":1}]', reason="transient"),
            letter("m1", body=None), letter("m2", body=b"", record_key=None),
        ]
        self.park(work, consumer, letters[0])
        self.park(work, consumer, *letters[1:])
        heads = work.do(work.store.inbox.heads(consumer, KEY, 10))
        assert [head.position for head in heads] == sorted(head.position for head in heads)
        for head, given in zip(heads, letters, strict=True):
            same = ("queue", "source", "id", "type", "hash", "partition", "offset", "timestamp_ms", "record_key", "body",
                    "headers", "attempts", "history", "reason")
            assert [getattr(head, name) for name in same] == [getattr(given, name) for name in same]
            assert head.record() == given.record()
        assert len(work.do(work.store.inbox.heads(consumer, KEY, 2))) == 2

    def test_a_key_is_leased_when_it_is_due_and_to_one_drainer(
        self, work: Work, workers: Callable[[], Work], consumer: int
    ) -> None:
        self.park(work, consumer, letter("m1"), delay_s=30)
        assert self.lease(work, consumer) == []
        self.forward(work, 31)
        (held,) = self.lease(work, consumer)
        assert held.key == KEY
        assert self.lease(workers(), consumer, "d2") == []

    def test_an_expired_lease_is_taken_over_and_fences_its_former_holder(
        self, work: Work, workers: Callable[[], Work], consumer: int
    ) -> None:
        self.park(work, consumer, letter("m1"))
        (first,) = self.lease(work, consumer)
        other = workers()
        self.forward(other, LEASE_S + 1)
        (second,) = self.lease(other, consumer, "d2")
        assert second.epoch > first.epoch
        with work.transaction():
            assert not work.do(work.store.inbox.hold(consumer, first))
            assert work.do(work.store.inbox.hold(consumer, second))

    def test_a_renewed_lease_stays(self, work: Work, workers: Callable[[], Work], consumer: int) -> None:
        self.park(work, consumer, letter("m1"))
        (held,) = self.lease(work, consumer)
        self.forward(work, LEASE_S - 1)
        work.do(work.store.inbox.renew(consumer, [held], lease_s=LEASE_S))
        self.forward(work, LEASE_S - 1)
        assert self.lease(workers(), consumer, "d2") == []

    def test_a_lease_that_is_given_up_is_free_at_once(self, work: Work, workers: Callable[[], Work], consumer: int) -> None:
        self.park(work, consumer, letter("m1"))
        (held,) = self.lease(work, consumer)
        work.do(work.store.inbox.give_up(consumer, held))
        assert len(self.lease(workers(), consumer, "d2")) == 1

    def test_draining_takes_the_head_and_frees_the_key_only_when_empty(self, work: Work, consumer: int) -> None:
        inbox = work.store.inbox
        self.park(work, consumer, letter("m1"), letter("m2"))
        (held,) = self.lease(work, consumer)
        for id, free in (("m1", False), ("m2", True)):
            (head, *_) = work.do(inbox.heads(consumer, KEY, 1))
            assert head.id == id
            with work.transaction():
                assert work.do(inbox.take(consumer, [("shop", id)])) == {("shop", id)}
                assert work.do(inbox.hold(consumer, held))
                work.do(inbox.remove(consumer, KEY, [head.position], succeeded=[head.position]))
                assert work.do(inbox.free(consumer, KEY)) is free
            assert self.state(work, consumer, id) == "p"
        with work.transaction():
            assert work.do(inbox.blocked(consumer, [KEY])) == {}
        assert (work.count("parked"), work.count("blocked_keys")) == (0, 0)

    def test_a_processed_message_is_not_taken_again(self, work: Work, consumer: int) -> None:
        self.process(work, consumer, "m1")
        with work.transaction():
            assert work.do(work.store.inbox.take(consumer, [("shop", "m1"), ("shop", "m9")])) == set()

    def test_a_failed_head_is_written_down_and_due_later(self, work: Work, consumer: int) -> None:
        inbox = work.store.inbox
        self.park(work, consumer, letter("m1"), letter("m2"))
        (held,) = self.lease(work, consumer)
        (head,) = work.do(inbox.heads(consumer, KEY, 1))
        with work.transaction():
            assert work.do(inbox.hold(consumer, held))
            work.do(inbox.postpone(consumer, head._replace(attempts=2, reason="transient", error="E", history="[1]")))
            work.do(inbox.reset(consumer, held, state="retrying", delay_s=8))
        (after, behind) = work.do(inbox.heads(consumer, KEY, 2))
        assert (after.id, after.attempts, after.reason, after.error, after.history) == ("m1", 2, "transient", "E", "[1]")
        assert (behind.id, behind.attempts) == ("m2", 0)
        assert self.lease(work, consumer) == []
        self.forward(work, 9)
        assert len(self.lease(work, consumer)) == 1

    def test_a_held_key_is_never_due(self, work: Work, consumer: int) -> None:
        self.park(work, consumer, letter("m1"), state="held")
        self.forward(work, 1_000_000)
        assert self.lease(work, consumer) == []

    def test_a_new_worker_wakes_keys_that_wait_for_a_schema(self, work: Work, consumer: int) -> None:
        self.park(work, consumer, letter("m1"), state="schema", delay_s=86_400)
        self.park(work, consumer, letter("m2", queue=OTHER), state="held")
        work.do(work.store.inbox.wake_schema(consumer))
        assert [held.key for held in self.lease(work, consumer)] == [KEY]

    def test_leases_are_bounded(self, work: Work, consumer: int) -> None:
        self.park(work, consumer, *(letter(f"m{n}", queue=KeyOf("orders", True, b"%d" % n)) for n in range(5)))
        assert len(self.lease(work, consumer, most=3)) == 3
        assert len(self.lease(work, consumer, most=3)) == 2

    # Dead letters

    def test_a_dead_letter_keeps_everything(self, work: Work, consumer: int) -> None:
        inbox = work.store.inbox
        given = letter("m1", body=b"\x00\xff", attempts=3, reason="permanent", error="E", fingerprint="f", history="[1]")
        with self.admitting(work, consumer, "m1"):
            work.do(inbox.bury(consumer, "team", [given]))
        assert self.state(work, consumer, "m1") == "d"
        columns = "owner, state, reason, fingerprint, error, source, message_id, type, topic, attempts, history"
        rows = work.rows(f"select {columns} from {table(work.store, 'dead_letters')}")
        assert rows == [("team", "open", "permanent", "f", "E", "shop", "m1", "order.created", "orders", 3, "[1]")]
        ((body, headers),) = work.rows(f"select body, headers from {table(work.store, 'dead_letters')}")
        assert (bytes(body), bytes(headers)) == (b"\x00\xff", given.headers)

    def test_an_undecodable_record_is_buried_once_per_place(self, work: Work, consumer: int) -> None:
        strange = letter("x", source="", offset=5, reason="undecodable")._replace(id="")
        for _ in range(2):
            with work.transaction():
                work.do(work.store.inbox.bury(consumer, "", [strange]))
        with work.transaction():
            work.do(work.store.inbox.bury(consumer, "", [strange._replace(offset=6)]))
        assert work.count("dead_letters") == 2

    def test_a_conflict_leaves_what_was_processed_alone(self, work: Work, consumer: int) -> None:
        self.process(work, consumer, "m1")
        for _ in range(2):
            with work.transaction():
                work.do(work.store.inbox.bury(consumer, "", [letter("m1", body=b"other", reason="conflict")]))
        assert self.state(work, consumer, "m1") == "p"
        assert work.count("dead_letters") == 1

    def test_a_redriven_letter_that_dies_again_is_the_same_letter(self, work: Work, consumer: int) -> None:
        inbox = work.store.inbox
        with self.admitting(work, consumer, "m1"):
            work.do(inbox.bury(consumer, "", [letter("m1", reason="permanent", attempts=5)]))
        ((number,),) = work.rows(f"select id from {table(work.store, 'dead_letters')}")
        with work.transaction():
            work.do(inbox.bury(consumer, "", [letter("m1", reason="again", attempts=1, redrives=1, dead_letter=number)]))
        rows = work.rows(f"select id, state, reason, attempts, redrives from {table(work.store, 'dead_letters')}")
        assert rows == [(number, "open", "again", 1, 1)]

    def test_a_redrive_that_succeeds_closes_its_letter(self, work: Work, consumer: int) -> None:
        inbox = work.store.inbox
        with self.admitting(work, consumer, "m1"):
            work.do(inbox.bury(consumer, "", [letter("m1", reason="permanent")]))
        ((number,),) = work.rows(f"select id from {table(work.store, 'dead_letters')}")
        with work.transaction():
            work.do(inbox.park(consumer, [letter("m1", dead_letter=number, redrives=1)], [Block(KEY, "retrying", 0.0)]))
        assert self.state(work, consumer, "m1") == "k"
        (held,) = self.lease(work, consumer)
        (head,) = work.do(inbox.heads(consumer, KEY, 1))
        with work.transaction():
            work.do(inbox.take(consumer, [("shop", "m1")]))
            work.do(inbox.hold(consumer, held))
            work.do(inbox.remove(consumer, KEY, [head.position], succeeded=[head.position]))
            work.do(inbox.free(consumer, KEY))
        assert work.rows(f"select state from {table(work.store, 'dead_letters')}") == [("done",)]

    # Connections

    def test_a_commit_without_a_transaction_is_refused(self, work: Work) -> None:
        with pytest.raises(CommitRefused):
            work.connection.commit()
