"""SQLite store: connections, and the step functions of each room. A group is imported when it is first used."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from bothends.stores.connection import AsyncConnection, Connection

if TYPE_CHECKING:
    from bothends.stores.sqlite.admin import SqliteAdmin
    from bothends.stores.sqlite.effects import SqliteEffects
    from bothends.stores.sqlite.inbox import SqliteInbox
    from bothends.stores.sqlite.outbox import SqliteOutbox
    from bothends.stores.sqlite.relay import SqliteRelay

__all__ = ["SqliteStore"]


class SqliteStore:
    """One SQLite database by URL; no I/O until a connection is asked for."""

    dialect = "sqlite"

    def __init__(self, url: str, schema: str = "bothends") -> None:
        self.url = url
        self.schema = schema

    def connect(self, *, name: str = "bothends", factory: type[Any] | None = None) -> Connection:
        from bothends.stores.sqlite.connection import connect

        options: dict[str, Any] = {"factory": factory} if factory else {}
        return connect(self.url, **options)

    async def connect_async(self, *, name: str = "bothends", factory: type[Any] | None = None) -> AsyncConnection:
        from bothends.stores.sqlite.connection import connect_async

        options: dict[str, Any] = {"factory": factory} if factory else {}
        return await connect_async(self.url, **options)

    @cached_property
    def outbox(self) -> SqliteOutbox:
        from bothends.stores.sqlite.outbox import SqliteOutbox

        return SqliteOutbox(self.schema)

    @cached_property
    def relay(self) -> SqliteRelay:
        from bothends.stores.sqlite.relay import SqliteRelay

        return SqliteRelay(self.schema)

    @cached_property
    def inbox(self) -> SqliteInbox:
        from bothends.stores.sqlite.inbox import SqliteInbox

        return SqliteInbox(self.schema)

    @cached_property
    def effects(self) -> SqliteEffects:
        from bothends.stores.sqlite.effects import SqliteEffects

        return SqliteEffects(self.schema)

    @cached_property
    def admin(self) -> SqliteAdmin:
        from bothends.stores.sqlite.admin import SqliteAdmin

        return SqliteAdmin(self.schema)
