"""Mutants: small wrongs in the crash-relevant code of relay, worker and effects, put in one at a time.

Each replaces one function. Most drop, add or reorder statements of a step function, so that they live on whatever database call
comes next; none changes what the explorer does.
"""

from __future__ import annotations

import copy
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bothends import effects
from bothends.brokers.logs.broker import LogBroker
from bothends.brokers.logs.publisher import LogPublisher
from bothends.brokers.logs.subscription import LogSubscription
from bothends.core import effecting
from bothends.core.ordering import Runs
from bothends.core.relaying import Page
from bothends.core.states import Outcome
from bothends.ports import BatchReport
from bothends.relay.pipeline import Pipeline
from bothends.stores.inboxes import Admitted
from bothends.stores.sqlite import relay_rows
from bothends.stores.sqlite.connection import SqliteConnection
from bothends.stores.sqlite.effects import SqliteEffects
from bothends.stores.sqlite.inbox import SqliteInbox
from bothends.stores.sqlite.outbox import SqliteOutbox
from bothends.stores.sqlite.relay_rows import RowSteps
from bothends.stores.steps import Result, Sql
from bothends.worker.engine import Work
from bothends.worker.forwarding import Forwarder
from bothends.worker.inbox import Batch
from bothends.worker.parking import Drain
from bothends.worker.scopes import RunScope
from bothends.worker.seats import Seat

__all__ = ["MUTANTS", "Mutant"]

Replace = Callable[[Any], Any]


@dataclass(frozen=True)
class Mutant:
    name: str
    owner: Any
    attribute: str
    replace: Replace
    """Given the function as it is, returns the wrong one."""

    def __str__(self) -> str:
        return self.name


# Ways of being wrong


def answers(value: Any) -> Replace:
    """Asks the database nothing."""

    def replace(plain: Any) -> Any:
        def steps(*_: Any, **__: Any) -> Any:
            yield from ()
            return copy.copy(value)

        return steps

    return replace


def without(pattern: str, count: int = 0) -> Replace:
    """Leaves out the statements that match; they seem to have changed ``count`` rows."""

    def change(statement: Sql) -> Sql | Result:
        return Result([], count) if re.search(pattern, statement.text) else statement

    return _changed(change)


def altered(pattern: str, by: str) -> Replace:
    """Changes the text of statements."""
    return _changed(lambda statement: statement._replace(text=re.sub(pattern, by, statement.text)))


def _changed(change: Callable[[Sql], Sql | Result]) -> Replace:
    """Statements pass ``change``, which may answer them itself; errors go to whoever asked."""

    def replace(plain: Any) -> Any:
        def steps(*arguments: Any, **options: Any) -> Any:
            inner = plain(*arguments, **options)
            answer: Any = None
            error: BaseException | None = None
            try:
                while True:
                    statement = inner.throw(error) if error is not None else inner.send(answer)
                    asked = change(statement) if isinstance(statement, Sql) else statement
                    try:
                        answer, error = (asked if isinstance(asked, Result) else (yield asked)), None
                    except BaseException as raised:
                        answer, error = None, raised
            except StopIteration as done:
                return done.value

        return steps

    return replace


def committed_after(plain: Any) -> Any:
    """What it has written is committed at once."""

    def steps(*arguments: Any, **options: Any) -> Any:
        value = yield from plain(*arguments, **options)
        yield Sql("commit", rows=False)
        yield Sql("begin immediate", rows=False)
        return value

    return steps


def nothing(plain: Any) -> Any:
    """A plain method that does nothing."""
    return lambda *_, **__: None


def before(act: Callable[..., Any]) -> Replace:
    """Does something else first."""

    def replace(plain: Any) -> Any:
        def method(self: Any, *arguments: Any, **options: Any) -> Any:
            act(self, *arguments)
            return plain(self, *arguments, **options)

        return method

    return replace


# The inbox and what is parked


def _all_fresh(plain: Any) -> Any:
    def admit(self: Any, consumer: int, entries: Any, **options: Any) -> Any:
        admitted = yield from plain(self, consumer, entries, **options)
        return Admitted({entry[:2] for entry in entries}, *admitted[1:])

    return admit


def _parked_without_a_letter(self: Batch, delivery: Any, book: Any, **_: Any) -> None:
    book.outcomes.append((delivery, Outcome.PARKED))


def _processed_though_failed(self: Batch, delivery: Any, failure: Any, waiting: Any, book: Any) -> None:
    book.outcomes.append((delivery, Outcome.PROCESSED))


def _parked_without_a_block(plain: Any) -> Any:
    def fail(self: Batch, delivery: Any, failure: Any, waiting: Any, book: Any) -> None:
        plain(self, delivery, failure, waiting, book)
        book.blocks.clear()

    return fail


