"""Context and AsyncContext: what a handler gets beside its event.

A context knows nothing of databases. What it is asked it hands on to its ``Scope``, which the worker (or the test kit)
makes for one run of one message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol

from typing_extensions import TypeVar

from bothends.errors import EffectNotAllowed, InvalidEvent
from bothends.events import UNSET, EventId, NotDone, Unset
from bothends.message import Message

if TYPE_CHECKING:
    import sqlite3

    import aiosqlite
    import psycopg
    from sqlalchemy.ext.asyncio import AsyncSession
    from sqlalchemy.orm import Session

__all__ = ["AsyncBatchContext", "AsyncContext", "BatchContext", "Causes", "Context", "Scope"]

R = TypeVar("R")
D = TypeVar("D", default=Any)
S = TypeVar("S", bound="Session | AsyncSession")
K = TypeVar("K", bound="sqlite3.Connection | psycopg.Connection[Any] | psycopg.AsyncConnection[Any] | aiosqlite.Connection")


class Scope(Protocol):
    """One run of one message, as its context needs it. ``begin``, ``once`` and what ``reading`` gives are awaitable (an
    asynchronous context manager) where the context is an ``AsyncContext``."""

    def session(self) -> Any:
        """The SQLAlchemy session of this run; made on first use."""
        ...

    def connection(self) -> Any:
        """The driver's connection that holds this run's transaction."""
        ...

    def begin(self) -> Any: ...

    def reading(self) -> Any: ...

    def emit(self, event: object, arguments: dict[str, Any]) -> EventId:
        """Checks the event and keeps it until the commit; no I/O. Raises AddError."""
        ...

    def once(
        self, name: str, call: Callable[[str], Any], *, result: type[Any], key: str | None,
        if_unknown: Literal["hold", "repeat"] | Callable[[str], Any],
    ) -> Any: ...


class _SessionOf:
    def __get__(self, instance: _Shared[S], owner: Any = None, /) -> S:
        if instance is None:
            return self  # type: ignore[unreachable]
        return instance._scope.session()  # type: ignore[no-any-return]


class _ConnectionOf:
    def __get__(self, instance: _Shared[K], owner: Any = None, /) -> K:
        if instance is None:
            return self  # type: ignore[unreachable]
        return instance._scope.connection()  # type: ignore[no-any-return]


class _Shared(Generic[D]):
    """What all kinds of context have. ``attempt`` is 1 on the first run; ``resources`` is what the service's
    ``lifespan`` yielded."""

    attempt: int
    resources: Any

    def __init__(self, scope: Scope, *, attempt: int, resources: Any) -> None:
        self._scope = scope
        self.attempt = attempt
        self.resources = resources


class _OfOne(_Shared[D]):
    """What contexts of one message have."""

    message: Message

    def __init__(self, scope: Scope, *, message: Message, attempt: int = 1, resources: Any = None) -> None:
        super().__init__(scope, attempt=attempt, resources=resources)
        self.message = message

    def emit(self, event: object, *, key: str | Unset | None = UNSET, topic: str | None = None) -> EventId:
        """Adds an event that is written just before this run's transaction commits. It is checked at once, its id is the
        same on every run of this message, and it carries the ids of causation and correlation. No I/O.

        Raises InvalidEvent, MissingKey.
        """
        return self._scope.emit(event, {"key": key, "topic": topic})

    def _add(self, event: object, **arguments: Any) -> EventId:
        """``emit`` with every argument of ``Outbox.add``, for ``outbox.add(ctx, ...)``."""
        return self._scope.emit(event, arguments)


class Context(_OfOne[D]):
    """The context of a synchronous handler. ``ctx.session`` and ``ctx.connection`` belong to the worker's transaction:
    use them, never commit them."""

    session = _SessionOf()
    connection = _ConnectionOf()

    def begin(self) -> D:
        """``effects=True`` only: begins the transaction and writes the inbox row; from here on no outside call."""
        return self._scope.begin()  # type: ignore[no-any-return]

    def reading(self) -> AbstractContextManager[D]:
        """``effects=True`` only, before ``begin``: a short read-only transaction of its own."""
        return self._scope.reading()  # type: ignore[no-any-return]

    def once(
        self, name: str, call: Callable[[str], R], *, result: type[R], key: str | None = None,
        if_unknown: Literal["hold", "repeat"] | Callable[[str], R | NotDone] = "hold",
    ) -> R:
        """Calls an outside system at most once per message and ``name``, with a stable idempotency key, and returns the
        stored result on every later run. Raises EffectNotAllowed outside ``effects=True``, after ``begin``, and for a
        name that was used in this run."""
        return self._scope.once(name, call, result=result, key=key, if_unknown=if_unknown)  # type: ignore[no-any-return]


class AsyncContext(_OfOne[D]):
    """``Context`` for coroutines: ``begin`` and ``once`` are awaited, ``reading`` is ``async with``."""

    session = _SessionOf()
    connection = _ConnectionOf()

    async def begin(self) -> D:
        """As ``Context.begin``."""
        return await self._scope.begin()  # type: ignore[no-any-return]

    def reading(self) -> AbstractAsyncContextManager[D]:
        """As ``Context.reading``."""
        return self._scope.reading()  # type: ignore[no-any-return]

    async def once(
        self, name: str, call: Callable[[str], Awaitable[R]], *, result: type[R], key: str | None = None,
        if_unknown: Literal["hold", "repeat"] | Callable[[str], Awaitable[R | NotDone]] = "hold",
    ) -> R:
        """As ``Context.once``; ``call`` is awaited."""
        return await self._scope.once(name, call, result=result, key=key, if_unknown=if_unknown)  # type: ignore[no-any-return]


class _OfSeveral(_Shared[D]):
    """What contexts of batch handlers have."""

    messages: list[Message]

    def __init__(self, scope: Scope, *, messages: list[Message], attempt: int = 1, resources: Any = None) -> None:
        super().__init__(scope, attempt=attempt, resources=resources)
        self.messages = messages

    def emit(self, event: object, *, cause: object, key: str | Unset | None = UNSET, topic: str | None = None) -> EventId:
        """``Context.emit`` on behalf of ``cause``: one of the handler's events (that object itself), or its envelope from
        ``ctx.messages``. The id comes from that message and from how many its run has emitted for it, so it stays the same
        whatever else is in the call.

        Raises InvalidEvent (also for a ``cause`` that is none of this call's), MissingKey.
        """
        return self._scope.emit(event, {"key": key, "topic": topic, "cause": cause})

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in ("begin", "once", "reading"):
                raise EffectNotAllowed(
                    f"ctx.{name} in a batch handler: an outside call has one message and a transaction of its own; register "
                    f"a handler with effects=True for it, or emit an event that one handles"
                )
            if name == "message":
                raise AttributeError("a batch handler has ctx.messages, in the order of its events")
            raise AttributeError(f"{type(self).__name__} has no {name!r}")


class BatchContext(_OfSeveral[D]):
    """The context of a synchronous batch handler: one transaction for all of its events. ``messages`` are their envelopes, in
    the same order; ``attempt`` is above 1 only where there is one."""

    session = _SessionOf()
    connection = _ConnectionOf()


class AsyncBatchContext(_OfSeveral[D]):
    """``BatchContext`` for coroutines."""

    session = _SessionOf()
    connection = _ConnectionOf()


class Causes:
    """Which message an event is emitted for, and the how many-th of that message it is."""

    def __init__(self, events: Sequence[object], messages: Sequence[object]) -> None:
        self._kept = (events, messages)  # so that an id() stays one object's
        self._places: dict[int, int | None] = {}
        for place, pair in enumerate(zip(events, messages, strict=True)):
            for one in pair:
                self._places[id(one)] = place if self._places.get(id(one), place) == place else None
        self._counts: Counter[int] = Counter()

    def look_up(self, cause: object) -> tuple[int, int]:
        """The message's place in the call, and how many were emitted for it. Raises InvalidEvent."""
        place = self._places.get(id(cause), -1)
        if place is None:
            raise InvalidEvent("cause: several messages of this call share this object as their event; give ctx.messages[n]")
        if place < 0:
            raise InvalidEvent(
                f"cause: this {type(cause).__qualname__} is none of this call's events (the object itself, no copy of it), nor "
                f"one of ctx.messages"
            )
        return place, self._counts[place]

    def count(self, place: int) -> None:
        self._counts[place] += 1


def not_allowed(what: str) -> EffectNotAllowed:
    """The error of ``begin``, ``once`` and ``reading`` in a handler whose transaction is open before it is called."""
    return EffectNotAllowed(
        f"ctx.{what} needs a handler without a transaction: register it with @consumer.handle(Event, effects=True), "
        f"and call ctx.{what} before ctx.begin()"
    )
