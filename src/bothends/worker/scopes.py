"""Scopes: one run of one message, as its context sees it. Ordinary handlers get the open transaction; effects handlers
begin it themselves, and may act outside before.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bothends.contexts import Causes, not_allowed
from bothends.drafts import Draft, draft
from bothends.effects import Effects
from bothends.errors import ConfigError, EffectNotAllowed
from bothends.ids import derived_id
from bothends.stores.steps import Sql

if TYPE_CHECKING:
    from bothends.worker.deliveries import Delivery
    from bothends.worker.engine import Plan

__all__ = ["AsyncEffectsScope", "BatchScope", "EffectsScope", "RunScope", "Tools"]


@dataclass(frozen=True, slots=True)
class Tools:
    """What a seat gives to its scopes. On an asynchronous seat ``join`` and ``leave`` are coroutine functions."""

    plan: Plan
    connection: Any
    """Ours; its ``driver`` is the handler's."""
    session: Callable[[], Any] | None
    """Makes a session in the open transaction; None without a factory."""
    join: Callable[[], Any]
    """A transaction has begun: sessions may be made in it."""
    leave: Callable[[], Any]
    """The transaction is over."""


class RunScope:
    """The scope of an ordinary handler."""

    def __init__(self, tools: Tools, delivery: Delivery) -> None:
        self._tools = tools
        self._delivery = delivery
        self._session: Any = None
        self.drafts: list[Draft] = []

    def session(self) -> Any:
        if self._session is None:
            if self._tools.session is None:
                raise ConfigError("ctx.session needs Service(session_factory=sessionmaker()); without one use ctx.connection")
            self._session = self._tools.session()
        return self._session

    @property
    def open_session(self) -> Any:
        """The session, if the handler has asked for it."""
        return self._session

    def connection(self) -> Any:
        return self._tools.connection.driver

    def begin(self) -> Any:
        raise not_allowed("begin()")

    def reading(self) -> Any:
        raise not_allowed("reading()")

    def once(self, name: str, *_: Any, **__: Any) -> Any:
        raise not_allowed(f"once({name!r})")

    def emit(self, event: object, arguments: dict[str, Any]) -> str:
        return self._emit(self._delivery, len(self.drafts), event, arguments)

    def _emit(self, delivery: Delivery, ordinal: int, event: object, arguments: dict[str, Any]) -> str:
        message, consumer = delivery.message, self._tools.plan.consumer
        assert message is not None
        if arguments.get("correlation_id") is None:
            arguments["correlation_id"] = message.correlation_id or message.id
        outbox = consumer.service.outbox
        made = draft(
            event, source=outbox.source, default_topic=f"{consumer.service.name}.events",
            derived_id=derived_id(message.source, message.id, consumer.name, ordinal), causation_id=message.id,
            traceparent=message.traceparent, repeated_headers=outbox.repeated_headers, **arguments,
        )
        outbox.check(made)
        self.drafts.append(made)
        return made.id

    def given(self) -> Any:
        """What ``begin`` and ``reading`` give: a session where the service has a factory, else the connection."""
        return self.session() if self._tools.session is not None else self._tools.connection.driver

    @property
    def begun(self) -> bool:
        return True

    def renewals(self) -> Any:
        """Statements that keep an effect's lease alive; nothing here."""
        return None


class BatchScope(RunScope):
    """The scope of a batch handler: each event that it emits belongs to one of the messages, whichever it is called with."""

    def __init__(self, tools: Tools, deliveries: Sequence[Delivery]) -> None:
        super().__init__(tools, deliveries[0])
        self._causes = Causes([delivery.event for delivery in deliveries], [delivery.message for delivery in deliveries])
        self._deliveries = deliveries

    def emit(self, event: object, arguments: dict[str, Any]) -> str:
        place, ordinal = self._causes.look_up(arguments.pop("cause"))
        id = self._emit(self._deliveries[place], ordinal, event, arguments)
        self._causes.count(place)
        return id


