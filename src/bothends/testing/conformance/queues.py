"""What every store must do with messages that wait and messages that are dead. Part of ``StoreConformance``."""

from __future__ import annotations

from collections.abc import Callable

from bothends.letters import Block, KeyOf
from bothends.testing.clock import table
from bothends.testing.conformance.bench import KEY, LEASE_S, OTHER, Bench, Work, letter

__all__ = ["QueueConformance"]


class QueueConformance(Bench):
    """Parking, draining, dead letters."""

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
