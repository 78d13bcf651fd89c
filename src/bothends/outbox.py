"""Outbox: adds events in the transaction that the caller holds. It knows handles and drafts, no SQL."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypedDict, TypeVar

from bothends.drafts import Draft, draft
from bothends.errors import AddError, ConfigError, InvalidEvent
from bothends.events import UNSET, EventId, Unset
from bothends.stores.joining import Dialect, Handle, handle_of, join, join_async, tell_psycopg
from bothends.stores.steps import Sql, Steps

if TYPE_CHECKING:
    import sqlite3

    import aiosqlite
    import asyncpg
    import asyncpg.pool
    import psycopg
    from sqlalchemy import Connection as SAConnection
    from sqlalchemy.ext.asyncio import AsyncConnection as SAAsyncConnection
    from sqlalchemy.ext.asyncio import AsyncSession
    from sqlalchemy.orm import Session

    from bothends.contexts import AsyncContext, Context
    from bothends.settings import Source

__all__ = ["AddOptions", "AsyncTransaction", "Outbox", "SyncTransaction"]

T = TypeVar("T")

SyncTransaction: TypeAlias = (
    "Session | SAConnection | psycopg.Connection[Any] | sqlite3.Connection | Context[Any]"
)
# In two parts: type checkers read one string literal, not several joined ones.
AsyncpgHandle: TypeAlias = "asyncpg.Connection[Any] | asyncpg.pool.PoolConnectionProxy[Any]"
AsyncTransaction: TypeAlias = (
    "AsyncSession | SAAsyncConnection | psycopg.AsyncConnection[Any] | AsyncpgHandle | aiosqlite.Connection | AsyncContext[Any]"
)

_SESSIONS = ("session", "registry")


class AddOptions(TypedDict, total=False):
    """What ``add_many`` may be told of one event: the parameters of ``add``, without ``id``."""

    key: str | Unset | None
    type: str
    version: int
    topic: str
    subject: str
    correlation_id: str
    content_type: str
    headers: Sequence[tuple[str, bytes]]
    delay: timedelta
    deliver_at: datetime


class _Group(Protocol):
    """The outbox's step functions of one dialect."""

    def add(self, drafts: Sequence[Draft]) -> Steps[None]: ...


