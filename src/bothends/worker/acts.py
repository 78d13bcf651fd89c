"""Acts: what the inbox engine asks of a seat beside SQL, and how a generator of them is driven.

The engine is a generator, so that one source serves sync and async drivers, and so that a test can let it die between any
two acts.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

from bothends.errors import BothendsError
from bothends.stores.steps import Sql, Steps

if TYPE_CHECKING:
    from bothends.drafts import Draft
    from bothends.worker.deliveries import Delivery

__all__ = [
    "Act", "Acts", "AsyncSeat", "Begin", "Call", "Called", "Commit", "Do", "Pause", "Released", "Seat", "Superseded",
    "TransactionIs", "begin_with", "commit_with", "drive", "drive_async",
]

T = TypeVar("T")


class Do(enum.Enum):
    """Acts without a parameter."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    FENCE = "fence"
    """Raises ``Released`` where this worker may not go on: a partition was given up, or the process is stopping."""
    QUIET = "quiet"
    """Waits until nothing else runs in this process, and keeps it so (or raises ``Released``)."""
    LOUD = "loud"
    """Ends ``QUIET``."""


class Pause(NamedTuple):
    """Waits for a moment between two tries of a transaction."""

    seconds: float


class Begin(NamedTuple):
    """BEGIN, at once with the first statement in the transaction, whose result is the answer."""

    first: Sql


class Commit(NamedTuple):
    """COMMIT, at once with a statement before it; where that fails, nothing is committed."""

    gate: Sql


@dataclass(slots=True)
class Call:
    """Runs the handler of one message, or a batch handler with several. Answered with ``Called``; never raises for what the
    handler does.

    ``enter`` is None where the transaction is open already; else it makes the acts of ``ctx.begin()``.
    """

    deliveries: Sequence[Delivery]
    """Of one handler, at least one, in their order."""
    enter: Callable[[Delivery], Acts[None]] | None = None


class TransactionIs(enum.Enum):
    OPEN = "open"
    FAILED = "failed"
    """A statement has failed; the database accepts nothing but a rollback."""
    ENDED = "ended"


@dataclass(slots=True)
class Called:
    """How a handler's run went."""

    error: BaseException | None = None
    drafts: list[Draft] = field(default_factory=list)
    transaction: TransactionIs = TransactionIs.OPEN
    usable: bool = True
    """False: the connection is closed or broken."""
    begun: bool = True
    """Whether the transaction was begun (effects handlers may not have called ``ctx.begin()``)."""
    ended_by_handler: bool = False
    """A guard stopped the handler from ending the transaction."""


Act: TypeAlias = "Sql | Do | Pause | Call | Begin | Commit"
Acts: TypeAlias = "Generator[Act, Any, T]"


class Released(BothendsError):
    """The work is given back: not settled, nothing charged. Somebody else (or this worker, later) does it."""


class Superseded(BaseException):
    """Leaves an effects handler from within ``ctx.begin()``: the message is done, or its key has to wait. No error, so
    ``except Exception`` must not stop it."""


class Seat(Protocol):
    """Where acts are carried out: one connection, one thread."""

    def perform(self, act: Act, /) -> Any: ...


class AsyncSeat(Protocol):
    async def perform(self, act: Act, /) -> Any: ...


def begin_with(steps: Steps[T]) -> Acts[T]:
    """Begins a transaction with the first statement of ``steps``; what it asks further comes later. What it returns."""
    try:
        answer = yield Begin(next(steps))
        while True:
            answer = yield steps.send(answer)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


def commit_with(gate: Steps[None]) -> Acts[None]:
    """COMMIT with the one statement of ``gate``, which may translate its error."""
    statement = next(gate)
    try:
        yield Commit(statement)
    except Exception as error:
        gate.throw(error)
        raise
    gate.close()


def drive(acts: Acts[T], seat: Seat) -> T:
    """Carries out ``acts`` to their end. What a seat raises is thrown into the generator, which may go on."""
    try:
        act = next(acts)
        while True:
            try:
                answer = seat.perform(act)
            except BaseException as error:
                act = acts.throw(error)
            else:
                act = acts.send(answer)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


async def drive_async(acts: Acts[T], seat: AsyncSeat) -> T:
    """``drive`` on an event loop."""
    try:
        act = next(acts)
        while True:
            try:
                answer = await seat.perform(act)
            except BaseException as error:
                act = acts.throw(error)
            else:
                act = acts.send(answer)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