def _ignoring_what_waits(plain: Any) -> Any:
    return lambda self, delivery, waiting, book: plain(self, delivery, {}, book)


def _not_taken_back(plain: Any) -> Any:
    def succeed(self: Any, delivery: Any, settled: Any) -> None:
        plain(self, delivery, settled)
        settled.removed.clear()

    return succeed


def _next_of_the_tail(plain: Any) -> Any:
    return lambda self: [self._waiting[-1]]


def _goes_on_behind_a_failure(plain: Any) -> Any:
    def fail(self: Any, delivery: Any, failure: Any, settled: Any) -> bool:
        plain(self, delivery, failure, settled)
        settled.state = settled.postponed = None
        settled.removed.append(delivery.letter.position)
        return True

    return fail


def _all_taken(plain: Any) -> Any:
    def take(self: Any, consumer: int, names: Any) -> Any:
        yield from plain(self, consumer, names)
        return set(names)

    return take


# Commits and rollbacks


def _swallowing_gate(plain: Any) -> Any:
    def commit(self: Work, transaction: str, *, last: bool) -> Any:
        try:
            yield from plain(self, transaction, last=last)
        except Exception:
            if last:
                self.run = None

    return commit


def _outage_is_done(plain: Any) -> Any:
    """An outage ends a batch as if it had gone well."""

    def acts(self: Batch) -> Any:
        try:
            yield from plain(self)
        except Exception:
            for delivery in self.deliveries:
                delivery.outcome = delivery.outcome or Outcome.PROCESSED

    return acts


def _without_rollback(plain: Any) -> Any:
    return lambda self: None


# Effects


def _returns_for(state: Any, move: Any) -> Replace:
    def replace(plain: Any) -> Any:
        return lambda found, **options: move if found is state else plain(found, **options)

    return replace


# The relay and the broker's clients


def _settle_first(self: Pipeline, batch: Any) -> None:
    self._settle_streams([batch])


def _forgets_failures(plain: Any) -> Any:
    return lambda self, reports: plain(self, [report._replace(failures={}) for report in reports])


def _reports_at_once(plain: Any) -> Any:
    """What waits is reported as confirmed, and written at the next look."""
    told: set[int] = set()

    def poll(self: LogPublisher, timeout_s: float) -> Any:
        if self._waiting and id(self) not in told:
            told.add(id(self))
            self._unreported = 0
            return [BatchReport(batch, {}) for batch, _ in self._waiting]
        told.discard(id(self))
        plain(self, timeout_s)
        return []

    return poll


def _reversed_rows(plain: Any) -> Any:
    def fetch(self: RowSteps, streams: Any, **options: Any) -> Any:
        page: Page = yield from plain(self, streams, **options)
        page.rows.reverse()
        return page

    return fetch


def _skips_the_first(plain: Any) -> Any:
    def fetch(self: RowSteps, streams: Any, **options: Any) -> Any:
        page: Page = yield from plain(self, streams, **options)
        del page.rows[:1]
        return page

    return fetch


def _window_is_done(plain: Any) -> Any:
    """After a failure everything in flight counts as confirmed."""

    def recover(self: Pipeline) -> Any:
        for batch in self.window:
            batch.done, batch.failures = True, {}
        return plain(self)

    return recover


def _stores_what_was_handed_out(plain: Any) -> Any:
    def hand_out(self: Any, partition: Any, offset: int) -> None:
        plain(self, partition, offset)
        self.settle(partition, offset)

    return hand_out


def _acknowledging_first(plain: Any) -> Any:
    return lambda self, *arguments, **options: plain(self, *arguments, **options | {"at_most_once": True})


def _only_the_first(plain: Any) -> Any:
    return lambda self, batch, records: plain(self, batch, records[:1])


def _forwarded_without_publishing(plain: Any) -> Any:
    return lambda self, delivery, give_up: True


def _without_error(plain: Any) -> Any:
    def call(self: Seat, act: Any, connection: Any) -> Any:
        called = plain(self, act, connection)
        called.error = None
        return called

    return call


def _not_emitted(plain: Any) -> Any:
    def emit(self: RunScope, event: object, arguments: dict[str, Any]) -> str:
        made: str = plain(self, event, arguments)
        self.drafts.pop()
        return made

    return emit



def _without_deleting(plain: Any) -> Any:
    return lambda me, statements: plain(me, [s for s in statements if "delete" not in s.text])


