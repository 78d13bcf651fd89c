"""omni-box: its OutboxPublisher in the loop of its README, with its Kafka publisher over aiokafka."""

from __future__ import annotations

from bench.peers.peer import BODY, HEADERS_JSON, KEY
from bench.peers.pypi import FromPyPI

__all__ = ["OmniBox"]


class OmniBox(FromPyPI):
    name = package = "omni-box"
    settings = "asyncpg, aiokafka (linger 0), batches of 1,000, poll 5 ms, raw converter"
    backlog, rate = 4_000, 300
    order = "per key"
    insert = (
        "insert into outbox_events (id, event_type, payload, headers, status, attempts_made, max_attempts, scheduled_at, "
        "created_at, updated_at, aggregate_type, aggregate_id, topic, partition_key) "
        f"select gen_random_uuid(), 'order.created', ({BODY})::jsonb, {HEADERS_JSON}::jsonb, 'pending', 0, 5, "
        "timestamptz '2026-01-01 00:00:00Z' + g * interval '1 microsecond', "
        "timestamptz '2026-01-01 00:00:00Z' + g * interval '1 microsecond', now(), 'order', gen_random_uuid(), "
        f"place.topic, {KEY} from generate_series(%(first)s::bigint, %(last)s) g, place order by g"
    )
