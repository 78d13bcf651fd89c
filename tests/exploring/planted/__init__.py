"""Planted bugs, each with a twin that is right. The explorer knows none of them."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import psycopg

from bothends import Service
from bothends.testing.exploring.causes import Cause

__all__ = ["ERRORS", "Plant", "connect", "savepoint", "say", "script"]

ERRORS = (sqlite3.Error, psycopg.Error)


def say(db: Any, text: str, values: Sequence[object] = ()) -> Any:
    """One statement, in the words of the driver that the handler was given."""
    return db.execute(text if isinstance(db, sqlite3.Connection) else text.replace("?", "%s"), values)


def script(db: Any, text: str) -> None:
    if isinstance(db, sqlite3.Connection):
        db.executescript(text)
    else:
        db.execute(text)


def savepoint(db: Any) -> AbstractContextManager[Any]:
    """PostgreSQL does not let a transaction go on after an error without one."""
    made: AbstractContextManager[Any] = nullcontext() if isinstance(db, sqlite3.Connection) else db.transaction()
    return made


def connect() -> Any:
    """A connection of the handler's own, to the database that it knows of."""
    where = os.environ["PLANTED_DATABASE"]
    return psycopg.connect(where) if where.startswith("postgresql:") else sqlite3.connect(where)


@dataclass(frozen=True)
class Plant:
    """``make(wrong)`` gives the service with the bug, or its twin."""

    name: str
    make: Callable[[bool], Service]
    start: Callable[[Any], Sequence[object] | None]
    events: Sequence[object]
    causes: tuple[Cause, ...]
    """What may be said to be behind it."""
    own_connections: bool = False
    """Whether the handler opens connections of its own, so that the database has to be a file."""

    def __str__(self) -> str:
        return self.name