MUTANTS = [
    Mutant("the inbox row is not written", SqliteInbox, "admit", without("insert into bothends_inbox")),
    Mutant("a copy counts as new", SqliteInbox, "admit", _all_fresh),
    Mutant("a copy replaces the inbox row", SqliteInbox, "admit",
           altered("on conflict do nothing", "on conflict do update set state = 'p'")),
    Mutant("the inbox row is committed apart", SqliteInbox, "admit", committed_after),
    Mutant("waiting keys are not seen", SqliteInbox, "blocked", answers({})),
    Mutant("waiting keys are ignored", Batch, "_settled_without_a_run", _ignoring_what_waits),
    Mutant("a parked message is not stored", SqliteInbox, "park", without("insert into bothends_parked")),
    Mutant("its key does not wait", SqliteInbox, "park", without("insert into bothends_blocked_keys")),
    Mutant("parking is committed apart", SqliteInbox, "park", committed_after),
    Mutant("parked without a letter", Batch, "_park", lambda plain: _parked_without_a_letter),
    Mutant("a failure counts as done", Batch, "_fail", lambda plain: _processed_though_failed),
    Mutant("a failure parks but does not block", Batch, "_fail", _parked_without_a_block),
    Mutant("a dead letter is not written", SqliteInbox, "bury", answers(None)),
    Mutant("no key is ever due", SqliteInbox, "lease_due", answers([])),
    Mutant("a leased key shows no message", SqliteInbox, "heads", answers([])),
    Mutant("the drainer takes the newest first", Drain, "_next", _next_of_the_tail),
    Mutant("the drainer does not look whether it is done", SqliteInbox, "take", _all_taken),
    Mutant("a drained message stays parked", SqliteInbox, "remove", answers(None)),
    Mutant("a drained message is not taken out", Drain, "_succeed", _not_taken_back),
    Mutant("draining is committed before the handlers", SqliteInbox, "take", committed_after),
    Mutant("the key is never freed", SqliteInbox, "free", answers(False)),
    Mutant("a failed head is not counted", SqliteInbox, "postpone", answers(None)),
    Mutant("a failed head keeps its lease", SqliteInbox, "reset", answers(None)),
    Mutant("the drainer goes on behind a failure", Drain, "_fail", _goes_on_behind_a_failure),
    Mutant("a failed COMMIT passes", Work, "_commit", _swallowing_gate),
    Mutant("an outage ends a batch as done", Batch, "acts", _outage_is_done),
    Mutant("COMMIT rolls back", SqliteConnection, "commit", lambda plain: SqliteConnection.rollback),
    Mutant("a failed run is not charged", Work, "_charge", nothing),
    Mutant("a failed run is not rolled back", SqliteConnection, "rollback", _without_rollback),
    Mutant("emitted events are not written", SqliteOutbox, "add", answers(None)),
    Mutant("emitted events are committed apart", SqliteOutbox, "add", committed_after),
    Mutant("an effect is not recorded before the call", SqliteEffects, "start", answers(1)),
    Mutant("an effect's result is not kept", SqliteEffects, "complete", answers(True)),
    Mutant("an effect that is done is called again", effects, "next_move",
           _returns_for(effecting.EffectState.COMPLETED, effecting.Move.CALL)),
    Mutant("an unknown effect is called again unasked", effects, "next_move",
           _returns_for(effecting.EffectState.UNKNOWN, effecting.Move.CALL)),
    Mutant("an effect in progress is called again unasked", effects, "next_move",
           _returns_for(effecting.EffectState.IN_PROGRESS, effecting.Move.CALL)),
    Mutant("an effect's key is made anew", effects, "effect_key", lambda plain: lambda *_: str(uuid.uuid4())),
    Mutant("the other side's error is taken for a no", SqliteEffects, "fail",
           altered("state = :state", "state = 'not_sent'")),
    Mutant("the relay marks before the confirmation", Pipeline, "send", before(_settle_first)),
    Mutant("the relay forgets failures", Pipeline, "_note", _forgets_failures),
    Mutant("after a failure all in flight counts as confirmed", Pipeline, "recover", _window_is_done),
    Mutant("the relay never marks", Pipeline, "_settle_streams", nothing),
    Mutant("published rows are not deleted", relay_rows, "fenced", _without_deleting),
    Mutant("the relay reads backwards", RowSteps, "fetch", _reversed_rows),
    Mutant("the relay skips a row", RowSteps, "fetch", _skips_the_first),
    Mutant("the client reports before it has written", LogPublisher, "poll", _reports_at_once),
    Mutant("the position is stored when records are handed out", Runs, "hand_out", _stores_what_was_handed_out),
    Mutant("a rewind is forgotten", LogSubscription, "rewind", nothing),
    Mutant("the position is stored before anything is done", LogBroker, "subscribe", _acknowledging_first),
    Mutant("the client drops what does not fit", LogPublisher, "send", _only_the_first),
    Mutant("forwarded without publishing", Forwarder, "forward", _forwarded_without_publishing),
    Mutant("a handler's error is lost", Seat, "_call", _without_error),
    Mutant("an emitted event is forgotten on the way", RunScope, "emit", _not_emitted),
]

