"""What every store must do, step by step. Subclass ``StoreConformance`` in a test module and give it a fixture ``store``:
an open store with our schema applied and no rows.

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def store(self): ...

Each test works with connections of its own, as relays and workers do.
"""

from __future__ import annotations

from typing import Any

import pytest

from bothends.core.lanes import LANES, lane
from bothends.core.relaying import Stream
from bothends.drafts import Draft, draft
from bothends.errors import DuplicateEventId
from bothends.events import Tombstone
from bothends.relay.records import KEY
from bothends.stores.connection import CommitRefused
from bothends.stores.inboxes import Entry, MarkGone
from bothends.testing.clock import table
from bothends.testing.conformance.bench import LEASE_S, Work, hash_of
from bothends.testing.conformance.queues import QueueConformance

__all__ = ["StoreConformance"]


class StoreConformance(QueueConformance):
    """The suite: outbox, inbox, parking, dead letters, connections."""

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
        keys = ["a", "é", "a", "é", ""]
        with work.transaction():
            work.do(work.store.outbox.add([self.made(key=key) for key in keys]))
        found: list[tuple[int, bytes]] = []
        for number in range(LANES):
            page = work.do(work.store.relay.rows.fetch([Stream(1 << number, 0, "")], limit=10))
            found += [(number, bytes(row[KEY])) for row in page.rows]
        assert sorted(found) == sorted((lane(key.encode()), key.encode()) for key in keys)

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
            work.do(inbox.gate(mark, admitted.transaction, last=True))
        assert work.count("runs") == 0
        work.connection.begin()
        admitted = work.do(inbox.admit(consumer, [Entry("shop", "m2", b"h")], lock_timeout_ms=50, lease_s=LEASE_S))
        with pytest.raises(MarkGone):  # somebody took it
            work.do(inbox.gate(mark, admitted.transaction, last=True))
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

    # Connections

    def test_a_commit_without_a_transaction_is_refused(self, work: Work) -> None:
        with pytest.raises(CommitRefused):
            work.connection.commit()
