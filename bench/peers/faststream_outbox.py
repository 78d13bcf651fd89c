"""faststream-outbox: its subscriber as a relay to FastStream's KafkaBroker, as its README has it."""

from __future__ import annotations

from bench.peers.peer import BODY, HEADERS_JSON
from bench.peers.pypi import FromPyPI

__all__ = ["FaststreamOutbox"]


class FaststreamOutbox(FromPyPI):
    name = package = "faststream-outbox"
    settings = "asyncpg with NOTIFY, aiokafka, 32 workers, batches of 1,000, deletes of 100, poll 5 ms"
    backlog, rate = 8_000, 500
    order = "none"
    insert = (
        "with added as (insert into outbox (queue, payload, headers) "
        f"select 'orders', convert_to({BODY}, 'UTF8'), {HEADERS_JSON}::jsonb || jsonb_build_object("
        "'content-type', 'application/json', 'correlation_id', gen_random_uuid()) "
        "from generate_series(%(first)s::bigint, %(last)s) g order by g returning id) "
        "select pg_notify('outbox_outbox', 'orders') from (select count(*) from added) counted"
    )
