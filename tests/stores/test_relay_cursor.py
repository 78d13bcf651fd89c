"""The cursor on a real PostgreSQL, without a broker: nothing lost, twice or out of order, whoever commits when."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from bothends.core.relaying import EVERY_LANE, Cursor, Segment, Stream, merge
from bothends.stores import Store, open_store
from bothends.stores.connection import Connection
from bothends.stores.schema import apply
from bothends.stores.steps import run, translate
from tests.conftest import fresh_database

INSERT = (
    "insert into bothends.outbox (id, source, type, topic, key, body, time) "
    "values (%s, 's', 't', 'topic', %s, %s, '2026-01-01T00:00:00Z')"
)


@pytest.fixture(scope="module", params=[
    pytest.param("postgresql_url", marks=pytest.mark.needs("postgresql"), id="15"),
    pytest.param("postgresql18_url", marks=pytest.mark.needs("postgresql18"), id="18"),
])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    with fresh_database(request.getfixturevalue(request.param)) as url:
        found = open_store(url)
        apply(found)
        yield found


class Reader:
    """A relay's cursor, and everything it was handed."""

    def __init__(self, store: Store, lanes: int = EVERY_LANE) -> None:
        self.steps: Any = store.relay
        self.connection: Connection = store.connect(name="reader", factory=self.steps.connection_factory)
        self.connection.driver.execute("truncate bothends.outbox, bothends.relay_progress")
        self.streams = [Stream(lanes, *Cursor(0, "1:1:"))]
        self.seen: list[tuple[int, bytes, bytes]] = []
        """(seq, key, body) in the order they were handed out."""

    def page(self, limit: int = 50) -> int:
        page = run(self.steps.rows.fetch(self.streams, limit=limit), self.connection)
        self.streams = merge(page.streams)
        self.seen += [(row[1], row[7], row[8]) for row in page.rows]
        return len(page.rows)

    def all(self) -> None:
        while self.page() or any(s.target for s in self.streams):
            pass

    def bodies(self, key: bytes) -> list[bytes]:
        return [body for _, k, body in self.seen if k == key]


@pytest.fixture
def reader(store: Store) -> Iterator[Reader]:
    made = Reader(store)
    yield made
    made.connection.close()


@pytest.fixture
def writers(store: Store) -> Iterator[list[psycopg.Connection[Any]]]:
    made = [psycopg.connect(store.url) for _ in range(4)]
    yield made
    for each in made:
        each.close()


def test_a_lower_sequence_value_that_commits_later_is_late_not_lost(
    reader: Reader, writers: list[psycopg.Connection[Any]]
) -> None:
    first, second, *_ = writers
    first.execute(INSERT, ["1", b"k", b"late"])
    second.execute(INSERT, ["2", b"k", b"early"])
    second.commit()
    reader.all()
    assert [body for _, _, body in reader.seen] == [b"early"]
    first.commit()
    reader.all()
    assert [body for _, _, body in reader.seen] == [b"early", b"late"]


@pytest.mark.parametrize("seed", range(4))
def test_random_interleavings_lose_repeat_and_reorder_nothing(
    store: Store, reader: Reader, writers: list[psycopg.Connection[Any]], seed: int
) -> None:
    """250 each: writers begin, add (some under savepoints), commit, roll back or prepare at any time; each key belongs to
    one writer, so that its order is known."""
    chance = random.Random(seed)
    committed: list[bytes] = []
    open_rows: dict[int, list[bytes]] = {n: [] for n in range(4)}
    n = 0
    for _ in range(250):
        who = chance.randrange(4)
        connection = writers[who]
        act = chance.random()
        if act < 0.55:
            rows = [b"%d.%06d" % (who, n + m) for m in range(chance.choice((1, 1, 2, 70)))]
            n += len(rows)
            for body in rows:
                connection.execute(INSERT, [body.decode(), b"writer%d" % who, body])
            if chance.random() < 0.2:
                with connection.transaction(force_rollback=True):
                    connection.execute(INSERT, [f"never {n}", b"never", b"never"])
            open_rows[who] += rows
        elif act < 0.75:
            connection.commit()
            committed += open_rows[who]
            open_rows[who] = []
        elif act < 0.8:
            connection.rollback()
            open_rows[who] = []
        else:
            reader.page(chance.choice((3, 20, 200)))
    for who, connection in enumerate(writers):
        connection.commit()
        committed += open_rows[who]
    reader.all()
    handed_out = [body for _, _, body in reader.seen]
    assert sorted(handed_out) == sorted(committed)
    for who in range(4):
        assert reader.bodies(b"writer%d" % who) == sorted(reader.bodies(b"writer%d" % who))


