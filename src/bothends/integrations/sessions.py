"""Hooks on SQLAlchemy sessions: a commit that forgets an ``add_async`` is refused, and one that has events wakes relays.

The listeners stand on the class Session, once, and look into ``session.info``; sessions without events of ours pay one
look-up per commit.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from sqlalchemy import URL, event
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session, SessionTransaction

from bothends.errors import EventNotAwaited
from bothends.urls import addresses
from bothends.wakeup import database_of, postgresql_of, ring

__all__ = ["expect", "watch"]

_KEY = "bothends.outbox"


class _Watched:
    """What one transaction of one session has of ours."""

    def __init__(self) -> None:
        self.schemas: set[str] = set()
        self.expected: dict[object, str] = {}


def _watched(session: Session) -> _Watched:
    found: _Watched | None = session.info.get(_KEY)
    if found is None:
        found = session.info[_KEY] = _Watched()
    return found


def watch(session: Session, schema: str) -> None:
    """Once this transaction has committed, wakes the relays of ``schema`` in the session's database."""
    _watched(session).schemas.add(schema)


def expect(session: Session, name: str) -> Callable[[], None]:
    """From now on a commit raises EventNotAwaited, which says ``name``, until what is returned is called."""
    token = object()
    expected = _watched(session).expected
    expected[token] = name

    def started() -> None:
        expected.pop(token, None)

    return started


@event.listens_for(Session, "before_commit")
def _refuse_forgotten(session: Session) -> None:
    watched: _Watched | None = session.info.get(_KEY)
    if watched is None or not watched.expected:
        return
    names = sorted(set(watched.expected.values()))
    watched.expected.clear()
    raise EventNotAwaited(
        f"add_async was called and not awaited for: {', '.join(names)}; nothing was committed. "
        "Write `await outbox.add_async(...)` before the commit"
    )


@event.listens_for(Session, "after_commit")
def _ring(session: Session) -> None:
    watched: _Watched | None = session.info.get(_KEY)
    if watched is None or session.in_nested_transaction():
        return
    try:
        url = session.get_bind().engine.url
    except UnboundExecutionError:
        return  # several databases and no default one: polling finds the events
    for schema in watched.schemas:
        ring(_name(url, schema), os.environ.get("BOTHENDS_RUNTIME_DIR"))


def _name(url: URL, schema: str) -> str:
    if url.get_backend_name() == "sqlite":
        return database_of(f"sqlite:///{url.database or ''}", schema)
    host, port = (_listed(url.query.get(name)) for name in ("host", "port"))
    named = addresses(host or url.host or "")  # a host of the query may have its port with it
    return postgresql_of(
        ",".join(host for host, _ in named), port or ",".join(own or str(url.port or "") for _, own in named),
        url.database or url.username or "", schema,
    )


def _listed(value: str | tuple[str, ...] | None) -> str:
    """What was given several times, with commas."""
    return ",".join(value) if isinstance(value, tuple) else value or ""


@event.listens_for(Session, "after_transaction_end")
def _forget(session: Session, transaction: SessionTransaction) -> None:
    if transaction.parent is None:
        session.info.pop(_KEY, None)
