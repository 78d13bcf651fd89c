"""Engine: what live batches and drained keys have in common: marks, calls and their failures, the gate before COMMIT.

Four things can end a transaction without a commit: one message's run failed (``RunFailed``: charged to it alone), a call with
several messages did (``CallFailed``: each gets a call of its own), another transaction was in the way (``Contended``: run
again, at no cost), or the whole failed at its end (``Unattributed``: its messages are run one by one, so that the next failure
has one owner). Anything wrong with the database itself is
``StoreUnavailable``, and with this worker's right to go on, ``Released``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from bothends.core.consuming import HandlerTimeout, SwallowedError, describe_error, judge, judge_crash
from bothends.core.grouping import grouped
from bothends.core.retry import Retry
from bothends.core.states import Outcome
from bothends.errors import HandlerEndedTransaction, StoreUnavailable
from bothends.letters import Block, Letter
from bothends.stores import Store
from bothends.stores.connection import CommitRefused
from bothends.stores.faults import Fault, fault_of, sqlstate_of
from bothends.stores.inboxes import MarkGone
from bothends.worker.acts import Acts, Call, Called, Do, Pause, Released, Superseded, TransactionIs, commit_with
from bothends.worker.deliveries import Delivery, Verdict
from bothends.worker.suspects import Suspects

if TYPE_CHECKING:
    from bothends.drafts import Draft
    from bothends.service import Consumer

__all__ = ["BATCH_LOCK_TIMEOUT_MS", "Book", "CallFailed", "Contended", "Plan", "RunFailed", "Unattributed", "Work"]

BATCH_LOCK_TIMEOUT_MS = 20
"""How long a statement of a batch waits for a lock. Whoever waits longer lets go of all that it holds, and goes on in
smaller parts."""
CONTENDED_SHARE = 2
"""A batch that met a lock goes on in halves, those that meet one again in halves of these, down to one by one."""
CONTENTIONS_MAX = 50
"""Deadlocks and serialization failures that one message may meet before they count as a failed run."""
_NO_RETRY = Retry(attempts=1)
TRANSACTION_ENDED = "BE001"
"""SQLSTATE of the trigger that refuses a COMMIT which is not the worker's, and of the gate in a transaction that is not."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the engine knows of one consumer on one store."""

    consumer: Consumer
    number: int
    """From ``register``."""
    store: Store
    worker: str
    """This process, as its marks name it."""
    lease_s: float
    now: Callable[[], str]
    """The database's time, as far as this process knows it, RFC 3339."""
    random: Callable[[], float]
    suspects: Suspects = field(default_factory=Suspects)
    watch: Callable[[], Callable[[], bool]] = lambda: lambda: False
    """Begins to watch the way to the database; what it returns says whether this process has been cut off since, though it
    ran itself."""

    by_message: bool = False
    """Emitted events go into PostgreSQL's log alone (``relay_source`` is ``message``)."""

    @property
    def outbox(self) -> Any:
        """By what emitted events are added."""
        store: Any = self.store
        return store.messages if self.by_message else store.outbox

    @property
    def retry(self) -> Retry:
        """The consumer's policy; with ``at_most_once`` nothing is run a second time."""
        return _NO_RETRY if self.consumer.at_most_once else self.consumer.retry


class RunFailed(Exception):
    """One message's run failed; ``error`` says how."""

    def __init__(self, delivery: Delivery, error: BaseException) -> None:
        super().__init__(delivery.name)
        self.delivery = delivery
        self.error = error


class CallFailed(Exception):
    """A call of a batch handler with several messages failed: which of them is to blame shows when they run one by one."""

    def __init__(self, deliveries: Sequence[Delivery], error: BaseException) -> None:
        super().__init__(str(error))
        self.deliveries = deliveries
        self.error = error


class Contended(Exception):
    """The transaction lost against another one: run it again, at no cost. ``early``: before any handler ran."""

    def __init__(self, error: BaseException, *, early: bool = False) -> None:
        super().__init__(str(error))
        self.error = error
        self.early = early


class Unattributed(Exception):
    """The transaction failed as a whole, at its end: one of its messages is to blame, but which?"""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(slots=True)
class Book:
    """What one transaction will write beside the handlers' own effects."""

    outcomes: list[tuple[Delivery, Outcome]] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    letters: list[tuple[bool, Letter]] = field(default_factory=list)
    """(dead, letter): in the order of their messages, which is the order of their positions: a dead one that is redriven goes
    before what was parked behind it."""
    drafts: list[Draft] = field(default_factory=list)
    calls: int = 0


