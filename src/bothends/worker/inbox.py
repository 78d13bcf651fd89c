"""The inbox engine: one batch of messages through one transaction, or through as few as its failures allow.

    mark ─▶ begin ─▶ admit (inbox rows) ─▶ look up keys that wait ─▶ handlers ─▶ park, bury, emit ─▶ gate ─▶ commit

The whole batch runs in one transaction without savepoints. When a handler fails, the transaction is rolled back, the failed
run is charged to its message alone, and the messages before it are run again, with the failed one parked (or dead)
instead of run; what came after it follows in a transaction of its own. So a message that did not fail sees attempt 1. A batch
handler gets several messages in one call; where that fails, each is run in a call of its own, until the failure has an owner.
"""

from __future__ import annotations

from collections.abc import Sequence

from bothends.core.consuming import Failure, describe_error, fingerprint_of_reason
from bothends.core.states import KeyState, Outcome
from bothends.errors import StoreUnavailable
from bothends.letters import Block, KeyOf
from bothends.stores.inboxes import Entry
from bothends.worker.acts import Acts, Do, Released, Superseded, begin_with
from bothends.worker.deliveries import Delivery, Verdict, problem_failure
from bothends.worker.engine import Book, CallFailed, Contended, Plan, RunFailed, Unattributed, Work

__all__ = ["Batch"]


