"""What operators and servers do to the log of a relay: slots that are held, moved or about to go, names that change."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from bothends.relay.events import SourceChanged, StoreLost
from bothends.stores import open_store
from bothends.stores.postgresql.pgoutput import PgOutput
from bothends.stores.postgresql.replication import Replication
from bothends.stores.postgresql.slots import SlotSteps
from bothends.stores.schema import apply, grants
from bothends.stores.steps import Result, Sql
from tests.conftest import fresh_database
from tests.relay.conftest import Rig
from tests.relay.test_log import SOON, drop_slot, reading, reason, slots, source
from tests.relay.test_log_messages import reading as hearing
from tests.relay.test_log_messages import say
from tests.relay.unruly import Unruly

pytestmark = pytest.mark.needs("postgresql")


@pytest.mark.parametrize(("status", "lost"), [
    ("reserved", False), ("extended", False), ("unreserved", False), ("lost", True), (None, False)])
def test_a_slot_is_lost_when_its_log_is_removed_not_before(status: str | None, lost: bool) -> None:
    """'unreserved' may be removed at the next checkpoint. Messages in it were thrown away while they could be read."""
    steps: Any = SlotSteps("bothends", messages=True).facts("be_m", ["message"])
    next(steps)
    steps.send(Result([(150_000, True, False, True, 5, 5, 0, "", "", 7, False)], 1))
    with pytest.raises(StopIteration) as done:
        steps.send(Result([(True, None, 9, 64_000_000, status)], 1))
    assert done.value.value.slot.lost is lost


def test_what_a_lost_slot_has_lost_ends_where_the_new_one_begins(pg_log: Rig, postgresql_url: str) -> None:
    """It waits for open transactions, and what is added meanwhile is in neither."""
    pg_log.source = "message"
    pg_log.broker.create_topic("t", 1)
    running = hearing(pg_log)
    other = pg_log.store.connect(name="open")
    other.begin()
    other.execute(Sql("create temporary table old (x text)", rows=False))
    drop_slot(pg_log)
    pg_log.until(lambda: "waits for open transactions" in reason(running))
    say(pg_log, "t", b"k", b"lost")
    ((last,),) = pg_log.sql("select pg_current_wal_insert_lsn() - '0/0'")
    other.rollback()
    other.close()
    pg_log.until(lambda: source(running) == "message")
    say(pg_log, "t", b"k", b"kept")
    pg_log.until(lambda: pg_log.bodies("t") == [b"kept"])
    ((until,),) = pg_log.sql("select (detail::json ->> 'until')::pg_lsn - '0/0' from bothends.audit")
    assert until >= last


@pytest.fixture
def plain_role(pg_log: Rig) -> Iterator[str]:
    """It may run relays, and end no sessions of others."""
    name = f"plain_{uuid.uuid4().hex[:8]}"
    connection = pg_log.connection.driver
    connection.execute(f"create role {name} login replication password 'x'".encode())
    connection.execute(grants("bothends", name, "run").encode())
    yield name
    connection.execute(f"drop owned by {name}".encode())
    connection.execute(f"drop role {name}".encode())


def test_a_slot_that_somebody_else_reads_leaves_the_table_to_polling(pg_log: Rig, plain_role: str) -> None:
    """The relay may not end that session. It began anew each time, and neither read nor polled."""
    pg_log.broker.create_topic("t", 1)
    reading(pg_log).stop()
    ((slot, _),) = slots(pg_log)
    url = str(pg_log.store.url)
    other = Replication(url, "an operator")
    other.start(slot, 0, "bothends_outbox", PgOutput("bothends", messages=False, covers=None))
    pg_log.until(lambda: other.answer() is not None)
    place = urlsplit(url)
    plain = open_store(place._replace(netloc=f"{plain_role}:x@{place.hostname}:{place.port}").geturl())
    rig = Rig(plain, pg_log.broker, "wal")
    try:
        running = rig.start(**SOON)
        pg_log.add("t", b"k", b"1")
        pg_log.until(lambda: pg_log.bodies("t") == [b"1"])
        pg_log.until(lambda: source(running) == "poll" and "in use by a session that this role may not end" in reason(running))
        assert not running.saw(StoreLost)
        other.close()
        pg_log.until(lambda: source(running) == "wal")
    finally:
        rig.close()


def test_what_goes_out_beside_the_stream_does_not_keep_it_waiting(pg_log: Rig) -> None:
    """A stock of held or delayed rows was sent before the log was read again, and nothing else meanwhile."""
    pg_log.broker.create_topic("t", 1)
    reading(pg_log).stop()
    pg_log.sql(
        "insert into bothends.held (seq, lane, id, source, type, topic, key, body, time, version, state) select g, "
        "bothends.lane('k', 0), g::text, 's', 'y', 't', 'k', 'b', '2026-01-01T00:00:00Z', 1, 'behind' "
        "from generate_series(1, 10) g returning seq")
    pg_log.broker.silent.set()
    running = pg_log.start(**SOON, silence_s=600.0)
    pg_log.until(lambda: [len(batch) for batch in pg_log.broker.sent] == [10])
    pg_log.until(lambda: source(running) == "wal")
    pg_log.broker.silent.clear()
    pg_log.until(pg_log.drained)


def test_a_child_that_is_not_logged_is_polled(pg_log: Rig) -> None:
    """What enters it is in no log, and a marker carried the cursor over it."""
    pg_log.broker.create_topic("t", 1)
    running = reading(pg_log)
    ((child,),) = pg_log.sql("select 'bothends.outbox_' || last_value / 1048576 % 3 from bothends.outbox_seq")
    pg_log.add("t", b"k", b"1")
    pg_log.until(pg_log.drained)
    pg_log.connection.execute(Sql(f"alter table {child} set unlogged", rows=False))
    try:
        pg_log.add("t", b"k", b"2")
        pg_log.until(lambda: pg_log.bodies("t")[-1] == b"2")
        pg_log.until(lambda: source(running) == "poll" and "unlogged" in reason(running))
        pg_log.add("t", b"k", b"3")
        pg_log.until(pg_log.drained)
    finally:
        pg_log.connection.execute(Sql(f"alter table {child} set logged", rows=False))
    pg_log.until(lambda: source(running) == "wal")
    assert list(dict.fromkeys(pg_log.bodies("t"))) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("kind", ["wal", "message"])
def test_a_database_that_is_renamed_keeps_its_slot(postgresql_url: str, kind: Any) -> None:
    """Its messages were given up with the old name's slot, which then held back the log for ever."""
    broker = Unruly(open_broker_in_memory())
    broker.create_topic("t", 1)
    with fresh_database(postgresql_url) as url, psycopg.connect(postgresql_url, autocommit=True) as server:
        old = urlsplit(url).path[1:]
        new = f"{old}_new"
        rig = Rig(open_store(url), broker, kind)
        apply(rig.store)
        (hearing if kind == "message" else reading)(rig).stop()
        before = slots(rig)
        write = say if kind == "message" else Rig.add
        write(rig, "t", b"k", b"1", b"2")
        rig.close()
        server.execute("select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = %s", [old])
        server.execute(f'alter database "{old}" rename to "{new}"'.encode())
        try:
            rig = Rig(open_store(urlsplit(url)._replace(path=f"/{new}").geturl()), broker, kind)
            running = rig.start(**SOON)
            rig.until(lambda: source(running) == kind)
            write(rig, "t", b"k", b"3")
            rig.until(lambda: list(dict.fromkeys(rig.bodies("t"))) == [b"1", b"2", b"3"])
            assert [name for name, _ in slots(rig)] == [name for name, _ in before]
            assert rig.sql("select count(*) from bothends.audit") == [(0,)]
            rig.close()
        finally:
            server.execute("select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = %s", [new])
            server.execute(f'alter database "{new}" rename to "{old}"'.encode())


