"""Sessions: the user's session factory over the worker's own connection [A10].

SQLAlchemy is given our driver's connection, in whose transaction it then finds itself. A session joins it, so its ``commit``
only flushes; ours is the one that commits.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bothends.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from bothends.service import Consumer

__all__ = ["AsyncSessions", "Sessions", "check_factory"]

_URLS = {"postgresql": "postgresql+psycopg://", "sqlite": "sqlite://"}
_ASYNC_URLS = {"postgresql": "postgresql+psycopg://", "sqlite": "sqlite+aiosqlite://"}


def check_factory(consumer: Consumer) -> None:
    """Raises ConfigError where the factory does not fit the handlers, or binds sessions to several databases."""
    factory = consumer.service.session_factory
    if factory is None:
        return
    try:
        from sqlalchemy.ext.asyncio import AsyncSession
    except ImportError as error:  # pragma: no cover - the extras are installed in our tests
        raise MissingExtra("session_factory=", "sqlalchemy") from error
    options = getattr(factory, "kw", {})
    if options.get("binds"):
        raise ConfigError(
            f"service {consumer.service.name}: session_factory has binds=, several databases; a handler's effects must be in "
            f"the database of its inbox: give a factory without binds="
        )
    made = factory()
    is_async = isinstance(made, AsyncSession)
    if is_async and not consumer.is_async:
        raise ConfigError(f"consumer {consumer.name}: its handlers are not coroutines; give the service a sessionmaker()")
    if not is_async and consumer.is_async:
        raise ConfigError(f"consumer {consumer.name}: its handlers are coroutines; give the service an async_sessionmaker()")


class _Warned:
    """``Session.commit()`` in a handler: said once per consumer, since it works but does not do what it says."""

    def __init__(self, consumer: str) -> None:
        self.consumer = consumer
        self.said = False

    def watch(self, session: Any) -> None:
        if self.said:
            return
        from sqlalchemy import event

        event.listen(session, "before_commit", self._on_commit)

    def _on_commit(self, session: Any) -> None:
        if not self.said and session.info.get("bothends_handler", False):
            self.said = True
            warnings.warn(
                f"consumer {self.consumer}: a handler calls session.commit(), which only flushes here: the worker commits "
                f"after the handler has returned; remove the call", RuntimeWarning, stacklevel=2,
            )


class Sessions:
    """Sessions over one synchronous connection. ``begin`` and ``end`` follow the worker's transactions."""

    def __init__(self, consumer: str, factory: Callable[..., Any], dialect: str, driver: Any) -> None:
        from sqlalchemy import StaticPool, create_engine

        self._factory = factory
        self._engine = create_engine(_URLS[dialect], creator=lambda: driver, poolclass=StaticPool)
        self._engine.connect().close()  # asks the server what it is, outside of any transaction
        self._connection: Any = None
        self._warned = _Warned(consumer)

    def make(self) -> Any:
        """A session in the transaction that the worker has begun."""
        if self._connection is None:
            self._connection = self._engine.connect()
            self._connection.begin()
        session = self._factory(bind=self._connection)
        session.info["bothends_handler"] = True
        self._warned.watch(session)
        return session

    def end(self) -> None:
        """The worker's transaction is over."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()


class AsyncSessions:
    """``Sessions`` over an asynchronous connection."""

    def __init__(self, consumer: str, factory: Callable[..., Any], dialect: str, driver: Any) -> None:
        from sqlalchemy import StaticPool
        from sqlalchemy.ext.asyncio import create_async_engine

        async def creator() -> Any:
            return driver

        self._factory = factory
        self._engine = create_async_engine(_ASYNC_URLS[dialect], async_creator=creator, poolclass=StaticPool)
        self._connection: Any = None
        self._warned = _Warned(consumer)

    async def prepare(self) -> None:
        """Asks the server what it is, outside of any transaction."""
        await (await self._engine.connect()).close()

    async def join(self) -> None:
        """To be called after the worker's BEGIN, before ``make``."""
        if self._connection is None:
            self._connection = await self._engine.connect()
            await self._connection.begin()

    def make(self) -> Any:
        session = self._factory(bind=self._connection)
        session.sync_session.info["bothends_handler"] = True
        self._warned.watch(session.sync_session)
        return session

    async def end(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.close()