class Batch(Work):
    """Deliveries fresh from the broker, in the order of their partitions. ``acts()`` fills in their outcomes; it may be
    driven again after ``StoreUnavailable``, on a new connection, and goes on where it was."""

    def __init__(self, plan: Plan, deliveries: Sequence[Delivery]) -> None:
        super().__init__(plan)
        self.deliveries = deliveries
        self.waiting_partitions: set[tuple[str, int]] = set()
        """Partitions that wait for a parked message (``mode="block"``)."""
        self._up_to: Delivery | None = None
        self._alone = False

    def successor(self, culprits: Sequence[Delivery], error: BaseException) -> Batch:
        """What is left, for another thread: this one is stuck in a run of ``culprits``. One alone is charged."""
        left = Batch(self.plan, self.deliveries)
        left.run, left.waiting_partitions = self.run, self.waiting_partitions
        left._up_to = culprits[0] if len(culprits) == 1 else None
        left._blame(culprits, error)
        return left

    def acts(self) -> Acts[None]:
        self._cut_off = self.plan.watch()
        try:
            while part := self._next_part():
                yield from self._part(part)
            yield from self._ours(self._unmark())
        except Released:
            yield Do.ROLLBACK
            yield from self._unmark()
            raise
        except StoreUnavailable:
            yield Do.ROLLBACK
            raise

    def _next_part(self) -> list[Delivery]:
        """The next messages that go through one transaction."""
        part: list[Delivery] = []
        for delivery in self.deliveries:
            if delivery.outcome is None:
                delivery.outcome = self._without_transaction(delivery)
            if delivery.outcome is not None:
                continue
            alone = delivery.effects or self._most == 1 or self.plan.suspects.get(delivery.name) is not None
            if alone and part:
                break
            part.append(delivery)
            if alone or delivery is self._up_to or len(part) == self._most:
                break
        return part

    def _without_transaction(self, delivery: Delivery) -> Outcome | None:
        failure = delivery.failure
        if self.plan.retry.mode == "topic" and failure is not None and failure.fate == "retry":
            return Outcome.FORWARDED
        if delivery.record.origin[:2] in self.waiting_partitions:
            return Outcome.RELEASED
        return None

    def _part(self, part: list[Delivery]) -> Acts[None]:
        suspect = self._alone = self.plan.suspects.get(part[0].name) is not None
        if suspect:
            self._charge_crashes(part[0])
            yield from self._ours(self._unmark())
            yield Do.QUIET
        try:
            yield from self._ours(self._mark_part(part, alone=suspect))
            if part[0].effects and part[0].failure is None:
                yield from self._effects(part[0])
            else:
                yield from self._transaction(part)
            self._up_to = None
        except RunFailed as failed:
            yield Do.ROLLBACK
            self._charge(failed.delivery, failed.error)
            self._up_to = failed.delivery
        except CallFailed as failed_together:
            yield Do.ROLLBACK
            self._part_company(failed_together.deliveries, failed_together.error)
        except Contended as contended:
            yield Do.ROLLBACK
            yield from self._contention(part, contended)
        except Unattributed as unattributed:
            yield Do.ROLLBACK
            self._unattributed(part, unattributed.error)
        if suspect and part[0].outcome is not None:
            yield from self._ours(self.inbox.unmark(self.plan.suspects.settled(part[0].name)))
            yield Do.LOUD

    def _mark_part(self, part: list[Delivery], *, alone: bool) -> Acts[None]:
        left = part if alone else [d for d in self.deliveries if d.outcome is None]
        if any(d.verdict is Verdict.RUN and d.failure is None for d in part):
            yield from self._mark(left, alone=alone)

    def _last(self, part: Sequence[Delivery]) -> bool:
        """Whether the mark may go with this transaction: nothing of it is left to run."""
        within = set(map(id, part))
        return self._alone or not any(d.outcome is None and id(d) not in within for d in self.deliveries)

    def _transaction(self, part: list[Delivery]) -> Acts[None]:
        yield Do.FENCE
        book = Book()
        transaction, fresh, waiting = yield from self._ours(self._enter(part, book))
        settled = {id(delivery) for delivery, _ in book.outcomes}
        runs = [d for d in part if id(d) not in settled and not self._settled_without_a_run(d, waiting, book)]
        for group in self._groups(runs):
            called = yield from self._call(group)
            book.calls += 1
            book.drafts += called.drafts
            book.outcomes += [(delivery, Outcome.PROCESSED) for delivery in group]
        yield from self._write(book)
        if fresh:
            yield from self._commit(transaction, last=self._last(part))
        else:
            # Only copies. After a COMMIT whose answer was lost these are our own messages, and the mark went with them.
            yield from self._commit_copies()
        self._settle(book)

    def _settle(self, book: Book) -> None:
        block = self.plan.retry.mode == "block"
        for delivery, outcome in book.outcomes:
            delivery.outcome = outcome
            if block and outcome is Outcome.PARKED:
                self.waiting_partitions.add(delivery.record.origin[:2])

    def _enter(self, part: Sequence[Delivery], book: Book) -> Acts[tuple[str, set[tuple[str, str]], dict[KeyOf, str]]]:
        """Begins, admits, and looks up the keys that wait: the transaction's id, the names that are new, those keys.
        Copies of messages that the inbox knows are settled in ``book``."""
        plan = self.plan
        readable = [d for d in part if d.message is not None and d.verdict is not Verdict.IGNORE]
        first: dict[tuple[str, str], Delivery] = {}
        for delivery in readable:
            first.setdefault(delivery.name, delivery)
        entries = [Entry(*name, d.hash) for name, d in first.items()] if plan.consumer.inbox else []
        admitted = yield from begin_with(
            self.inbox.admit(plan.number, entries, lock_timeout_ms=self._lock_timeout(part), lease_s=plan.lease_s),
        )
        fresh: set[tuple[str, str]] = set(admitted.fresh) if plan.consumer.inbox else set(first)
        hashes = {name: d.hash for name, d in first.items() if name in fresh}
        if len(fresh) < len(first):
            known = yield from self.inbox.known(plan.number, [name for name in first if name not in fresh])
            hashes |= {name: row.hash for name, row in known.items()}
        self._settle_copies(part, first, fresh, hashes, book)
        keys = {d.queue for name, d in first.items() if d.queue.keyed and name in fresh}
        waiting: dict[KeyOf, str] = {}
        if admitted.waiting is not None:
            keys &= admitted.waiting
        if keys:
            waiting = yield from self.inbox.blocked(plan.number, sorted(keys))
        return admitted.transaction, fresh, waiting

    def _settle_copies(
        self, part: Sequence[Delivery], first: dict[tuple[str, str], Delivery], fresh: set[tuple[str, str]],
        hashes: dict[tuple[str, str], bytes], book: Book,
    ) -> None:
        for delivery in part:
            name = delivery.name
            if delivery.verdict is Verdict.IGNORE:
                book.outcomes.append((delivery, Outcome.IGNORED))
            elif not self.plan.consumer.inbox or delivery.message is None:
                continue  # no duplicate check
            elif name not in fresh or first[name] is not delivery:
                if hashes.get(name, delivery.hash) == delivery.hash:
                    book.outcomes.append((delivery, Outcome.DUPLICATE))
                else:
                    book.outcomes.append((delivery, Outcome.CONFLICT))
                    book.letters.append((True, delivery.to_letter(
                        reason="conflict", error="the inbox has this id with another content",
                        fingerprint=fingerprint_of_reason("conflict", delivery.message.type),
                    )))

    def _settled_without_a_run(self, delivery: Delivery, waiting: dict[KeyOf, str], book: Book) -> bool:
        """A message that is new: parked behind its key, or given up; False where it is to be run. Asked of all before the
        first one runs, in their order: what fails makes those behind it wait."""
        if delivery.message is not None and delivery.queue in waiting:
            self._park(delivery, book)
        elif delivery.verdict is Verdict.NEWER:
            self._park_newer(delivery, waiting, book)
        elif delivery.verdict is Verdict.BROKEN:
            hold = self.plan.retry.then == "hold" and delivery.queue.keyed and delivery.message is not None
            self._fail(delivery, problem_failure(delivery, hold=hold), waiting, book)
        elif delivery.failure is not None:
            self._fail(delivery, delivery.failure, waiting, book)
        else:
            return False
        return True

    def _park(self, delivery: Delivery, book: Book, *, reason: str = "behind", error: str = "") -> None:
        book.outcomes.append((delivery, Outcome.PARKED))
        book.letters.append((False, delivery.to_letter(reason=reason, error=error, fingerprint="")))

    def _park_newer(self, delivery: Delivery, waiting: dict[KeyOf, str], book: Book) -> None:
        waiting[delivery.queue] = KeyState.SCHEMA.value
        patience = self.plan.consumer.schema_patience.total_seconds()
        book.blocks.append(Block(delivery.queue, KeyState.SCHEMA.value, patience))
        self._park(delivery, book, reason="schema", error=describe_error(delivery.problem or Exception()))

    def _fail(self, delivery: Delivery, failure: Failure, waiting: dict[KeyOf, str], book: Book) -> None:
        letter = delivery.to_letter(reason=failure.reason, error=failure.error, fingerprint=failure.fingerprint)
        if failure.fate == "retry":
            waiting[delivery.queue] = KeyState.RETRYING.value
            book.blocks.append(Block(delivery.queue, KeyState.RETRYING.value, failure.delay_s))
            book.outcomes.append((delivery, Outcome.PARKED))
            book.letters.append((False, letter))
            return
        book.outcomes.append((delivery, Outcome.DEAD))
        book.letters.append((True, letter))
        if failure.hold and delivery.queue.keyed:
            waiting[delivery.queue] = KeyState.HELD.value
            book.blocks.append(Block(delivery.queue, KeyState.HELD.value, 0.0))

    def _effects(self, delivery: Delivery) -> Acts[None]:
        """A handler without a transaction until ``ctx.begin()``. What is known already is found before it is called."""
        number = self.plan.number
        known = waiting = False
        if self.plan.consumer.inbox:
            known = bool((yield from self._ours(self.inbox.known(number, [delivery.name]))))
        if delivery.queue.keyed:
            waiting = bool((yield from self._ours(self.inbox.blocked(number, [delivery.queue]))))
        if known or waiting:
            yield from self._settle_only(delivery)
            return
        entered: list[str] = []

        def enter(one: Delivery) -> Acts[None]:
            yield Do.FENCE
            transaction, fresh, blocked = yield from self._ours(self._enter([one], Book()))
            if one.name not in fresh or blocked:
                raise Superseded
            entered.append(transaction)

        try:
            called = yield from self._call([delivery], enter)
            if not called.begun:
                yield from enter(delivery)
        except Superseded:
            yield Do.ROLLBACK
            yield from self._settle_only(delivery)
            return
        yield from self._write(Book(drafts=called.drafts))
        yield from self._commit(entered[-1], last=self._last([delivery]))
        delivery.outcome = Outcome.PROCESSED

    def _settle_only(self, delivery: Delivery) -> Acts[None]:
        """Settles a copy that must not run now: a duplicate, a conflict, or behind its key."""
        yield Do.FENCE
        book = Book()
        transaction, fresh, waiting = yield from self._ours(self._enter([delivery], book))
        if delivery.name in fresh and delivery.queue not in waiting:
            raise Contended(Superseded("the key was freed in this moment"))
        if delivery.name in fresh:
            self._park(delivery, book)
        yield from self._write(book)
        if fresh:
            yield from self._commit(transaction, last=self._last([delivery]))
        else:
            yield from self._commit_copies()
        self._settle(book)
