"""Contexts for unit tests: a handler is a function, and this is what it is called with when there is no worker.

Nothing is stored, nothing is sent. What would be refused in production is refused here: an event that cannot be
encoded, ``once`` outside of an ``effects=True`` handler, an effect's name used twice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Literal, overload

from typing_extensions import TypeVar

from bothends.codecs.json import codec_for
from bothends.contexts import AsyncBatchContext, AsyncContext, BatchContext, Causes, Context, not_allowed
from bothends.drafts import draft
from bothends.effects import KEY_MAX, NAME_MAX, effect_key
from bothends.errors import EffectNotAllowed
from bothends.events import NOT_DONE, EventId
from bothends.ids import derived_id
from bothends.message import Message

__all__ = [
    "AsyncRecordingBatchContext", "AsyncRecordingContext", "RecordingBatchContext", "RecordingContext", "async_batch_context",
    "async_context", "batch_context", "context",
]

D = TypeVar("D", default=Any)

SOURCE = "unit-test"
CONSUMER = "unit-test.handler"
TOPIC = "unit-test.events"

_MESSAGE = Message(id="00000000-0000-7000-8000-000000000001", source=SOURCE, type="unit.test")
_NOTHING: Any = object()


class _Recorder:
    """The scope of one run in a unit test. ``planned`` is None for an ordinary handler."""

    def __init__(self, db: Any, message: Message, planned: Mapping[str, object] | None) -> None:
        self.emitted: list[object] = []
        self.effects: dict[str, object] = {}
        self._db = db
        self._message = message
        self._planned = planned
        self._begun = False
        self._reading = False

    # What a context asks of its scope.

    def session(self) -> Any:
        return self._open("session")

    def connection(self) -> Any:
        return self._open("connection")

    def begin(self) -> Any:
        self._only_effects("begin()")
        if self._begun:
            raise EffectNotAllowed("ctx.begin() was called before in this run: the transaction is open already")
        self._begun = True
        return self._given("begin()")

    def reading(self) -> Any:
        self._before_begin("reading()")
        return self._read()

    @contextmanager
    def _read(self) -> Iterator[Any]:
        self._reading = True
        try:
            yield self._given("reading()")
        finally:
            self._reading = False

    def emit(self, event: object, arguments: dict[str, Any]) -> EventId:
        id = derived_id(self._message.source, self._message.id, CONSUMER, len(self.emitted))
        made = draft(event, source=SOURCE, default_topic=TOPIC, derived_id=id, **arguments)
        self.emitted.append(event)
        return made.id

    def once(
        self, name: str, call: Callable[[str], Any], *, result: type[Any], key: str | None,
        if_unknown: Literal["hold", "repeat"] | Callable[[str], Any],
    ) -> Any:
        planned = self._plan(name)
        idempotency_key = self._key(name, key)
        if planned is not _NOTHING:
            return self._outcome(name, planned, result)
        try:
            value = call(idempotency_key)
        except Exception as error:
            self.effects[name] = error
            raise
        return self._completed(name, value, result)

    # Shared with the asynchronous recorder.

    def _plan(self, name: str) -> Any:
        """What the test planned for this effect, or ``_NOTHING``."""
        self._before_begin("once()")
        if not 0 < len(name) <= NAME_MAX:
            raise EffectNotAllowed(f"an effect's name has 1 to {NAME_MAX} characters, not {len(name)}")
        if name in self.effects:
            raise EffectNotAllowed(f"ctx.once({name!r}) twice in one run: each effect needs a name of its own")
        assert self._planned is not None
        return self._planned.get(name, _NOTHING)

    def _outcome(self, name: str, planned: Any, result: type[Any]) -> Any:
        if isinstance(planned, BaseException):
            self.effects[name] = planned
            raise planned
        return self._completed(name, planned, result)

    def _completed(self, name: str, value: Any, result: type[Any]) -> Any:
        """The stored form, decoded: what a second run would get, so the first one gets it too."""
        if value is NOT_DONE:
            raise TypeError(f"the call of ctx.once({name!r}) returned NOT_DONE, which only if_unknown may")
        codec = codec_for(result)  # type: ignore[arg-type]
        stored = self.effects[name] = codec.decode(codec.encode(value))
        return stored

    def _key(self, name: str, key: str | None) -> str:
        if key is None:
            return effect_key(CONSUMER, self._message.source, self._message.id, name)
        if not 0 < len(key) <= KEY_MAX:
            raise EffectNotAllowed(f"an idempotency key has 1 to {KEY_MAX} characters, not {len(key)}")
        return key

    def _only_effects(self, what: str) -> None:
        if self._planned is None:
            raise EffectNotAllowed(
                f"{not_allowed(what)}. For the unit test of such a handler, make the context with effects={{}}, "
                f"or with what each effect returns: effects={{'charge': receipt}}"
            )

    def _before_begin(self, what: str) -> None:
        self._only_effects(what)
        if self._begun:
            raise EffectNotAllowed(f"ctx.{what} after ctx.begin(): no outside call while the transaction is open")
        if self._reading:
            raise EffectNotAllowed(f"ctx.{what} within ctx.reading(): leave the block first")

    def _open(self, what: str) -> Any:
        if self._planned is not None and not self._begun:
            raise EffectNotAllowed(f"ctx.{what} before ctx.begin(): effects=True has no transaction until then")
        return self._given(what)

    def _given(self, what: str) -> Any:
        if self._db is _NOTHING:
            raise ValueError(f"ctx.{what} needs a database: give context(...) the test's own session or connection")
        return self._db


class _AsyncRecorder(_Recorder):
    async def begin(self) -> Any:
        return super().begin()

    @asynccontextmanager
    async def _read(self) -> AsyncIterator[Any]:  # type: ignore[override]
        self._reading = True
        try:
            yield self._given("reading()")
        finally:
            self._reading = False

    async def once(
        self, name: str, call: Callable[[str], Awaitable[Any]], *, result: type[Any], key: str | None,
        if_unknown: Literal["hold", "repeat"] | Callable[[str], Any],
    ) -> Any:
        planned = self._plan(name)
        idempotency_key = self._key(name, key)
        if planned is not _NOTHING:
            return self._outcome(name, planned, result)
        try:
            value = await call(idempotency_key)
        except Exception as error:
            self.effects[name] = error
            raise
        return self._completed(name, value, result)


class _BatchRecorder(_Recorder):
    """Knows which message each event is emitted for."""

    def __init__(self, db: Any, events: Sequence[object], messages: Sequence[Message]) -> None:
        super().__init__(db, _MESSAGE, None)
        self._causes = Causes(events, messages)
        self._messages = messages

    def emit(self, event: object, arguments: dict[str, Any]) -> EventId:
        place, ordinal = self._causes.look_up(arguments.pop("cause"))
        message = self._messages[place]
        id = derived_id(message.source, message.id, CONSUMER, ordinal)
        made = draft(event, source=SOURCE, default_topic=TOPIC, derived_id=id, **arguments)
        self._causes.count(place)
        self.emitted.append(event)
        return made.id


class RecordingBatchContext(BatchContext[D]):
    """A ``BatchContext`` that writes down in ``emitted`` what the handler emits."""

    emitted: list[object]

    def __init__(self, recorder: _BatchRecorder, *, messages: list[Message], attempt: int) -> None:
        super().__init__(recorder, messages=messages, attempt=attempt)
        self.emitted = recorder.emitted


class AsyncRecordingBatchContext(AsyncBatchContext[D]):
    """``RecordingBatchContext`` for coroutines."""

    emitted: list[object]

    def __init__(self, recorder: _BatchRecorder, *, messages: list[Message], attempt: int) -> None:
        super().__init__(recorder, messages=messages, attempt=attempt)
        self.emitted = recorder.emitted


class RecordingContext(Context[D]):
    """A ``Context`` that writes down what the handler asks for: ``emitted`` holds the events as they were given,
    ``effects`` the results (or exceptions) of ``once`` by name."""

    emitted: list[object]
    effects: dict[str, object]

    def __init__(self, recorder: _Recorder, *, message: Message, attempt: int) -> None:
        super().__init__(recorder, message=message, attempt=attempt)
        self.emitted, self.effects = recorder.emitted, recorder.effects


class AsyncRecordingContext(AsyncContext[D]):
    """``RecordingContext`` for coroutines."""

    emitted: list[object]
    effects: dict[str, object]

    def __init__(self, recorder: _AsyncRecorder, *, message: Message, attempt: int) -> None:
        super().__init__(recorder, message=message, attempt=attempt)
        self.emitted, self.effects = recorder.emitted, recorder.effects


@overload
def context(
    *, attempt: int = 1, message: Message | None = None, effects: dict[str, object] | None = None
) -> RecordingContext[Any]: ...
@overload
def context(
    db: D, *, attempt: int = 1, message: Message | None = None, effects: dict[str, object] | None = None
) -> RecordingContext[D]: ...
def context(
    db: Any = _NOTHING, *, attempt: int = 1, message: Message | None = None, effects: dict[str, object] | None = None
) -> RecordingContext[Any]:
    """The context for one call of a synchronous handler. ``db`` is the test's own session or connection.

    ``effects`` makes it the context of an ``effects=True`` handler: the name of an effect, and what its ``once``
    returns, or the exception that it raises. An effect that is not named there really calls.
    """
    envelope = message if message is not None else _MESSAGE
    return RecordingContext(_Recorder(db, envelope, effects), message=envelope, attempt=attempt)


@overload
def async_context(
    *, attempt: int = 1, message: Message | None = None, effects: dict[str, object] | None = None
) -> AsyncRecordingContext[Any]: ...
@overload
def async_context(
    db: D, *, attempt: int = 1, message: Message | None = None, effects: dict[str, object] | None = None
) -> AsyncRecordingContext[D]: ...
def async_context(
    db: Any = _NOTHING, *, attempt: int = 1, message: Message | None = None, effects: dict[str, object] | None = None
) -> AsyncRecordingContext[Any]:
    """``context`` for a handler that is a coroutine."""
    envelope = message if message is not None else _MESSAGE
    return AsyncRecordingContext(_AsyncRecorder(db, envelope, effects), message=envelope, attempt=attempt)


@overload
def batch_context(
    *, events: Sequence[object], attempt: int = 1, messages: Sequence[Message] | None = None
) -> RecordingBatchContext[Any]: ...
@overload
def batch_context(
    db: D, *, events: Sequence[object], attempt: int = 1, messages: Sequence[Message] | None = None
) -> RecordingBatchContext[D]: ...
def batch_context(
    db: Any = _NOTHING, *, events: Sequence[object], attempt: int = 1, messages: Sequence[Message] | None = None
) -> RecordingBatchContext[Any]:
    """The context for one call of a synchronous batch handler with ``events``. ``db`` is the test's own session or
    connection; ``messages`` are the envelopes, one for each event."""
    envelopes = _envelopes(events, messages)
    return RecordingBatchContext(_BatchRecorder(db, events, envelopes), messages=envelopes, attempt=attempt)


@overload
def async_batch_context(
    *, events: Sequence[object], attempt: int = 1, messages: Sequence[Message] | None = None
) -> AsyncRecordingBatchContext[Any]: ...
@overload
def async_batch_context(
    db: D, *, events: Sequence[object], attempt: int = 1, messages: Sequence[Message] | None = None
) -> AsyncRecordingBatchContext[D]: ...
def async_batch_context(
    db: Any = _NOTHING, *, events: Sequence[object], attempt: int = 1, messages: Sequence[Message] | None = None
) -> AsyncRecordingBatchContext[Any]:
    """``batch_context`` for a handler that is a coroutine."""
    envelopes = _envelopes(events, messages)
    return AsyncRecordingBatchContext(_BatchRecorder(db, events, envelopes), messages=envelopes, attempt=attempt)


def _envelopes(events: Sequence[object], messages: Sequence[Message] | None) -> list[Message]:
    if messages is None:
        return [
            Message(id=f"00000000-0000-7000-8000-{number:012x}", source=SOURCE, type="unit.test")
            for number in range(1, len(events) + 1)
        ]
    if len(messages) != len(events):
        raise ValueError(f"{len(events)} events have {len(messages)} messages: give one for each")
    return list(messages)