def test_a_large_late_transaction_comes_page_by_page_before_anything_newer(
    reader: Reader, writers: list[psycopg.Connection[Any]]
) -> None:
    bulk, other, *_ = writers
    for n in range(130):
        bulk.execute(INSERT, [f"b{n}", b"k", b"%03d" % n])
    other.execute(INSERT, ["x", b"k2", b"x"])
    other.commit()
    reader.all()
    bulk.commit()
    other.execute(INSERT, ["y", b"k", b"999"])
    other.commit()
    pages = [reader.page(50) for _ in range(4)]
    assert pages == [50, 50, 31, 0]
    assert reader.bodies(b"k") == [b"%03d" % n for n in range(130)] + [b"999"]


def test_a_bulk_insert_that_has_not_committed_is_not_looked_at_again(
    store: Store, reader: Reader, writers: list[psycopg.Connection[Any]]
) -> None:
    bulk = writers[0]
    bulk.execute(
        "insert into bothends.outbox (id, source, type, topic, key, body, time) select g::text, 's', 't', 'topic', "
        "'k'::bytea, 'b'::bytea, '' from generate_series(1, 5000) g")
    reader.page()
    last = bulk.execute("select last_value from bothends.outbox_seq").fetchone()
    assert last is not None
    assert reader.streams[0].hwm == last[0]
    bulk.rollback()
    reader.all()
    assert reader.seen == []


def test_an_idle_transaction_elsewhere_delays_nobody(reader: Reader, writers: list[psycopg.Connection[Any]]) -> None:
    idle, writer, *_ = writers
    idle.execute("create temporary table pins (a int)")
    idle.execute("insert into pins values (1)")
    for n in range(10):
        writer.execute(INSERT, [f"{n}", b"k", b"%d" % n])
        writer.commit()
        reader.page()
    assert reader.bodies(b"k") == [b"%d" % n for n in range(10)]


def test_a_prepared_transaction_is_late_like_any_other(store: Store, reader: Reader) -> None:
    with psycopg.connect(store.url) as connection:
        connection.tpc_begin(connection.xid(1, f"relay-{store.url[-12:]}", "q"))
        connection.execute(INSERT, ["p", b"k", b"prepared"])
        connection.tpc_prepare()
        reader.all()
        assert reader.seen == []
        connection.tpc_commit()
    reader.all()
    assert reader.bodies(b"k") == [b"prepared"]


def test_streams_of_different_places_are_read_in_one_snapshot_and_merge(
    store: Store, reader: Reader, writers: list[psycopg.Connection[Any]]
) -> None:
    writer = writers[0]
    for n in range(200):
        writer.execute(INSERT, [f"{n}", b"k%d" % n, b"%d" % n])
    writer.commit()
    half = (1 << 32) - 1
    reader.streams = [Stream(half, 0, "1:1:"), Stream(EVERY_LANE & ~half, 0, "1:1:")]
    reader.page(40)
    assert len(reader.streams) == 2
    reader.all()
    assert len(reader.streams) == 1
    assert reader.streams[0].lanes == EVERY_LANE
    assert sorted(int(body) for _, _, body in reader.seen) == list(range(200))


def test_the_newest_progress_of_each_lane_is_its_cursor(store: Store, reader: Reader) -> None:
    leases, rows = reader.steps.leases, reader.steps.rows
    me = run(leases.register(name="r", pid=1, host="h", lease_s=4, former=None, now=0, boot=""), reader.connection)
    assert run(rows.settle(me, [Segment(EVERY_LANE, 5, "10:10:", 0)], [], []), reader.connection)
    assert run(rows.settle(me, [Segment(0b1, 9, "20:21:20", 4), Segment(1 << 63, 7, "20:20:", 0)], [], []),
               reader.connection)
    found = run(leases.cursors(EVERY_LANE), reader.connection)
    assert found[0] == Cursor(9, "20:21:20")
    assert found[63] == Cursor(7, "20:20:")
    assert {found[n] for n in range(1, 63)} == {Cursor(5, "10:10:")}


