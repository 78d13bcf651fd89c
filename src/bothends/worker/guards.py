"""Guards: connections that do not let a handler end the worker's transaction [A11].

While ``guarded``, ``commit``, ``rollback`` and ``close`` raise before they act. A COMMIT or ROLLBACK written as SQL is found
otherwise: SQLite asks an authorizer for each statement; PostgreSQL's deferred trigger and transaction id tell.
"""

from __future__ import annotations

import sqlite3
from functools import cache
from typing import Any

from bothends.errors import HandlerEndedTransaction

__all__ = ["Guard", "GuardedSqlite", "guard_of", "guarded_class"]


def _refusal(what: str) -> HandlerEndedTransaction:
    return HandlerEndedTransaction(
        f"a handler called {what}() on the worker's connection: the worker commits after the handler has returned, together "
        f"with the inbox row; remove the call (raise an error to roll back; a savepoint is fine)"
    )


class Guard:
    """What the guarded classes share. ``tripped`` stays True until the next ``guard(True)``."""

    guarded: bool = False
    tripped: bool = False

    def guard(self, on: bool) -> None:
        if on and not self.guarded:
            self.tripped = False
        self.guarded = on

    def refuse(self, what: str) -> None:
        if self.guarded:
            self.tripped = True
            raise _refusal(what)


class GuardedSqlite(Guard, sqlite3.Connection):
    """A ``sqlite3.Connection``; aiosqlite uses it underneath as well."""

    def guard(self, on: bool) -> None:
        # An authorizer is asked when a statement is prepared, and setting one makes every statement be prepared again.
        if on != self.guarded:
            super().guard(on)
            self.set_authorizer(self._authorize if on else None)

    def _authorize(self, action: int, *_: str | None) -> int:
        if action == sqlite3.SQLITE_TRANSACTION:
            self.tripped = True
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    def commit(self) -> None:
        self.refuse("commit")
        super().commit()

    def rollback(self) -> None:
        self.refuse("rollback")
        super().rollback()

    def close(self) -> None:
        self.refuse("close")
        super().close()

    def __exit__(self, *reason: Any) -> Any:
        self.refuse("commit")  # `with connection:` commits or rolls back
        return super().__exit__(*reason)


@cache
def _psycopg_classes() -> tuple[type[Any], type[Any]]:
    import psycopg

    class GuardedPsycopg(Guard, psycopg.Connection[Any]):
        def commit(self) -> None:
            self.refuse("commit")
            super().commit()

        def rollback(self) -> None:
            self.refuse("rollback")
            super().rollback()

        def close(self) -> None:
            self.refuse("close")
            super().close()

        def __exit__(self, *reason: Any) -> None:
            self.refuse("close")  # `with connection:` commits and closes
            super().__exit__(*reason)

    class GuardedAsyncPsycopg(Guard, psycopg.AsyncConnection[Any]):
        async def commit(self) -> None:
            self.refuse("commit")
            await super().commit()

        async def rollback(self) -> None:
            self.refuse("rollback")
            await super().rollback()

        async def close(self) -> None:
            self.refuse("close")
            await super().close()

        async def __aexit__(self, *reason: Any) -> None:
            self.refuse("close")
            await super().__aexit__(*reason)

    return GuardedPsycopg, GuardedAsyncPsycopg


def guarded_class(dialect: str, *, is_async: bool) -> type[Any]:
    """The class of connections that handlers get (``factory=`` of the store)."""
    return _psycopg_classes()[is_async] if dialect == "postgresql" else GuardedSqlite


def guard_of(driver: Any) -> Guard:
    """The guard of a handler's connection; aiosqlite's lies underneath."""
    found = driver if isinstance(driver, Guard) else driver._conn
    assert isinstance(found, Guard)
    return found
