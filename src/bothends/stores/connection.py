"""Connection: the seam between our step functions and one driver's connection that is ours (not the caller's)."""

from __future__ import annotations

from typing import Any, Protocol

from bothends.errors import Blame, BothendsError
from bothends.stores.steps import Result, Sql

__all__ = ["AsyncConnection", "CommitRefused", "Connection"]


class CommitRefused(BothendsError):
    """COMMIT did not commit: the transaction had failed before, or it is not the one that was begun. Nothing may be
    acknowledged."""

    blame = Blame.HANDLER


class Connection(Protocol):
    """Autocommit outside ``begin`` .. ``commit``/``rollback``. One thread at a time, except ``cancel``."""

    driver: Any
    """The driver's own connection: what handlers get."""

    def execute(self, statement: Sql, /) -> Result: ...

    def begin(self) -> None: ...

    def begin_with(self, first: Sql, /) -> Result:
        """``begin`` and then ``execute``, in one round trip if the driver can."""
        ...

    def commit_with(self, gate: Sql, /) -> None:
        """``execute`` and then ``commit``, in one round trip if the driver can. Where ``gate`` fails nothing is committed."""
        ...

    def commit(self) -> None:
        """Raises ``CommitRefused`` unless the database has answered that the transaction is committed."""
        ...

    def rollback(self) -> None:
        """Ends the transaction if there is one. Never raises for a connection that is gone."""
        ...

    def in_transaction(self) -> bool: ...

    def usable(self) -> bool:
        """False once the connection is closed or broken."""
        ...

    def cancel(self) -> None:
        """Asks the database to give up the running statement; from any thread."""
        ...

    def close(self) -> None: ...


class AsyncConnection(Protocol):
    """``Connection`` for an asynchronous driver."""

    driver: Any

    async def execute(self, statement: Sql, /) -> Result: ...

    async def begin(self) -> None: ...

    async def begin_with(self, first: Sql, /) -> Result: ...

    async def commit_with(self, gate: Sql, /) -> None: ...

    async def commit(self) -> None: ...

    async def rollback(self) -> None: ...

    def in_transaction(self) -> bool: ...

    def usable(self) -> bool: ...

    async def close(self) -> None: ...