class Outbox:
    """One service's outbox. Made by ``Service``; it holds no connection.

    Where the setting ``relay_source`` is ``message``, what is added goes into PostgreSQL's write-ahead log and is stored
    nowhere. The setting is looked up once, at the first ``add``.

    After the commit of an SQLAlchemy session the relays of this machine are woken; other handles have no such hook, and
    the relay finds their events by polling.
    """

    def __init__(
        self, *, service: str, source: str, schema: str = "bothends", repeated_headers: bool = True,
        relay_source: Source | None = None,
    ) -> None:
        self.service = service
        self.source = source
        self.schema = schema
        self.repeated_headers = repeated_headers
        self._relay_source = relay_source
        self._by_message: bool | None = None
        """None: the setting has not been looked up."""
        self._kept = 0
        self._groups: dict[Dialect, _Group] = {}

    def __repr__(self) -> str:
        return f"Outbox({self.service!r}, source={self.source!r}, schema={self.schema!r})"

    def add(
        self, tx: SyncTransaction, event: object, *, key: str | Unset | None = UNSET, type: str | None = None,
        version: int | None = None, topic: str | None = None, id: str | None = None, subject: str | None = None,
        correlation_id: str | None = None, content_type: str | None = None, headers: Sequence[tuple[str, bytes]] = (),
        delay: timedelta | None = None, deliver_at: datetime | None = None,
    ) -> EventId:
        """Adds one event to the open transaction of ``tx``; it is published if that commits. Never commits.

        ``key``: the entity; order is kept per key. UNSET takes what the event declares, None means none. ``type`` is
        needed for dicts, lists and bytes. ``id`` is made here unless given. ``delay`` counts from now on by the
        database's clock, ``deliver_at`` has a time zone; both at most a hundred years ahead. A Session is flushed
        first, and the event goes where its default bind points.

        Returns the event's id. Raises before any SQL: TypeError (an asynchronous handle, no event), InvalidEvent,
        MissingKey; NoTransaction and UnsafeSavepoint; DuplicateEventId for an ``id`` that this source has, after which
        the transaction is usable [A4]; ConfigError where ``relay_source`` cannot be; and what the driver raises. With
        ``relay_source`` message ``id``, ``delay`` and ``deliver_at`` are an InvalidEvent.
        """
        handle = handle_of(tx, asynchronous=False)
        options = {
            "key": key, "type": type, "version": version, "topic": topic, "id": id, "subject": subject,
            "correlation_id": correlation_id, "content_type": content_type, "headers": headers, "delay": delay,
            "deliver_at": deliver_at,
        }
        handed_over: Any = tx
        if handle.name == "context":
            return handed_over._add(event, **options)  # type: ignore[no-any-return]
        made = self._draft(event, options)
        if handle.name in _SESSIONS:
            from bothends.integrations import sessions

            sessions.watch(handed_over() if handle.name == "registry" else handed_over, self.schema)
        if handle.name != "psycopg" or (statement := self._plain(made)) is None:
            join(tx, self._adding([made]))
        else:
            tell_psycopg(tx, statement)
        return made.id

    def add_async(
        self, tx: AsyncTransaction, event: object, *, key: str | Unset | None = UNSET, type: str | None = None,
        version: int | None = None, topic: str | None = None, id: str | None = None, subject: str | None = None,
        correlation_id: str | None = None, content_type: str | None = None, headers: Sequence[tuple[str, bytes]] = (),
        delay: timedelta | None = None, deliver_at: datetime | None = None,
    ) -> Coroutine[Any, Any, EventId]:
        """``add`` for asynchronous handles. The event is checked and encoded at the call; the row is written when the
        coroutine is awaited. On an AsyncSession a commit before that raises EventNotAwaited.
        """
        handle = handle_of(tx, asynchronous=True)
        options = {
            "key": key, "type": type, "version": version, "topic": topic, "id": id, "subject": subject,
            "correlation_id": correlation_id, "content_type": content_type, "headers": headers, "delay": delay,
            "deliver_at": deliver_at,
        }
        if handle.name == "context":
            handed_over: Any = tx
            return _already(handed_over._add(event, **options))
        made = self._draft(event, options)
        return self._write(tx, handle, [made], made.id)

    def add_many(self, tx: SyncTransaction, events: Iterable[object]) -> list[EventId]:
        """``add`` of many, in their order, by one statement for each 500. Of ``events`` each is an event, or a pair of an
        event and its options: ``(event, {"key": "17"})`` (``AddOptions``). All are checked before the first is
        written; a handler's ctx has emitted those in front of a wrong one.

        Returns the ids. Raises what ``add`` raises, with a note that says which event it is; InvalidEvent for the option
        ``id``: ids are made here.
        """
        handle = handle_of(tx, asynchronous=False)
        handed_over: Any = tx
        if handle.name == "context":
            return [handed_over._add(event, **options) for event, options in _pairs(events)]
        made = self._drafts(events)
        if not made:
            return []
        if handle.name in _SESSIONS:
            from bothends.integrations import sessions

            sessions.watch(handed_over() if handle.name == "registry" else handed_over, self.schema)
        join(tx, self._adding(made))
        return [one.id for one in made]

    def add_many_async(self, tx: AsyncTransaction, events: Iterable[object]) -> Coroutine[Any, Any, list[EventId]]:
        """``add_many`` for asynchronous handles, with the promises of ``add_async``."""
        handle = handle_of(tx, asynchronous=True)
        if handle.name == "context":
            handed_over: Any = tx
            return _already([handed_over._add(event, **options) for event, options in _pairs(events)])
        made = self._drafts(events)
        ids = [one.id for one in made]
        return self._write(tx, handle, made, ids) if made else _already(ids)

    def _drafts(self, events: Iterable[object]) -> list[Draft]:
        made: list[Draft] = []
        for event, options in _pairs(events):
            try:
                made.append(self._draft(event, options))
            except (AddError, TypeError) as error:
                error.add_note(f"it is number {len(made)} (from 0) of add_many; nothing was written")
                raise
        return made

    def _draft(self, event: object, options: dict[str, Any]) -> Draft:
        made = draft(
            event, source=self.source, default_topic=f"{self.service}.events", repeated_headers=self.repeated_headers,
            **options,
        )
        if self._by_message is not False:
            self.check(made)
        return made

    def tell(self, relay_source: Source) -> None:
        """The setting, from a process that has looked it up together with its flags."""
        self._by_message = relay_source == "message"
        self._groups = {}

    def check(self, made: Draft) -> None:
        """Raises InvalidEvent where the event needs a table (``id``, ``delay``, ``deliver_at``) and there is none."""
        if self._by_message is None:
            from bothends.config import relay_source

            self.tell(relay_source(self.service, self._relay_source))
        if self._by_message:
            from bothends.stores.postgresql.messages import check

            check(made)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """For tests: within, what would be a message becomes a row, on any database; the same is refused as ever."""
        self._kept, self._groups = self._kept + 1, {}
        try:
            yield
        finally:
            self._kept, self._groups = self._kept - 1, {}

    def _plain(self, made: Draft) -> Sql | None:
        """The statement of an event that PostgreSQL takes by one."""
        group: Any = self._group("postgresql")
        return group.plain(made)  # type: ignore[no-any-return]

    def _adding(self, made: Sequence[Draft]) -> Callable[[Dialect], Steps[None]]:
        return lambda dialect: self._group(dialect).add(made)

    def _group(self, dialect: Dialect) -> _Group:
        if dialect not in self._groups:
            by_message = bool(self._by_message) and not self._kept
            self._groups[dialect] = _import_group(dialect, by_message)(self.schema)
        return self._groups[dialect]

    def _write(self, tx: Any, handle: Handle, made: Sequence[Draft], ids: T) -> Coroutine[Any, Any, T]:
        started = None
        if handle.name in _SESSIONS:
            from bothends.integrations import sessions

            session = (tx() if handle.name == "registry" else tx).sync_session
            sessions.watch(session, self.schema)
            started = sessions.expect(session, made[0].type)

        async def write() -> T:
            if started is not None:
                started()
            await join_async(tx, self._adding(made))
            return ids

        return write()