class Work:
    """What live batches and drained keys have in common."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.inbox = plan.store.inbox
        self.run: int | None = None
        """The open start mark."""
        self.contended = False
        """Whether a lock was met: the next batches should be smaller."""
        self.parted: list[tuple[Sequence[Delivery], BaseException]] = []
        """Calls with several messages that failed. To be told: nothing else tells of them where each alone succeeds."""
        self._most: int | None = None
        """Messages per transaction, for what is left of this work; None: as many as there are."""
        self._cut_off: Callable[[], bool] = lambda: False

    def _mark(self, deliveries: Sequence[Delivery], *, alone: bool = False) -> Acts[None]:
        """Commits the start mark, once per run of these messages; a suspect's own count of crashes goes with it."""
        if self.run is not None or not self.plan.consumer.handlers:
            return
        suspect = self.plan.suspects.get(deliveries[0].name) if alone else None
        names = json.dumps([d.name for d in deliveries])
        self.run = yield from self.inbox.mark(
            self.plan.number, self.plan.worker, names, alone=alone, crashes=suspect.crashes if suspect else 0,
            replaces=suspect.alone if suspect else (),
        )
        if suspect is not None:
            suspect.alone.clear()

    def _unmark(self) -> Acts[None]:
        if self.run is not None:
            run, self.run = self.run, None
            yield from self.inbox.unmark([run])

    def _lock_timeout(self, part: Sequence[Delivery]) -> int | None:
        return BATCH_LOCK_TIMEOUT_MS if len(part) > 1 else None

    def _commit(self, transaction: str, *, last: bool) -> Acts[None]:
        """The fence, the gate and COMMIT. What fails here is nobody's in particular."""
        gate = self.inbox.gate(self.run, transaction, last=last)
        try:
            if not self.inbox.gate_with_commit:
                yield from gate
                yield Do.FENCE
                yield Do.COMMIT
            else:
                yield Do.FENCE
                yield from commit_with(gate)
        except Released:
            raise
        except MarkGone as error:
            raise Released(str(error)) from error
        except CommitRefused as error:
            raise Unattributed(SwallowedError(str(error))) from error
        except Exception as error:
            raise self._whole_failed(error) from error
        if last:
            self.run = None

    def _commit_copies(self) -> Acts[None]:
        try:
            yield Do.COMMIT
        except Exception as error:
            raise self._whole_failed(error) from error

    def _groups(self, deliveries: Sequence[Delivery]) -> list[Sequence[Delivery]]:
        """Calls for these messages, which are to be run."""
        if not self.plan.consumer.has_batch_handlers:
            return [(delivery,) for delivery in deliveries]
        return list(grouped((d, d.queue, d.batch) for d in deliveries))

    def _call(
        self, deliveries: Sequence[Delivery], enter: Callable[[Delivery], Acts[None]] | None = None,
    ) -> Acts[Called]:
        """Runs the handler; raises what its failure means for the transaction."""
        called: Called = yield Call(deliveries, enter)
        error = called.error
        if isinstance(error, Superseded | Released | StoreUnavailable | Contended):
            raise error
        if called.ended_by_handler or (error is not None and sqlstate_of(error) == TRANSACTION_ENDED):
            raise _failed(deliveries, error if isinstance(error, HandlerEndedTransaction) else ended_by_handler(error))
        fault = fault_of(error) if error is not None else None
        if not called.usable:
            if fault is Fault.TIMED_OUT:
                raise self._timed_out(error, lambda timeout: _failed(deliveries, timeout)) from error
            if fault is Fault.UNAVAILABLE or error is None:
                raise StoreUnavailable(f"the database went away under a handler: {error}") from error
            raise _failed(deliveries, error)
        if error is not None:
            if fault is Fault.CONTENTION and called.transaction is TransactionIs.FAILED:
                raise Contended(error)
            if fault is Fault.TIMED_OUT and called.transaction is TransactionIs.FAILED:
                raise self._timed_out(error, lambda timeout: _failed(deliveries, timeout)) from error
            if fault is Fault.UNAVAILABLE and called.transaction is not TransactionIs.OPEN:
                # It answers, and cannot do what it is for: its disk is full, say. Another database's fault leaves ours open.
                raise StoreUnavailable(f"the database cannot do its work: {describe_error(error)}") from error
            raise _failed(deliveries, error)
        if called.begun and called.transaction is TransactionIs.FAILED:
            raise _failed(deliveries, SwallowedError(
                "the handler went on after a database error, which had failed its transaction; let the error out, or use a "
                "savepoint"
            ))
        if called.begun and called.transaction is TransactionIs.ENDED:
            raise _failed(deliveries, ended_by_handler(None))
        return called

    def _part_company(self, deliveries: Sequence[Delivery], error: BaseException) -> None:
        """After a call with several messages has failed."""
        self.parted.append((deliveries, error))
        for delivery in deliveries:
            delivery.by_itself = True

    def _blame(self, deliveries: Sequence[Delivery], error: BaseException) -> None:
        """Of the run of these messages, which came to no end."""
        if len(deliveries) > 1:
            self._part_company(deliveries, error)
        else:
            self._charge(deliveries[0], error)

    def _charge(self, delivery: Delivery, error: BaseException) -> None:
        delivery.charge(judge(
            self.plan.retry, error, attempts=delivery.attempts, crashes=delivery.crashes,
            history=delivery.history, at=self.plan.now(), jitter=self.plan.random(),
        ))

    def _charge_crashes(self, delivery: Delivery) -> None:
        """Deaths of this process while the message ran alone: too many, and it is dead without another run."""
        suspect = self.plan.suspects.get(delivery.name)
        if suspect is None or delivery.failure is not None:
            return
        delivery.crashes = max(delivery.crashes, suspect.crashes)
        failure = judge_crash(
            self.plan.retry, attempts=delivery.attempts, crashes=delivery.crashes, history=delivery.history,
            at=self.plan.now(),
        )
        if failure is not None:
            delivery.charge(failure)

    def _whole_failed(self, error: BaseException) -> BaseException:
        """What an error at the end of a transaction means for it."""
        fault = fault_of(error)
        if fault is Fault.CONTENTION:
            return Contended(error)
        if fault is Fault.UNAVAILABLE:
            return StoreUnavailable(f"the database went away before it answered: {describe_error(error)}")
        if sqlstate_of(error) == TRANSACTION_ENDED:
            return Unattributed(ended_by_handler(error))
        if fault is Fault.TIMED_OUT:
            return self._timed_out(error, Unattributed)
        return Unattributed(error)

    def _timed_out(self, error: BaseException | None, blame: Callable[[BaseException], BaseException]) -> BaseException:
        """The server has ended a silent transaction. A handler that lets nobody speak is to blame for that; where this
        process went on and was not heard, nobody is."""
        if self._cut_off():
            return StoreUnavailable(f"the database did not hear this process in time: {error}")
        return blame(_timed_out(error))

    def _contention(self, part: Sequence[Delivery], contended: Contended) -> Acts[None]:
        """Another try, in smaller transactions, at no cost, within a bound. What is in the way of our own statements is
        never a message's fault, however long it stays."""
        error = contended.error
        self.contended = True
        head = part[0]
        if len(part) > 1:
            self._most = max(1, len(part) // CONTENDED_SHARE)
            return
        head.contentions += 1
        if head.contentions > CONTENTIONS_MAX:
            if contended.early or head.failure is not None or head.verdict is not Verdict.RUN:
                head.contentions = 0
                raise StoreUnavailable(f"no transaction gets through: {describe_error(error)}") from error
            head.contentions = 0
            self._charge(head, error)
        yield Pause(min(0.001 * 2.0 ** min(head.contentions, 6), 0.05) * self.plan.random())

    def _unattributed(self, part: Sequence[Delivery], error: BaseException) -> None:
        if len(part) > 1:
            self._most = 1
        elif part[0].failure is None and part[0].verdict is Verdict.RUN:
            self._charge(part[0], error)
        else:
            raise StoreUnavailable(f"what became of a message cannot be recorded: {describe_error(error)}") from error

    def _write(self, book: Book) -> Acts[None]:
        try:
            yield from self.inbox.park(self.plan.number, (), book.blocks)
            for dead, some in groupby(book.letters, key=itemgetter(0)):
                letters = [letter for _, letter in some]
                if dead:
                    yield from self.inbox.bury(self.plan.number, self.plan.consumer.owner or "", letters)
                else:
                    yield from self.inbox.park(self.plan.number, letters, ())
            if book.drafts:
                yield from self.plan.outbox.add(book.drafts)
        except Exception as error:
            raise self._whole_failed(error) from error

    def _ours(self, steps: Acts[Any]) -> Acts[Any]:
        """Statements of ours before any handler ran: no message is to blame for what goes wrong in them."""
        try:
            return (yield from steps)
        except Released:
            raise
        except Exception as error:
            if fault_of(error) is Fault.CONTENTION:
                raise Contended(error, early=True) from error
            raise StoreUnavailable(f"the inbox cannot be used: {describe_error(error)}") from error


def _failed(deliveries: Sequence[Delivery], error: BaseException) -> BaseException:
    return RunFailed(deliveries[0], error) if len(deliveries) == 1 else CallFailed(deliveries, error)


def _timed_out(error: BaseException | None) -> HandlerTimeout:
    timeout = HandlerTimeout(f"the database ended the transaction: {error}")
    timeout.__cause__ = error
    return timeout


def ended_by_handler(error: BaseException | None) -> HandlerEndedTransaction:
    ended = HandlerEndedTransaction(
        "the handler ended the worker's transaction; remove its COMMIT or ROLLBACK: the worker commits after it has returned"
    )
    ended.__cause__ = error
    return ended
