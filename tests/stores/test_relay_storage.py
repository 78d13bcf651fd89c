"""Rotation and identity: what is done is truncated, what is not never is; another cluster's cursors mean nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from bothends.core.lanes import lane
from bothends.core.relaying import EVERY_LANE, Segment, Stream
from bothends.relay.rotation import rotate
from bothends.stores import open_store
from bothends.stores.postgresql.relay_storage import CHILD_ROWS
from bothends.stores.schema import apply
from bothends.stores.steps import run

INSERT = (
    "insert into bothends.outbox (id, source, type, topic, key, body, time) "
    "select %s || g, 's', 't', 'topic', 'k'::bytea, 'b'::bytea, '' from generate_series(1, 10) g"
)


class Outbox:
    def __init__(self, url: str) -> None:
        store = open_store(url)
        apply(store)
        self.url = url
        self.steps: Any = store.relay
        self.connection = store.connect(name="relay", factory=self.steps.connection_factory)
        self.sql = psycopg.connect(url, autocommit=True)
        self.me = run(
            self.steps.leases.register(name="r", pid=1, host="h", lease_s=60, former=None, now=0, boot=""),
            self.connection)

    def rows(self, child: int) -> int:
        found = self.sql.execute(f"select count(*) from bothends.outbox_{child}").fetchone()
        assert found is not None
        return int(found[0])

    def next_child(self) -> None:
        self.sql.execute(
            "select setval('bothends.outbox_seq', (last_value / %s + 1) * %s) from bothends.outbox_seq",
            [CHILD_ROWS, CHILD_ROWS])

    def leave_child(self) -> None:
        """The sequence is two children on: the one it left is what it comes to next."""
        self.next_child()
        self.next_child()

    def settle_all(self, lanes: int = EVERY_LANE) -> None:
        page = run(self.steps.rows.fetch([Stream(lanes, 0, "1:1:")], limit=10_000), self.connection)
        segments = [Segment(lanes, s.hwm, s.snapshot, len(page.rows)) for s in page.streams]
        assert run(self.steps.rows.settle(self.me, segments, [], []), self.connection)

    def rotate(self) -> list[str]:
        return rotate(self.steps.storage, self.connection)

    def close(self) -> None:
        self.connection.close()
        self.sql.close()


@pytest.fixture
def outbox(pg_database: str) -> Iterator[Outbox]:
    made = Outbox(pg_database)
    yield made
    made.close()


def test_a_child_that_is_done_is_truncated_once_the_sequence_has_left_it(outbox: Outbox) -> None:
    outbox.sql.execute(INSERT, ["a"])
    outbox.settle_all()
    assert outbox.rotate() == []
    outbox.next_child()
    assert outbox.rotate() == [], "the previous child still refuses the ids that it holds"
    outbox.next_child()
    outbox.sql.execute(INSERT, ["b"])
    assert outbox.rotate() == ["outbox_0"]
    assert (outbox.rows(0), outbox.rows(2)) == (0, 10)
    assert outbox.rotate() == []


def test_a_child_with_rows_that_are_not_done_stays(outbox: Outbox) -> None:
    outbox.sql.execute(INSERT, ["a"])
    outbox.settle_all(lanes=EVERY_LANE & ~(1 << lane(b"k")))
    outbox.leave_child()
    assert outbox.rotate() == []
    assert outbox.rows(0) == 10
    outbox.settle_all()
    assert outbox.rotate() == ["outbox_0"]
    assert outbox.rows(0) == 0


@pytest.mark.parametrize("prepare", [False, True])
def test_an_open_or_prepared_transaction_keeps_its_child(outbox: Outbox, prepare: bool) -> None:
    with psycopg.connect(outbox.url) as writer:
        writer.tpc_begin(writer.xid(1, f"rotate-{outbox.url[-12:]}", "q"))
        writer.execute(INSERT, ["late"])
        if prepare:
            writer.tpc_prepare()
        outbox.sql.execute(INSERT, ["a"])
        outbox.leave_child()
        outbox.settle_all()
        outbox.rotate()
        assert outbox.rows(0) == 10
        writer.tpc_commit()
    assert outbox.rotate() == []
    assert outbox.rows(0) == 20, "a row that became visible after the cursor was stored"
    outbox.settle_all()
    assert outbox.rotate() == ["outbox_0"]
    assert outbox.rows(0) == 0


def test_a_transaction_that_reads_puts_rotation_off_and_stops_nobody(outbox: Outbox) -> None:
    with psycopg.connect(outbox.url) as reader:
        reader.execute("set transaction isolation level repeatable read")
        reader.execute("select count(*) from bothends.outbox")
        outbox.sql.execute(INSERT, ["a"])
        outbox.settle_all()
        outbox.leave_child()
        outbox.rotate()
        assert outbox.rows(0) == 10
    outbox.rotate()
    assert outbox.rows(0) == 0


def test_a_writer_elsewhere_that_is_older_than_the_child_puts_nothing_off(outbox: Outbox) -> None:
    with psycopg.connect(outbox.url) as writer:
        writer.execute("create table elsewhere ()")
        outbox.sql.execute(INSERT, ["a"])
        outbox.settle_all()
        outbox.leave_child()
        assert outbox.rotate() == ["outbox_0"]
        assert outbox.rows(0) == 0


@pytest.mark.parametrize("analyzed", [False, True])
def test_whether_a_child_is_done_is_asked_of_indexes_alone(outbox: Outbox, analyzed: bool) -> None:
    """A child that is full takes seconds to read: longer than a lease."""
    with psycopg.connect(outbox.url) as writer:
        writer.execute("select pg_current_xact_id()")
        outbox.sql.execute(INSERT.replace("1, 10)", "1, 20000)"), ["a"])
        outbox.settle_all()
        outbox.leave_child()
        if analyzed:
            outbox.sql.execute("analyze bothends.outbox")
        asked = next(outbox.steps.storage.done("outbox_0")).text
        plan = "\n".join(row[0] for row in outbox.sql.execute("explain " + asked).fetchall())
    assert "outbox_0_seq_idx" in plan
    assert "outbox_0_xid_idx" in plan
    assert "Seq Scan on outbox_0" not in plan


def test_progress_is_kept_as_long_as_a_lane_needs_it(outbox: Outbox) -> None:
    outbox.settle_all()
    outbox.sql.execute("select setval('bothends.relay_progress_seq', 65536)")
    outbox.settle_all(lanes=EVERY_LANE & ~1)
    assert outbox.rotate() == []
    outbox.settle_all(lanes=1)
    assert outbox.rotate() == ["relay_progress_0"]
    found = run(outbox.steps.leases.cursors(EVERY_LANE), outbox.connection)
    assert len(found) == 64


def test_another_cluster_starts_over_above_everything_that_is_stored(outbox: Outbox) -> None:
    """What a dump and restore, or a failover, leaves: cursors and rows of another history."""
    outbox.sql.execute(INSERT, ["a"])
    outbox.settle_all()
    outbox.sql.execute("update bothends.outbox set xid = '900000000000'")
    outbox.sql.execute(
        "insert into bothends.relay_progress (relay, lanes, hwm, snapshot) "
        "values (1, -1, 500000, '900000000000:900000000000:')")
    leases = outbox.steps.leases
    mine = run(leases.identity(), outbox.connection)
    assert run(leases.stamp("cluster", "other/00000001/1/other"), outbox.connection) != mine
    outbox.connection.begin()
    assert run(leases.rewind_all("cluster", mine), outbox.connection)
    outbox.connection.commit()
    assert run(leases.stamp("cluster", "anything"), outbox.connection) == mine
    assert not run(leases.renew(outbox.me, lease_s=4, state="ok", detail="", now=0, boot=""), outbox.connection)
    outbox.sql.execute(INSERT, ["b"])
    cursors = run(leases.cursors(EVERY_LANE), outbox.connection)
    page = run(outbox.steps.rows.fetch([Stream(EVERY_LANE, *cursors[0])], limit=100), outbox.connection)
    assert len(page.rows) == 20, "what is visible is published again, and what is new is found"
    assert min(row[1] for row in page.rows if row[3].startswith(b"b")) > 500_000
    covered = outbox.sql.execute("select bool_and(pg_visible_in_snapshot(xid, pg_current_snapshot())) from bothends.outbox")
    assert covered.fetchone() == (True,), "no row looks unfinished for years"


def test_two_relays_that_find_another_cluster_start_over_once(outbox: Outbox) -> None:
    leases = outbox.steps.leases
    run(leases.stamp("cluster", "other"), outbox.connection)
    for expected in (True, False):
        outbox.connection.begin()
        assert run(leases.rewind_all("cluster", "mine"), outbox.connection) is expected
        outbox.connection.commit()


def test_a_lease_from_the_future_is_over_too(outbox: Outbox) -> None:
    """The database's clock went back: a lease that ends in an hour would keep the lanes for an hour."""
    assert len(run(outbox.steps.leases.take(outbox.me, 64), outbox.connection)) == 64
    assert run(outbox.steps.leases.expire(now=0, boot=""), outbox.connection) == (1, 0)
    outbox.sql.execute("update bothends.relays set lease_until = clock_timestamp() + interval '1 hour'")
    assert run(outbox.steps.leases.expire(now=0, boot=""), outbox.connection) == (0, 64)
