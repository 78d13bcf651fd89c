"""Databases: one package per dialect; what they share is in this folder. ``open_store(url)`` does no I/O."""

from __future__ import annotations

from typing import Any, Protocol

from bothends.errors import ConfigError
from bothends.stores.connection import AsyncConnection, Connection

__all__ = ["Store", "open_store"]


class Store(Protocol):
    """One database with our tables in it. The groups hold step functions (``stores.steps``)."""

    url: str
    schema: str
    dialect: str

    @property
    def outbox(self) -> Any: ...

    @property
    def relay(self) -> Any: ...

    @property
    def inbox(self) -> Any: ...

    @property
    def effects(self) -> Any: ...

    @property
    def admin(self) -> Any: ...

    def connect(self, *, name: str = ..., factory: type[Any] | None = None) -> Connection:
        """A connection of our own. Raises StoreUnavailable."""
        ...

    async def connect_async(self, *, name: str = ..., factory: type[Any] | None = None) -> AsyncConnection: ...


def open_store(url: str, schema: str = "bothends") -> Store:
    """The store behind ``url``. Raises ConfigError for a scheme that is not known, and for a replication connection."""
    scheme = url.partition("://")[0].partition("+")[0]
    if scheme in ("postgresql", "postgres"):
        from bothends.stores.postgresql import PostgresqlStore

        return PostgresqlStore(url, schema)
    if scheme == "sqlite":
        from bothends.stores.sqlite import SqliteStore

        return SqliteStore(url, schema)
    raise ConfigError(f"no store for {scheme}://; give postgresql://... or sqlite:///path")