def _import_group(dialect: Dialect, by_message: bool) -> Callable[[str], _Group]:
    if by_message:
        if dialect != "postgresql":
            raise ConfigError(
                "relay_source is message, but only PostgreSQL has a log that events can go into: set it to auto, or use a "
                "PostgreSQL database"
            )
        from bothends.stores.postgresql.messages import PostgresqlMessages

        return PostgresqlMessages
    if dialect == "sqlite":
        from bothends.stores.sqlite.outbox import SqliteOutbox

        return SqliteOutbox
    from bothends.stores.postgresql.outbox import PostgresqlOutbox

    return PostgresqlOutbox


async def _already(ids: T) -> T:
    return ids


def _pairs(events: Iterable[object]) -> Iterator[tuple[object, dict[str, Any]]]:
    for number, one in enumerate(events):
        if one.__class__ is not tuple:
            yield one, {}
            continue
        pair: Any = one
        if len(pair) != 2 or not isinstance(pair[1], Mapping):
            raise TypeError(f"add_many: number {number} (from 0) is a tuple, but no pair (event, options)")
        if unknown := sorted(set(pair[1]) - AddOptions.__annotations__.keys()):
            what = "makes the ids itself; use add for an event with an id of its own" if unknown == ["id"] else (
                f"knows no option {unknown[0]!r}; there are {', '.join(AddOptions.__annotations__)}")
            raise InvalidEvent(f"add_many, number {number} (from 0): it {what}")
        yield pair[0], dict(pair[1])
