"""Hooks on SQLAlchemy sessions: a commit that forgets an ``add_async`` is refused, and a commit that has events rings.

The listeners stand on the class Session, once, and look into ``session.info``; sessions without events of ours pay one
look-up per commit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction

from bothends.errors import EventNotAwaited

__all__ = ["expect", "watch"]

log = logging.getLogger("bothends.outbox")

_KEY = "bothends.outbox"


class _Watched:
    """What one transaction of one session has of ours."""

    def __init__(self) -> None:
        self.rings: list[list[Callable[[], None]]] = []
        self.expected: dict[object, str] = {}


def _watched(session: Session) -> _Watched:
    found: _Watched | None = session.info.get(_KEY)
    if found is None:
        found = session.info[_KEY] = _Watched()
    return found


def watch(session: Session, rings: list[Callable[[], None]]) -> None:
    """Calls ``rings`` after this transaction has committed; the same list once, however many events it has."""
    watched = _watched(session)
    if not any(known is rings for known in watched.rings):
        watched.rings.append(rings)


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
    for rings in watched.rings:
        for ring in rings:
            try:
                ring()
            except Exception:
                # Committed is committed: the caller must not believe otherwise, and the relay polls anyway.
                log.warning("a hook after the commit failed; the relay finds the events by polling", exc_info=True)


@event.listens_for(Session, "after_transaction_end")
def _forget(session: Session, transaction: SessionTransaction) -> None:
    if transaction.parent is None:
        session.info.pop(_KEY, None)
