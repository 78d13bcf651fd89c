"""Dead letters as a test looks at them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bothends.letters import unpack_headers
from bothends.message import Origin, Record
from bothends.service import Consumer
from bothends.stores import Store
from bothends.stores.steps import Sql, Steps
from bothends.testing.clock import table
from bothends.worker.deliveries import read

__all__ = ["Dead", "dead_of"]


@dataclass(frozen=True, slots=True)
class Dead:
    """One open dead letter."""

    consumer: str
    """``<service>.<consumer>``."""
    reason: str
    error: str = ""
    attempts: int = 0
    message_id: str = ""
    event: Any = None
    """The decoded event; None where it cannot be decoded."""


def dead_of(store: Store, consumers: Mapping[int, Consumer]) -> Steps[list[Dead]]:
    """The open dead letters of these consumers (by number), oldest first."""
    numbers = ", ".join(str(int(number)) for number in consumers) or "null"
    result = yield Sql(
        f"select d.consumer, c.name, d.reason, d.error, d.attempts, d.message_id, d.topic, d.record_partition,"
        f" d.record_offset, d.record_key, d.body, d.headers, d.timestamp_ms from {table(store, 'dead_letters')} d"
        f" join {table(store, 'consumers')} c on c.id = d.consumer"
        f" where d.state = 'open' and d.consumer in ({numbers}) order by d.id"
    )
    found = []
    for number, name, reason, error, attempts, id, topic, partition, offset, key, body, headers, timestamp_ms in result.rows:
        if (consumer := consumers.get(number)) is None or consumer.name != name:
            continue
        record = Record(
            Origin(topic, partition, offset), _bytes(key), _bytes(body), unpack_headers(bytes(headers)), timestamp_ms)
        found.append(Dead(name, reason, error, attempts, id, read(consumer, record).event))
    return found


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
