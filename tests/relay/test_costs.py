"""Counted work: statements per event, memory, and what a poll that finds nothing costs."""

from __future__ import annotations

import tracemalloc
from collections import Counter

import pytest

from bothends.core.relaying import PAGE_BYTES
from bothends.ports import BatchReport
from bothends.relay.events import LanesChanged, Published
from bothends.stores.postgresql.connection import PostgresqlConnection
from bothends.stores.steps import Result, Sql
from tests.relay.conftest import Rig


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each statement was run, by its beginning; the test's own included."""
    counted: Counter[str] = Counter()
    original = PostgresqlConnection.execute

    def execute(self: PostgresqlConnection, statement: Sql, /) -> Result:
        counted[statement.text[:60]] += 1
        return original(self, statement)

    monkeypatch.setattr(PostgresqlConnection, "execute", execute)
    return counted


def fill(rig: Rig, rows: int, body: int = 100) -> None:
    rig.sql(
        "with i as (insert into bothends.outbox (id, source, type, topic, key, body, time) select 'b' || g, 's', 't', "
        "'big', ('k' || g % 500)::bytea, convert_to(repeat('x', :body), 'UTF8'), '2026-01-01T00:00:00Z' "
        "from generate_series(1, :rows) g returning 1) select count(*) from i", rows=rows, body=body)


def test_a_full_page_costs_two_statements(pg: Rig, statements: Counter[str]) -> None:
    rows = 40_000
    pg.broker.create_topic("big", 8)
    fill(pg, rows)
    statements.clear()
    relay = pg.start(batch_max=2000)
    pg.until(lambda: sum(p.records for p in relay.saw(Published)) == rows, timeout_s=60)
    relay.stop()
    assert sum(statements.values()) <= rows * 0.01, statements


class Nowhere:
    """A publisher that confirms and keeps nothing, so that only the relay's memory is seen."""

    def __init__(self) -> None:
        self._ended: list[BatchReport] = []

    def send(self, batch: int, records: object) -> None:
        self._ended.append(BatchReport(batch, {}))

    def poll(self, timeout_s: float) -> list[BatchReport]:
        ended, self._ended = self._ended, []
        return ended

    def pending(self) -> int:
        return len(self._ended)

    def broken(self) -> None:
        return None

    def abandon(self) -> None:
        self._ended.clear()

    def close(self, timeout_s: float) -> list[BatchReport]:
        return self.poll(timeout_s)


def test_memory_does_not_grow_with_the_backlog(pg: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages in flight are all that is in memory: 4 of at most 8 MB; here 60 MB wait, in rows of 6 kB."""
    fill(pg, 10_000, body=6000)
    monkeypatch.setattr(pg.broker, "publisher", lambda name: Nowhere())
    tracemalloc.start()
    try:
        relay = pg.start(batch_max=2000)
        pg.until(lambda: sum(p.records for p in relay.saw(Published)) == 10_000, timeout_s=60)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 48 * 1024 * 1024


def test_a_page_of_large_bodies_is_cut_and_nothing_behind_the_cut_is_lost(rig: Rig) -> None:
    """40 MB in one go after small events, with tombstones among them: pages of 8 MB, each row once, in order."""
    rig.broker.create_topic("t", 1)
    relay = rig.start(batch_max=2000)
    rig.add("t", b"k", *(b"%d" % n for n in range(300)))
    rig.until(lambda: sum(p.records for p in relay.saw(Published)) == 300)
    bodies = [b"%02d" % n + bytes(900_000) if n % 3 else None for n in range(60)]
    rig.add("t", b"k", *bodies)  # type: ignore[arg-type]
    rig.until(lambda: sum(p.records for p in relay.saw(Published)) == 360, timeout_s=60)
    assert rig.bodies("t")[300:] == bodies
    sizes = [sum(len(record.value or b"") for record in batch) for batch in rig.broker.sent]
    assert max(sizes) <= PAGE_BYTES + 900_002


def test_an_idle_relay_asks_little(pg: Rig, statements: Counter[str]) -> None:
    """With the longest pause between polls it is leases and a look beside the stream, a few statements a second."""
    relay = pg.start(poll_idle_s=5.0, poll_busy_s=5.0, renew_s=0.2)
    pg.until(lambda: relay.saw(LanesChanged))
    statements.clear()
    pg.until(lambda: statements[next((t for t in statements if t.startswith('update "bothends".relays')), "")] >= 5)
    renewals = next(n for text, n in statements.items() if text.startswith('update "bothends".relays'))
    assert sum(statements.values()) <= renewals * 14, statements