def test_plans_use_the_indexes_on_a_table_that_was_never_analysed(store: Store, reader: Reader) -> None:
    """A page of a table with 200,000 rows touches a page's worth of it."""
    with psycopg.connect(store.url, autocommit=True) as connection:
        connection.execute("alter table bothends.outbox_0 set (autovacuum_enabled = off)")
        connection.execute(
            "insert into bothends.outbox (id, source, type, topic, key, body, time) select g::text, 's', 't', 'topic', "
            "decode(md5(g::text), 'hex'), 'b'::bytea, '' from generate_series(1, 200000) g")
        hwm = connection.execute("select max(seq) - 100 from bothends.outbox").fetchone()
        now = connection.execute("select pg_current_snapshot()::text").fetchone()
        connection.execute("alter table bothends.outbox_0 reset (autovacuum_enabled)")
    assert hwm is not None
    assert now is not None
    reader.streams = [Stream((1 << 32) - 1, hwm[0], now[0])]
    reader.page(10)  # warms the catalogue caches
    before = _blocks(reader)
    reader.page(50)
    assert _blocks(reader) - before < 1500


def test_a_look_starts_no_parallel_workers_and_compiles_nothing(store: Store, reader: Reader) -> None:
    """The planner expects a share of the table where there are a few late rows or none: with a few hundred thousand rows each
    look took 20 ms, in which workers started that had nothing to do. Here such plans are made as cheap as can be."""
    with psycopg.connect(store.url, autocommit=True) as connection:
        connection.execute(
            "insert into bothends.outbox (id, source, type, topic, key, body, time) select 'p' || g, 's', 't', 'topic', "
            "decode(md5(g::text), 'hex'), 'b'::bytea, '' from generate_series(1, 20000) g")
        connection.execute("analyze bothends.outbox")
        found = connection.execute("select max(seq), pg_current_snapshot()::text from bothends.outbox").fetchone()
    assert found is not None
    said: list[str] = []
    driver = reader.connection.driver
    driver.add_notice_handler(lambda notice: said.append(str(notice.message_primary)))
    driver.execute("load 'auto_explain'")
    for setting, value in (
        ("parallel_setup_cost", "0"), ("parallel_tuple_cost", "0"), ("min_parallel_table_scan_size", "0"),
        ("min_parallel_index_scan_size", "0"), ("jit", "on"), ("jit_above_cost", "0"), ("auto_explain.log_analyze", "on"),
        ("auto_explain.log_nested_statements", "on"), ("auto_explain.log_min_duration", "0"), ("client_min_messages", "log"),
    ):
        driver.execute("select set_config(%s, %s, false)", [setting, value])
    reader.streams = [Stream(EVERY_LANE, *found)]
    said.clear()
    reader.page(50)
    inner = [text for text in said if "outbox_late(" not in text]
    assert len(inner) >= 2, "the statements of outbox_late and of outbox_fit"
    assert not [text for text in inner if "Gather" in text or "JIT" in text]
    assert "Gather" not in "".join(said)


def test_a_page_is_planned_as_cheap_however_many_wait(store: Store, reader: Reader) -> None:
    """From 100,000 on (``jit_above_cost``) the server compiles a statement, each time."""
    asked = next(reader.steps.rows.fetch([Stream(EVERY_LANE, 5, "9:9:")], limit=2000))
    text, _ = translate(asked.text, "pyformat")
    with psycopg.connect(store.url) as connection:
        connection.execute(
            "insert into bothends.outbox (id, source, type, topic, key, body, time) select 'c' || g, 's', 't', 'topic', "
            "decode(md5(g::text), 'hex'), 'b'::bytea, '' from generate_series(1, 5000) g")
        connection.execute("analyze bothends.outbox")
        connection.execute("update pg_class set reltuples = reltuples * 10000 where relname like 'outbox_0%'")
        plan = connection.execute(f"explain (format json) {text}".encode(), dict(asked.params)).fetchone()
        connection.rollback()
    assert plan is not None
    assert plan[0][0]["Plan"]["Total Cost"] < 1_000


def _blocks(reader: Reader) -> int:
    reader.connection.driver.execute("select pg_stat_force_next_flush()")
    found = reader.connection.driver.execute(
        "select sum(heap_blks_read + heap_blks_hit)::bigint from pg_statio_user_tables where relname like 'outbox%'"
    ).fetchone()
    assert found is not None
    return int(found[0])
