"""Service: what a user declares. No I/O here, and no setting is read before the first I/O."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, get_origin, overload

from bothends.core.retry import Retry
from bothends.errors import ConfigError
from bothends.events import EventType, describe
from bothends.foreign import ForeignJson
from bothends.outbox import Outbox
from bothends.settings import Source

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession
    from sqlalchemy.orm import Session

    from bothends.contexts import AsyncBatchContext, AsyncContext, BatchContext, Context

    B = TypeVar("B", bound="BatchContext[Any] | AsyncBatchContext[Any]")
    C = TypeVar("C", bound="Context[Any] | AsyncContext[Any]")

__all__ = ["PUBLISH_RETRY", "BatchHandlerDecorator", "Consumer", "Handler", "HandlerDecorator", "Service"]

E = TypeVar("E")
R = TypeVar("R")

PUBLISH_RETRY = Retry(attempts=10, then="hold")
"""The outbox's own policy: what becomes of an event that the broker refuses."""

_SERVICE_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")
_CONSUMER_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,99}")
_PREFIX_MAX = 20


@dataclass(frozen=True, slots=True)
class Handler:
    """One handler of a consumer."""

    event: EventType
    function: Callable[..., Any]
    is_async: bool
    takes_context: bool
    effects: bool
    batch: bool = False
    """It gets a list of events."""

    @property
    def name(self) -> str:
        return f"{self.function.__module__}.{self.function.__qualname__}"


_CONTEXTS = {"Context": False, "AsyncContext": False, "BatchContext": True, "AsyncBatchContext": True}


def _named(annotation: object) -> str:
    """The class that an annotation names, also where annotations are texts."""
    named = annotation if isinstance(annotation, str) else getattr(get_origin(annotation) or annotation, "__name__", "")
    return named.partition("[")[0].rpartition(".")[2]


