"""Parking: the drainer of one key that waits.

It has a lease with an epoch on the key, and runs the key's messages by position, the head alone, what waited behind it in
batches. At the end of each transaction it locks the key's row and checks the epoch; a message that arrives meanwhile waits
for that lock and then parks behind, or finds the key free.
"""

from __future__ import annotations

from collections.abc import Sequence

from bothends.core.consuming import Failure, describe_error, fingerprint_of_reason
from bothends.core.states import InboxState, KeyState, Outcome
from bothends.errors import StoreUnavailable
from bothends.letters import Letter
from bothends.stores.inboxes import Entry, Lease
from bothends.worker.acts import Acts, Do, Released, Superseded, begin_with
from bothends.worker.deliveries import Delivery, Verdict, problem_failure, read_letter
from bothends.worker.engine import Book, CallFailed, Contended, Plan, RunFailed, Unattributed, Work

__all__ = ["DRAIN_MAX", "Drain"]

DRAIN_MAX = 1_000
"""Messages of one key that are run before other keys get their turn."""


class _Settled:
    """What one transaction does to the queue of the key."""

    def __init__(self) -> None:
        self.book = Book()
        self.removed: list[int] = []
        self.succeeded: list[int] = []
        self.postponed: Letter | None = None
        self.state: KeyState | None = None
        self.delay_s = 0.0


