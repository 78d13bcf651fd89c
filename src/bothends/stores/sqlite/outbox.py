"""The outbox on SQLite. A writer holds the file's only write lock until it commits: ``strict`` needs nothing more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bothends.codecs.cloudevents import pack_attributes, pack_headers
from bothends.core.lanes import lane
from bothends.drafts import Draft
from bothends.errors import DuplicateEventId
from bothends.stores.steps import Sql, Steps

__all__ = ["ROWS_MAX", "SqliteOutbox"]

ROWS_MAX = 100
"""Rows of one statement."""

_NAMES = (
    "id", "source", "type", "topic", "key", "key_lane", "body", "content_type", "time", "version", "attributes",
    "headers",
)
_HEAD = f"insert into bothends_outbox ({', '.join(_NAMES)}, deliver_at) values "
_NOW = "(julianday('now') - 2440587.5) * 86400.0"
_INSERT = f"{_HEAD} ({', '.join(f':{name}' for name in _NAMES)}, coalesce(:deliver_at, {_NOW} + :delay_s))"
_INSERT_GIVEN = f"{_INSERT} on conflict (id, source) do nothing returning seq"


def _parameters(draft: Draft) -> dict[str, Any]:
    return {
        "id": draft.id, "source": draft.source, "type": draft.type, "topic": draft.topic, "key": draft.key,
        "key_lane": None if draft.key is None else lane(draft.key), "body": draft.body,
        "content_type": draft.content_type, "time": draft.time, "version": draft.version,
        "attributes": pack_attributes(draft.attributes), "headers": pack_headers(draft.headers),
        "deliver_at": None if draft.deliver_at is None else draft.deliver_at.timestamp(), "delay_s": draft.delay_s,
    }


class SqliteOutbox:
    """Step functions; they run in a transaction that the caller has begun. A file has one outbox: ``schema`` is not
    used."""

    def __init__(self, schema: str) -> None:
        del schema

    def add(self, drafts: Sequence[Draft]) -> Steps[None]:
        """Writes the rows in their order. Raises DuplicateEventId for an id that this source still has there."""
        if len(drafts) > 1 and not any(draft.given_id for draft in drafts):
            for begin in range(0, len(drafts), ROWS_MAX):
                yield _insert_many(drafts[begin:begin + ROWS_MAX])
            return
        for draft in drafts:
            if not draft.given_id:
                yield Sql(_INSERT, _parameters(draft), rows=False)
                continue
            added = yield Sql(_INSERT_GIVEN, _parameters(draft))
            if not added.rows:
                raise DuplicateEventId(
                    f"source {draft.source!r} has an event with id {draft.id!r} already; nothing was written and the "
                    f"transaction is usable: if it is the same fact, go on, else give it an id of its own"
                )


def _insert_many(drafts: Sequence[Draft]) -> Sql:
    rows: list[str] = []
    parameters: dict[str, Any] = {}
    for n, draft in enumerate(drafts):
        rows.append(
            f"({', '.join(f':{name}_{n}' for name in _NAMES)}, coalesce(:deliver_at_{n}, {_NOW} + :delay_s_{n}))"
        )
        parameters.update({f"{name}_{n}": value for name, value in _parameters(draft).items()})
    return Sql(_HEAD + ", ".join(rows), parameters, rows=False)