class HandlerDecorator(Generic[E]):
    """What ``consumer.handle(Event)`` returns. The function itself comes back unchanged, so a unit test can call it."""

    def __init__(self, consumer: Consumer, event: type[E], effects: bool, batch: bool = False) -> None:
        self._consumer, self._event, self._effects, self._batch = consumer, event, effects, batch

    if TYPE_CHECKING:

        @overload
        def __call__(self, fn: Callable[[E, C], R], /) -> Callable[[E, C], R]: ...
        @overload
        def __call__(self, fn: Callable[[E], R], /) -> Callable[[E], R]: ...

    def __call__(self, fn: Callable[..., Any], /) -> Callable[..., Any]:
        parameters = [
            p for p in inspect.signature(fn).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        required = [p for p in parameters if p.default is p.empty]
        if not 1 <= len(parameters) or len(required) > 2:
            event = "events" if self._batch else "event"
            raise ConfigError(f"{fn.__qualname__}: a handler takes ({event}) or ({event}, ctx)")
        if _named(parameters[0].annotation) in _CONTEXTS:
            raise ConfigError(f"{fn.__qualname__}: the event comes first; write def {fn.__name__}(event, ctx)")
        if len(parameters) > 1 and _CONTEXTS.get(name := _named(parameters[1].annotation), self._batch) != self._batch:
            needed = name.replace("Batch", "") if not self._batch else name.replace("Context", "BatchContext")
            raise ConfigError(f"{fn.__qualname__}: with batch={self._batch} its ctx is a {needed}, not a {name}")
        if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
            raise ConfigError(
                f"{fn.__qualname__} has a yield in it: to call it runs nothing of it; take the yield out, and use ctx.emit for "
                f"events"
            )
        handler = Handler(
            event=describe(self._event), function=fn, is_async=inspect.iscoroutinefunction(fn),
            takes_context=len(parameters) > 1, effects=self._effects, batch=self._batch,
        )
        if self._effects and not handler.takes_context:
            raise ConfigError(f"{fn.__qualname__}: effects=True needs (event, ctx): it calls ctx.begin() itself")
        self._consumer._register(handler)
        return fn


class BatchHandlerDecorator(HandlerDecorator[E]):
    """What ``consumer.handle(Event, batch=True)`` returns."""

    if TYPE_CHECKING:

        @overload  # type: ignore[override]
        def __call__(self, fn: Callable[[list[E], B], R], /) -> Callable[[list[E], B], R]: ...
        @overload
        def __call__(self, fn: Callable[[list[E]], R], /) -> Callable[[list[E]], R]: ...
        def __call__(self, fn: Callable[..., Any], /) -> Callable[..., Any]: ...


@dataclass(eq=False)
class Consumer:
    """One subscription of a service, with as many event types as it has handlers. Made by ``Service.consumer``."""

    service: Service = field(repr=False)
    short_name: str
    declared_topics: tuple[str, ...] | None
    owner: str | None
    retry: Retry
    start: Literal["earliest", "latest"] | datetime
    timeout_s: float
    format: ForeignJson | None
    aliases: tuple[str, ...]
    concurrency: int | None
    batch_max: int
    at_most_once: bool
    inbox: bool
    inbox_keep: timedelta | Literal["forever"] | None
    schema_patience: timedelta
    handlers: dict[str, Handler] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """``<service>.<consumer>``: the name of the group and of the inbox, before any prefix of the environment."""
        return f"{self.service.name}.{self.short_name}"

    @property
    def is_async(self) -> bool:
        return any(h.is_async for h in self.handlers.values())

    @property
    def has_batch_handlers(self) -> bool:
        return any(h.batch for h in self.handlers.values())

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that it reads. Raises ConfigError where an event type has none [A24]."""
        if self.declared_topics is not None:
            return self.declared_topics
        found: list[str] = []
        for handler in self.handlers.values():
            if handler.event.topic is None:
                raise ConfigError(
                    f"consumer {self.name}: event {handler.event.type!r} declares no topic; "
                    f"give @event(topic=...) or consumer(topic=...)"
                )
            if handler.event.topic not in found:
                found.append(handler.event.topic)
        return tuple(found)

    @overload
    def handle(self, event: type[E], *, effects: bool = False, batch: Literal[False] = False) -> HandlerDecorator[E]: ...
    @overload
    def handle(self, event: type[E], *, batch: Literal[True]) -> BatchHandlerDecorator[E]: ...
    def handle(self, event: type[E], *, effects: bool = False, batch: bool = False) -> HandlerDecorator[E]:
        """Registers a handler for one event type. ``effects=True``: no transaction until the handler calls
        ``ctx.begin()``; before that it may use ``ctx.once`` and ``ctx.reading()``. ``batch=True``: the handler gets a list of
        1 to ``batch_max`` events, none of them a duplicate, in order for each key, in one transaction; where it fails, each
        is run in a call of its own, and only what fails then is charged.

        Raises ConfigError for a second handler of the same type, for sync and async handlers in one consumer, for
        ``effects`` and ``batch`` together, and for a class without ``@event``.
        """
        given: object = event
        if not isinstance(given, type):
            named = getattr(event, "__qualname__", repr(event))
            raise ConfigError(f"{named}: consumer.handle takes the event's class; write @{self.short_name}.handle(TheEvent)")
        if effects and batch:
            raise ConfigError(
                f"{self.name}: effects=True and batch=True exclude each other: an outside call is kept per message; make it in "
                f"a handler of one event"
            )
        return (BatchHandlerDecorator if batch else HandlerDecorator)(self, event, effects, batch)

    def _register(self, handler: Handler) -> None:
        if handler.event.type in self.handlers:
            raise ConfigError(f"consumer {self.name} has two handlers for {handler.event.type!r}")
        if self.handlers and handler.is_async != self.is_async:
            raise ConfigError(f"consumer {self.name}: its handlers are all sync or all async; make a second consumer")
        if handler.effects and self.at_most_once:
            raise ConfigError(f"consumer {self.name}: at_most_once and effects=True exclude each other")
        self.handlers[handler.event.type] = handler


class Service:
    """One service: its outbox, and its consumers.

    ``database`` and ``broker`` are URLs; the environment wins over them (``bothends config`` shows which).
    ``source`` is the CloudEvents source of its events, by default the name. ``relay_source`` is the setting of that
    name: ``auto``, ``poll``, ``wal`` or ``message``. ``session_factory`` is called with ``bind=`` the worker's own
    connection, once per message. ``publish`` is the policy for events that the broker refuses. ``include`` names
    the modules that register handlers.

    Raises ConfigError for a name that is not ``[a-z][a-z0-9-]*`` (63 characters at most).
    """

    outbox: Outbox

    def __init__(
        self,
        name: str,
        *,
        database: str | None = None,
        broker: str | None = None,
        source: str | None = None,
        relay_source: Source | None = None,
        schema: str = "bothends",
        publish: Retry = PUBLISH_RETRY,
        session_factory: Callable[..., Session] | Callable[..., AsyncSession] | None = None,
        include: Sequence[str] = (),
        lifespan: Callable[[], AbstractAsyncContextManager[Any]] | None = None,
        middleware: Sequence[Callable[..., Any]] = (),
        repeated_headers: bool = True,
    ) -> None:
        if not _SERVICE_NAME.fullmatch(name):
            raise ConfigError(f"a service's name matches [a-z][a-z0-9-]* and has at most 63 characters, not {name!r}")
        self.name = name
        self.database = database
        self.broker = broker
        self.source = source if source is not None else name
        self.relay_source = relay_source
        self.schema = schema
        self.publish = publish
        self.session_factory = session_factory
        self.include = tuple(include)
        self.lifespan = lifespan
        self.middleware = tuple(middleware)
        self.consumers: dict[str, Consumer] = {}
        self.outbox = Outbox(
            service=name, source=self.source, schema=schema, repeated_headers=repeated_headers,
            relay_source=relay_source,
        )

    def __repr__(self) -> str:
        return f"Service({self.name!r})"

    def consumer(
        self,
        name: str,
        *,
        topic: str | Sequence[str] | None = None,
        owner: str | None = None,
        retry: Retry = Retry(),
        start: Literal["earliest", "latest"] | datetime = "earliest",
        timeout_s: float = 30.0,
        format: ForeignJson | None = None,
        aliases: Sequence[str] = (),
        concurrency: int | None = None,
        batch_max: int = 100,
        at_most_once: bool = False,
        inbox: bool = True,
        inbox_keep: timedelta | Literal["forever"] | None = None,
        schema_patience: timedelta = timedelta(hours=24),
    ) -> Consumer:
        """Declares one subscription. ``timeout_s`` bounds one handler run; ``concurrency`` is the number of messages
        (of different keys) in hand at once in one process; ``batch_max`` (1 to 10,000) bounds one transaction. ``aliases``
        are former names, whose position and inbox it takes over: ``"stock"``, or with service and prefix
        ``"eu-inventory.stock"``.

        Raises ConfigError for a name that is taken or not made of letters, digits, ``.``, ``_`` and ``-``, for a naive
        ``start``, and for limits out of range.
        """
        if not _CONSUMER_NAME.fullmatch(name):
            raise ConfigError(f"a consumer's name is 1 to 100 letters, digits, '.', '_' or '-', not {name!r}")
        if name in self.consumers:
            raise ConfigError(f"service {self.name} has a consumer {name!r} already; a second needs a name of its own")
        if isinstance(start, datetime) and start.tzinfo is None:
            raise ConfigError(f"consumer {name}: start={start!r} has no time zone")
        if not 1 <= batch_max <= 10_000 or not 0 < timeout_s <= 86_400 or (concurrency is not None and concurrency < 1):
            raise ConfigError(f"consumer {name}: batch_max 1..10000, timeout_s up to 86400, concurrency at least 1")
        consumer = Consumer(
            service=self, short_name=name, declared_topics=(topic,) if isinstance(topic, str) else
            tuple(topic) if topic is not None else None, owner=owner, retry=retry, start=start, timeout_s=timeout_s,
            format=format, aliases=tuple(aliases), concurrency=concurrency, batch_max=batch_max,
            at_most_once=at_most_once, inbox=inbox, inbox_keep=inbox_keep, schema_patience=schema_patience,
        )
        self.consumers[name] = consumer
        return consumer

    def running(self, *, relay: bool = True, workers: bool = True) -> AbstractAsyncContextManager[None]:
        """Relay and workers inside this process: ready on entry, drained on exit, no signals touched."""
        from bothends.operating.embedding import running

        return running(self, relay=relay, workers=workers)
