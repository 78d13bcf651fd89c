"""The outbox on PostgreSQL: how a row gets in. Relays read it in ``relay``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bothends.codecs.cloudevents import pack_attributes, pack_headers
from bothends.drafts import Draft
from bothends.errors import DuplicateEventId
from bothends.stores.schema import quoted_schema
from bothends.stores.steps import Sql, Steps

__all__ = ["PostgresqlOutbox", "lock_keys", "statements"]

ROWS_MAX = 500
"""Rows of one statement."""
BYTES_MAX = 8 * 1024 * 1024
"""Of the bodies and headers in one statement, but for its last row."""

_PLAIN = "id, source, type, topic, key, body, content_type, time"
_COLUMNS = f"{_PLAIN}, version, attributes, headers, deliver_at"
_VERSION = 1
"""The table's default."""
_AT = ":deliver_at"
_AFTER = "clock_timestamp() + make_interval(secs => :delay_s)"


def _parameters(draft: Draft) -> dict[str, Any]:
    parameters: dict[str, Any] = {
        "id": draft.id, "source": draft.source, "type": draft.type, "topic": draft.topic, "key": draft.key,
        "body": draft.body, "content_type": draft.content_type, "time": draft.time, "version": draft.version,
        "attributes": pack_attributes(draft.attributes), "headers": pack_headers(draft.headers),
    }
    if draft.delay_s is None:
        parameters["deliver_at"] = draft.deliver_at
    else:
        parameters["delay_s"] = draft.delay_s
    return parameters


def lock_keys(s: str) -> str:
    """``strict``: the same lock as outbox_add's. Sorted, so that two batches do not wait for each other in a circle."""
    return f"""
        select pg_advisory_xact_lock(hashtextextended('{s}.outbox key ' || topic || ' ' || encode(key, 'hex'), 0))
        from (select distinct topic, key from unnest(:topics::text[], :keys::bytea[]) as t (topic, key)
            order by topic, key) as sorted"""


def statements(drafts: Sequence[Draft]) -> Iterator[Sequence[Draft]]:
    """Those that go together: at most ROWS_MAX, and with the last of them at least BYTES_MAX bytes."""
    begin = size = 0
    for end, draft in enumerate(drafts, 1):
        size += len(draft.body or b"") + sum(len(name) + len(value) for name, value in draft.headers)
        if end - begin == ROWS_MAX or size >= BYTES_MAX:
            yield drafts[begin:end]
            begin, size = end, 0
    if begin < len(drafts):
        yield drafts[begin:]


class PostgresqlOutbox:
    """Step functions for one schema; they run in a transaction that the caller has begun."""

    def __init__(self, schema: str) -> None:
        s = quoted_schema(schema)
        plain = ":id, :source, :type, :topic, :key, :body, :content_type, :time"
        typed = (
            ":id::text, :source::text, :type::text, :topic::text, :key::bytea, :body::bytea, :content_type::text, "
            ":time::text, :version::int, :attributes::text, :headers::bytea"
        )
        self._insert_plain = f"insert into {s}.outbox ({_PLAIN}) values ({plain})"  # each parameter costs a microsecond
        head = f"insert into {s}.outbox ({_COLUMNS}) values ({plain}, :version, :attributes, :headers"
        self._insert = f"{head}, {_AT})"
        self._insert_later = f"{head}, {_AFTER})"
        call = f"select {s}.outbox_add(:strict::bool, :given::bool, {typed}"
        self._call = f"{call}, {_AT}::timestamptz)"
        self._call_later = f"{call}, {_AFTER})"
        self._schema = schema
        self._insert_many = f"""
            insert into {s}.outbox ({_COLUMNS})
            select id, source, type, topic, key, body, content_type, time, version, attributes, headers,
                coalesce(deliver_at, clock_timestamp() + make_interval(secs => delay_s))
            from unnest(:ids::text[], :sources::text[], :types::text[], :topics::text[], :keys::bytea[],
                :bodies::bytea[], :content_types::text[], :times::text[], :versions::int[], :attributes::text[],
                :headers::bytea[], :deliver_ats::timestamptz[], :delays_s::float8[]) with ordinality
                as rows (id, source, type, topic, key, body, content_type, time, version, attributes, headers,
                    deliver_at, delay_s, place)
            order by place"""
        self._lock_keys = lock_keys(s)

    def add(self, drafts: Sequence[Draft]) -> Steps[None]:
        """Writes the rows in their order. A fresh id without ``strict`` is one INSERT whose result nobody waits for.

        Raises DuplicateEventId for an id that this source has already (nothing of that draft is written, and the
        transaction stays usable). A second open transaction that adds the same id waits for the first to end.
        """
        if len(drafts) > 1 and not any(draft.given_id for draft in drafts):
            for some in statements(drafts):
                yield from self._add_many(some)
            return
        for draft in drafts:
            yield from self._add_one(draft)

    def plain(self, draft: Draft) -> Sql | None:
        """The one statement, whose result nobody waits for, that adds most events; None where more is needed."""
        if draft.given_id or draft.strict:
            return None
        if draft.delay_s is not None:
            return Sql(self._insert_later, _parameters(draft), rows=False)
        if draft.attributes or draft.headers or draft.deliver_at is not None or draft.version != _VERSION:
            return Sql(self._insert, _parameters(draft), rows=False)
        return Sql(self._insert_plain, {
            "id": draft.id, "source": draft.source, "type": draft.type, "topic": draft.topic, "key": draft.key,
            "body": draft.body, "content_type": draft.content_type, "time": draft.time,
        }, rows=False)

    def _add_one(self, draft: Draft) -> Steps[None]:
        statement = self.plain(draft)
        if statement is not None:
            yield statement
            return
        parameters = _parameters(draft)
        parameters["strict"], parameters["given"] = draft.strict, draft.given_id
        text = self._call if draft.delay_s is None else self._call_later
        added = yield Sql(text, parameters, rows=draft.given_id)
        if draft.given_id and not added.rows[0][0]:
            raise DuplicateEventId(
                f"source {draft.source!r} has an event with id {draft.id!r} already; nothing was written and the "
                f"transaction is usable: if it is the same fact, go on, else give it an id of its own"
            )

    def _add_many(self, drafts: Sequence[Draft]) -> Steps[None]:
        strict = [draft for draft in drafts if draft.strict and draft.key is not None]
        if strict:
            keys = {"topics": [draft.topic for draft in strict], "keys": [draft.key for draft in strict]}
            yield Sql(self._lock_keys, keys, rows=False)
        yield Sql(self._insert_many, {
            "ids": [draft.id for draft in drafts],
            "sources": [draft.source for draft in drafts],
            "types": [draft.type for draft in drafts],
            "topics": [draft.topic for draft in drafts],
            "keys": [draft.key for draft in drafts],
            "bodies": [draft.body for draft in drafts],
            "content_types": [draft.content_type for draft in drafts],
            "times": [draft.time for draft in drafts],
            "versions": [draft.version for draft in drafts],
            "attributes": [pack_attributes(draft.attributes) for draft in drafts],
            "headers": [pack_headers(draft.headers) for draft in drafts],
            "deliver_ats": [draft.deliver_at for draft in drafts],
            "delays_s": [draft.delay_s for draft in drafts],
        }, rows=False)