class _Effects(RunScope):
    """What both kinds of effects scopes share."""

    def __init__(self, tools: Tools, delivery: Delivery, enter: Callable[[], Any]) -> None:
        super().__init__(tools, delivery)
        self._enter = enter
        self._begun = False
        self._reading = False
        plan = tools.plan
        self._effects = Effects(
            plan.store.effects, consumer=plan.number, consumer_name=plan.consumer.name, source=delivery.name[0],
            message_id=delivery.name[1], worker=plan.worker, lease_s=plan.lease_s,
        )

    @property
    def begun(self) -> bool:
        return self._begun

    def session(self) -> Any:
        self._only_open("session")
        return super().session()

    def connection(self) -> Any:
        self._only_open("connection")
        return super().connection()

    def renewals(self) -> Any:
        return None if self._begun else self._effects.renewals()

    def _only_open(self, what: str) -> None:
        if not self._begun:
            raise EffectNotAllowed(f"ctx.{what} before ctx.begin(): there is no transaction yet; read with ctx.reading()")

    def _only_before(self, what: str) -> None:
        if self._begun:
            raise EffectNotAllowed(f"ctx.{what} after ctx.begin(): a transaction is open, and nobody may be waited for in it")
        if self._reading:
            raise EffectNotAllowed(f"ctx.{what} within ctx.reading(): leave the block first")

    def _reading_begins(self) -> list[Sql]:
        if self._tools.plan.store.dialect == "postgresql":
            return [Sql("begin read only", rows=False)]
        return [Sql("pragma query_only = on", rows=False), Sql("begin deferred", rows=False)]

    def _reading_ends(self) -> list[Sql]:
        return [] if self._tools.plan.store.dialect == "postgresql" else [Sql("pragma query_only = off", rows=False)]

    def given(self) -> Any:
        return RunScope.session(self) if self._tools.session is not None else self._tools.connection.driver


class EffectsScope(_Effects):
    """The scope of a synchronous ``effects=True`` handler."""

    def begin(self) -> Any:
        self._only_before("begin()")
        self._enter()
        self._begun = True
        return self.given()

    @contextmanager
    def _read(self) -> Iterator[Any]:
        connection = self._tools.connection
        for statement in self._reading_begins():
            connection.execute(statement)
        self._reading = True
        try:
            self._tools.join()
            yield self.given()
        finally:
            self._reading = False
            session, self._session = self._session, None
            if session is not None:
                session.close()
            connection.rollback()
            self._tools.leave()
            for statement in self._reading_ends():
                connection.execute(statement)

    def reading(self) -> Any:
        self._only_before("reading()")
        return self._read()

    def once(self, name: str, call: Any, *, result: Any, key: Any, if_unknown: Any) -> Any:
        self._only_before(f"once({name!r})")
        return self._effects.once(
            self._tools.connection, name, call, result=result, key=key, if_unknown=if_unknown,
        )


class AsyncEffectsScope(_Effects):
    """The scope of an asynchronous ``effects=True`` handler."""

    async def begin(self) -> Any:
        self._only_before("begin()")
        await self._enter()
        self._begun = True
        return self.given()

    @asynccontextmanager
    async def _read(self) -> AsyncIterator[Any]:
        connection = self._tools.connection
        for statement in self._reading_begins():
            await connection.execute(statement)
        self._reading = True
        try:
            await self._tools.join()
            yield self.given()
        finally:
            self._reading = False
            session, self._session = self._session, None
            if session is not None:
                await session.close()
            await connection.rollback()
            await self._tools.leave()
            for statement in self._reading_ends():
                await connection.execute(statement)

    def reading(self) -> Any:
        self._only_before("reading()")
        return self._read()

    async def once(self, name: str, call: Any, *, result: Any, key: Any, if_unknown: Any) -> Any:
        self._only_before(f"once({name!r})")
        return await self._effects.once_async(
            self._tools.connection, name, call, result=result, key=key, if_unknown=if_unknown,
        )
