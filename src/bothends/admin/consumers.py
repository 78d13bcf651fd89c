"""Consumers: list, pause, resume. A paused consumer takes nothing new; what is in hand is finished."""

from __future__ import annotations

from typing import Any

from bothends.admin.acts import Act, audit, consumer_id
from bothends.stores.postgresql.admin import PostgresqlAdmin
from bothends.stores.steps import Steps

__all__ = ["consumers", "set_paused"]

_LIST_MAX = 1_000


def consumers(admin: PostgresqlAdmin, services: list[str]) -> Steps[list[dict[str, Any]]]:
    """Those of these services that have run on this database, by name."""
    found = yield admin.sql(
        "select name, service, owner, topics, start_at, {at:started_at}, paused, processed from {s}.consumers "
        f"order by name limit {_LIST_MAX}")
    names = ("consumer", "service", "owner", "topics", "start", "started_at", "paused", "processed")
    rows = [dict(zip(names, row, strict=True)) for row in found.rows]
    return [row | {"paused": bool(row["paused"])} for row in rows if row["service"] in services]


def set_paused(admin: PostgresqlAdmin, name: str, paused: bool, act: Act) -> Steps[bool]:
    """Whether it changed anything; a second time it does not, and leaves no audit row."""
    number = yield from consumer_id(admin, name)
    done = yield admin.sql(
        "update {s}.consumers set paused = :paused where id = :id and paused <> :paused", id=number, paused=paused)
    if done.count != 1:
        return False
    yield from audit(admin, act, "consumers pause" if paused else "consumers resume", name, {})
    return True
