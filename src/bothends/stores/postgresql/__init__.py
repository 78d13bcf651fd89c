"""PostgreSQL store: connections, and the step functions of each room. A group is imported when it is first used."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from bothends.errors import ConfigError
from bothends.stores.connection import AsyncConnection, Connection
from bothends.urls import mask, parts_of

if TYPE_CHECKING:
    from bothends.stores.postgresql.admin import PostgresqlAdmin
    from bothends.stores.postgresql.effects import PostgresqlEffects
    from bothends.stores.postgresql.inbox import PostgresqlInbox
    from bothends.stores.postgresql.messages import PostgresqlMessages
    from bothends.stores.postgresql.outbox import PostgresqlOutbox
    from bothends.stores.postgresql.relay import PostgresqlRelay
    from bothends.stores.postgresql.replication import Replication

__all__ = ["PostgresqlStore"]


class PostgresqlStore:
    """One PostgreSQL database by URL; no I/O until a connection is asked for."""

    dialect = "postgresql"

    def __init__(self, url: str, schema: str = "bothends") -> None:
        """Raises ConfigError for a URL that asks for a replication connection."""
        if "replication" in dict(parse_qsl(parts_of(url)[3], keep_blank_values=True)):
            raise ConfigError(
                f"the database URL {mask(url)!r} has the parameter replication=, with which PostgreSQL takes no ordinary "
                "statements; leave it out: relays open their replication connection by themselves, where relay_source says so")
        self.url = url
        self.schema = schema

    def connect(self, *, name: str = "bothends", factory: type[Any] | None = None) -> Connection:
        from bothends.stores.postgresql.connection import connect

        options: dict[str, Any] = {"factory": factory} if factory else {}
        return connect(self.url, name=name, **options)

    async def connect_async(self, *, name: str = "bothends", factory: type[Any] | None = None) -> AsyncConnection:
        from bothends.stores.postgresql.connection import connect_async

        options: dict[str, Any] = {"factory": factory} if factory else {}
        return await connect_async(self.url, name=name, **options)

    def replicate(self, *, name: str) -> Replication:
        """A replication connection. Raises ReplicationFailed."""
        from bothends.stores.postgresql.replication import Replication

        return Replication(self.url, name)

    @cached_property
    def outbox(self) -> PostgresqlOutbox:
        from bothends.stores.postgresql.outbox import PostgresqlOutbox

        return PostgresqlOutbox(self.schema)

    @cached_property
    def messages(self) -> PostgresqlMessages:
        """What takes the place of ``outbox`` where ``relay_source`` is ``message``."""
        from bothends.stores.postgresql.messages import PostgresqlMessages

        return PostgresqlMessages(self.schema)

    @cached_property
    def relay(self) -> PostgresqlRelay:
        from bothends.stores.postgresql.relay import PostgresqlRelay

        return PostgresqlRelay(self.schema)

    @cached_property
    def inbox(self) -> PostgresqlInbox:
        from bothends.stores.postgresql.inbox import PostgresqlInbox

        return PostgresqlInbox(self.schema)

    @cached_property
    def effects(self) -> PostgresqlEffects:
        from bothends.stores.postgresql.effects import PostgresqlEffects

        return PostgresqlEffects(self.schema)

    @cached_property
    def admin(self) -> PostgresqlAdmin:
        from bothends.stores.postgresql.admin import PostgresqlAdmin

        return PostgresqlAdmin(self.schema)