class Drain(Work):
    """One turn at a key. ``acts()`` may be driven again after ``StoreUnavailable``, on a new connection."""

    def __init__(self, plan: Plan, lease: Lease) -> None:
        super().__init__(plan)
        self.lease = lease
        self.done: list[Delivery] = []
        """What was settled in this turn, with outcomes."""
        self._waiting: list[Delivery] = []
        self._finished = False

    @property
    def deliveries(self) -> Sequence[Delivery]:
        """What this turn has in hand."""
        return self._waiting

    def successor(self, culprits: Sequence[Delivery], error: BaseException) -> Drain:
        """What is left, for another thread: this one is stuck in a run of ``culprits``. One alone is charged."""
        left = Drain(self.plan, self.lease)
        left.run, left.done, left._waiting, left._most = self.run, self.done, self._waiting, 1
        left._blame(culprits, error)
        return left

    def acts(self) -> Acts[None]:
        self._cut_off = self.plan.watch()
        try:
            while not self._finished and len(self.done) < DRAIN_MAX:
                if not self._waiting:
                    yield from self._ours(self._fetch())
                    if not self._waiting:
                        break
                yield from self._part()
            yield from self._ours(self._leave())
        except Released:
            yield Do.ROLLBACK
            yield from self._unmark()
            yield from self.inbox.give_up(self.plan.number, self.lease)
            raise
        except StoreUnavailable:
            yield Do.ROLLBACK
            raise

    def _fetch(self) -> Acts[None]:
        most = min(self.plan.consumer.batch_max, DRAIN_MAX)
        letters = yield from self.inbox.heads(self.plan.number, self.lease.key, most)
        self._waiting = [read_letter(self.plan.consumer, letter) for letter in letters]
        if not letters:
            yield from self._free_empty()

    def _free_empty(self) -> Acts[None]:
        held = yield from begin_with(self.inbox.hold(self.plan.number, self.lease))
        freed = held and (yield from self.inbox.free(self.plan.number, self.lease.key))
        yield Do.COMMIT
        self._finished = freed or not held

    def _leave(self) -> Acts[None]:
        yield from self._unmark()
        if not self._finished:
            yield from self.inbox.give_up(self.plan.number, self.lease)
            self._finished = True

    def _next(self) -> list[Delivery]:
        """The head alone; after it has succeeded, those that merely waited behind it, together."""
        part: list[Delivery] = []
        for delivery in self._waiting:
            letter = delivery.letter
            assert letter is not None
            plain = (
                delivery.verdict is Verdict.RUN and delivery.failure is None and not delivery.effects and not letter.attempts
                and letter.dead_letter is None and self._most != 1 and bool(self.done)
                and self.plan.suspects.get(delivery.name) is None
            )
            if part and not plain:
                break
            part.append(delivery)
            if not plain or len(part) == self._most:
                break
        return part

    def _part(self) -> Acts[None]:
        part = self._next()
        suspect = self.plan.suspects.get(part[0].name) is not None
        if suspect:
            self._charge_crashes(part[0])
            yield Do.QUIET
        try:
            if any(d.verdict is Verdict.RUN and d.failure is None for d in part):
                yield from self._ours(self._mark(part, alone=suspect))
            if part[0].effects and part[0].failure is None:
                yield from self._effects(part[0])
            else:
                yield from self._transaction(part)
        except RunFailed as failed:
            yield Do.ROLLBACK
            self._charge(failed.delivery, failed.error)
            if failed.delivery is not part[0]:
                self._most = 1
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

    def _transaction(self, part: list[Delivery]) -> Acts[None]:
        yield Do.FENCE
        settled = _Settled()
        transaction, taken = yield from self._ours(self._enter(part))
        runs: list[Delivery] = []
        for delivery in part:
            if delivery.name not in taken:
                self._drop(delivery, settled)
            elif delivery.verdict is Verdict.RUN and delivery.failure is None:
                runs.append(delivery)
            elif not self._settled_without_a_run(delivery, settled):
                break
        for group in self._groups(runs):
            called = yield from self._call(group)
            settled.book.drafts += called.drafts
            for delivery in group:
                self._succeed(delivery, settled)
        yield from self._write(settled.book)
        yield from self._close(settled, transaction)

    def _enter(self, part: Sequence[Delivery]) -> Acts[tuple[str, set[tuple[str, str]]]]:
        """Begins, and takes those that are still parked; one that is not was done meanwhile. One that had no id when it was
        given up is new to the inbox."""
        plan = self.plan
        running = [d for d in part if d.verdict is Verdict.RUN and d.failure is None]
        nameless = [Entry(*d.name, d.hash) for d in running if plan.consumer.inbox and not _is_known(d)]
        admitted = yield from begin_with(
            self.inbox.admit(plan.number, nameless, lock_timeout_ms=self._lock_timeout(part), lease_s=plan.lease_s),
        )
        taken = {d.name for d in part}.difference(d.name for d in running) | admitted.fresh
        names = [d.name for d in running if _is_known(d)]
        if names and plan.consumer.inbox:
            taken |= yield from self.inbox.take(plan.number, names)
        elif not plan.consumer.inbox:
            taken.update(d.name for d in running)
        return admitted.transaction, taken

    def _drop(self, delivery: Delivery, settled: _Settled) -> None:
        settled.book.outcomes.append((delivery, Outcome.DUPLICATE))
        settled.removed.append(_position(delivery))
        if not _is_known(delivery):  # a copy of one that the inbox knows by the id that this one had not
            settled.succeeded.append(_position(delivery))

    def _settled_without_a_run(self, delivery: Delivery, settled: _Settled) -> bool:
        """One message that is not to be run; False where the queue stops at it."""
        if delivery.verdict is Verdict.NEWER and delivery.failure is None:
            return self._newer(delivery, settled)
        if delivery.verdict is Verdict.BROKEN:
            hold = self.plan.retry.then == "hold" and delivery.queue.keyed
            return self._fail(delivery, problem_failure(delivery, hold=hold), settled)
        assert delivery.failure is not None
        return self._fail(delivery, delivery.failure, settled)

    def _succeed(self, delivery: Delivery, settled: _Settled) -> None:
        settled.book.outcomes.append((delivery, Outcome.PROCESSED))
        settled.removed.append(_position(delivery))
        settled.succeeded.append(_position(delivery))

    def _newer(self, delivery: Delivery, settled: _Settled) -> bool:
        letter = delivery.letter
        assert letter is not None
        patience_s = self.plan.consumer.schema_patience.total_seconds()
        if letter.parked_s >= patience_s:
            hold = self.plan.retry.then == "hold" and delivery.queue.keyed
            return self._fail(delivery, problem_failure(delivery, hold=hold), settled)
        problem = describe_error(delivery.problem or Exception())
        settled.postponed = delivery.to_letter(reason="schema", error=problem, fingerprint="")
        settled.state, settled.delay_s = KeyState.SCHEMA, patience_s - letter.parked_s
        settled.book.outcomes.append((delivery, Outcome.PARKED))
        return False

    def _fail(self, delivery: Delivery, failure: Failure, settled: _Settled) -> bool:
        letter = delivery.to_letter(
            reason=failure.reason, error=failure.error,
            fingerprint=failure.fingerprint or fingerprint_of_reason(failure.reason),
        )
        if failure.fate == "retry":
            settled.postponed = letter
            settled.state, settled.delay_s = KeyState.RETRYING, failure.delay_s
            settled.book.outcomes.append((delivery, Outcome.PARKED))
            return False
        settled.book.outcomes.append((delivery, Outcome.DEAD))
        settled.book.letters.append((True, letter))
        settled.removed.append(_position(delivery))
        if failure.hold and delivery.queue.keyed:
            settled.state = KeyState.HELD
            return False
        return True

    def _close(self, settled: _Settled, transaction: str) -> Acts[None]:
        """The key's row, then the commit."""
        try:
            freed = yield from self._settle_key(settled)
        except Released:
            raise
        except Exception as error:
            raise self._whole_failed(error) from error
        yield from self._commit(transaction, last=True)
        for delivery, outcome in settled.book.outcomes:
            delivery.outcome = outcome
            self.done.append(delivery)
        gone = {id(d) for d, _ in settled.book.outcomes}
        self._waiting = [d for d in self._waiting if id(d) not in gone]
        # Not before the commit: where that fails, the work is done again.
        self._finished = freed or settled.state is not None

    def _settle_key(self, settled: _Settled) -> Acts[bool]:
        """Whether the key is free, once this transaction is committed."""
        number, key = self.plan.number, self.lease.key
        if not (yield from self.inbox.hold(number, self.lease)):
            raise Released("another drainer has the key")
        if settled.removed:
            yield from self.inbox.remove(number, key, settled.removed, succeeded=settled.succeeded)
        if settled.postponed is not None:
            yield from self.inbox.postpone(number, settled.postponed)
        if settled.state is not None:
            yield from self.inbox.reset(number, self.lease, state=settled.state.value, delay_s=settled.delay_s)
        elif len(settled.removed) >= len(self._waiting):
            return bool((yield from self.inbox.free(number, key)))
        return False

    def _effects(self, delivery: Delivery) -> Acts[None]:
        """A handler without a transaction until ``ctx.begin()``. What is done already is found before it is called."""
        if self.plan.consumer.inbox:
            known = yield from self._ours(self.inbox.known(self.plan.number, [delivery.name]))
            state = known[delivery.name].state if delivery.name in known else None
            if state != (InboxState.PARKED.value if _is_known(delivery) else None):
                yield from self._transaction_of_done(delivery)
                return
        entered: list[str] = []

        def enter(one: Delivery) -> Acts[None]:
            yield Do.FENCE
            transaction, taken = yield from self._ours(self._enter([one]))
            if one.name not in taken:
                raise Superseded
            entered.append(transaction)

        settled = _Settled()
        try:
            called = yield from self._call([delivery], enter)
            if not called.begun:
                yield from enter(delivery)
        except Superseded:
            yield Do.ROLLBACK
            yield from self._transaction_of_done(delivery)
            return
        settled.book.drafts += called.drafts
        self._succeed(delivery, settled)
        yield from self._write(settled.book)
        yield from self._close(settled, entered[-1])

    def _transaction_of_done(self, delivery: Delivery) -> Acts[None]:
        settled = _Settled()
        transaction, taken = yield from self._ours(self._enter([delivery]))
        if delivery.name in taken:
            raise Contended(Superseded("it is parked again"))
        self._drop(delivery, settled)
        yield from self._close(settled, transaction)


def _position(delivery: Delivery) -> int:
    assert delivery.letter is not None
    assert delivery.letter.position is not None
    return delivery.letter.position


def _is_known(delivery: Delivery) -> bool:
    """Whether the message had an id when it was parked or given up, and so an inbox row."""
    assert delivery.letter is not None
    return bool(delivery.letter.id)
