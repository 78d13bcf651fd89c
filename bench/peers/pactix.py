"""pactix: its OutboxRunner, with its Kafka publisher over aiokafka."""

from __future__ import annotations

from bench.peers.peer import BODY, HEADERS_JSON, KEY
from bench.peers.pypi import FromPyPI

__all__ = ["Pactix"]


class Pactix(FromPyPI):
    name = package = "pactix"
    settings = "asyncpg, aiokafka (linger 0), batches of 1,000, poll 5 ms"
    backlog, rate = 4_000, 200
    order = "per key"
    insert = (
        "insert into outbox_message (id, message_id, event_type, message_key, ordering_key, payload, headers, status, "
        "attempts, max_attempts, available_at, created_at, updated_at) "
        f"select gen_random_uuid(), gen_random_uuid()::text, 'order.created', {KEY}, {KEY}, ({BODY})::jsonb, "
        f"{HEADERS_JSON}::jsonb, 'pending', 0, 10, timestamptz '2026-01-01 00:00:00Z', "
        "timestamptz '2026-01-01 00:00:00Z' + g * interval '1 microsecond', now() "
        "from generate_series(%(first)s::bigint, %(last)s) g order by g"
    )