def open_broker_in_memory() -> Any:
    from bothends.brokers import open_broker

    return open_broker(f"memory://{uuid.uuid4().hex}")


def test_a_publication_of_messages_that_went_is_made_again_and_what_cannot_be_read_has_a_way_out(pg_log: Rig) -> None:
    """Servers before 18 look it up as it was then, so a stretch of the log without one is never decoded."""
    pg_log.source = "message"
    pg_log.broker.create_topic("t", 1)
    running = hearing(pg_log)
    say(pg_log, "t", b"k", b"1")
    pg_log.until(lambda: pg_log.bodies("t") == [b"1"])
    pg_log.sql("do $$ begin drop publication bothends_messages; end $$")
    say(pg_log, "t", b"k", b"2")
    pg_log.until(lambda: pg_log.sql("select count(*) from pg_publication where pubname = 'bothends_messages'") == [(1,)])
    if pg_log.connection.driver.info.server_version >= 180_000:
        pg_log.until(lambda: pg_log.bodies("t") == [b"1", b"2"])
        return
    pg_log.until(lambda: "pg_replication_slot_advance" in reason(running))
    running.stop()
    (way_out,) = re.findall(r"select pg_replication_slot_advance\(.*\)", reason(running))
    pg_log.sql(way_out)
    running = hearing(pg_log)
    say(pg_log, "t", b"k", b"3")
    pg_log.until(lambda: b"3" in pg_log.bodies("t"))
    ((verb,),) = pg_log.sql("select verb from bothends.audit")
    assert verb == "lost the slot"


def test_a_role_that_may_not_make_the_publication_again_does_not_end_its_relay(pg_log: Rig, plain_role: str) -> None:
    pg_log.source = "message"
    pg_log.broker.create_topic("t", 1)
    hearing(pg_log).stop()
    pg_log.sql("do $$ begin drop publication bothends_messages; end $$")
    place = urlsplit(str(pg_log.store.url))
    plain = open_store(place._replace(netloc=f"{plain_role}:x@{place.hostname}:{place.port}").geturl())
    rig = Rig(plain, pg_log.broker, "message")
    try:
        running = rig.start(**SOON)
        pg_log.until(lambda: running.error is not None or "does not exist" in (
            reason(running) if running.saw(SourceChanged) else ""))
        assert running.error is None
    finally:
        rig.close()
