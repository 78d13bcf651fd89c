"""Several relays: they share the lanes, take over from the dead, and are fenced off when they were taken for dead."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import psycopg
import pytest

from bothends.core.lanes import lane
from bothends.core.relaying import EVERY_LANE, Segment
from bothends.errors import ConfigError
from bothends.relay.events import Fenced, LanesChanged, Published, Registered
from bothends.stores import open_store
from bothends.stores.steps import Sql, run
from tests.conftest import fresh_database
from tests.relay.conftest import Rig

SOON = {"lease_s": 1.0, "renew_s": 0.1}


def lanes(rig: Rig) -> list[int]:
    """Lanes per relay, most first; free ones not counted."""
    found = rig.sql(f"select count(*) from {rig.table('relay_lanes')} where relay is not null group by relay")
    return sorted((row[0] for row in found), reverse=True)


def expire(rig: Rig, relay: int | None = None) -> None:
    """Ends leases as time would: of one relay, or of all."""
    column = "boot_until" if rig.sqlite else "lease_until"
    past = "-1" if rig.sqlite else "clock_timestamp() - interval '1 s'"
    which = "" if relay is None else f"where id = {relay}"
    rig.sql(f"update {rig.table('relays')} set {column} = {past} {which} returning id")


def test_relays_share_the_lanes_evenly_and_take_over_when_one_leaves(polling_rig: Rig) -> None:
    rig = polling_rig
    first = rig.start(**SOON)
    rig.until(lambda: lanes(rig) == [64])
    rig.start(**SOON)
    rig.until(lambda: lanes(rig) == [32, 32])
    third = rig.start(**SOON)
    rig.until(lambda: sum(lanes(rig)) == 64 and lanes(rig)[0] == 22)
    first.stop()
    rig.until(lambda: lanes(rig) == [32, 32])
    third.stop()
    rig.until(lambda: lanes(rig) == [64])


@pytest.fixture
def without_triggers(pg: Rig, postgresql_url: str) -> Iterator[Callable[[str], Rig]]:
    """The same outbox for a role for which no trigger fires: ``superuser``, or one who may not change that."""
    role = f"quiet{id(pg)}"

    def make(attribute: str) -> Rig:
        with psycopg.connect(postgresql_url, autocommit=True) as server:
            server.execute(f"create role {role} login {attribute}")
            server.execute(f"alter role {role} set session_replication_role = replica")
        parts = urlsplit(pg.store.url)
        pg.store = open_store(parts._replace(netloc=f"{role}@{parts.hostname}:{parts.port}").geturl())
        return pg

    yield make
    pg.close()
    with psycopg.connect(postgresql_url, autocommit=True) as server:
        server.execute(f"drop role {role}")


@pytest.mark.needs("postgresql")
async def test_a_role_for_which_no_trigger_fires_frees_lanes_all_the_same(without_triggers: Callable[[str], Rig]) -> None:
    rig = without_triggers("superuser")
    first = rig.start(**SOON)
    rig.until(lambda: lanes(rig) == [64])
    rig.start(**SOON)
    rig.until(lambda: lanes(rig) == [32, 32])
    first.stop()
    rig.until(lambda: lanes(rig) == [64])
    show = Sql("show session_replication_role")
    connection = await rig.store.connect_async(name="test")
    assert (await connection.execute(show)).rows == [("origin",)]
    await connection.close()


@pytest.mark.needs("postgresql")
async def test_a_role_for_which_no_trigger_fires_is_refused_where_it_may_not_change_that(
    without_triggers: Callable[[str], Rig]
) -> None:
    rig = without_triggers("nosuperuser")
    relay = rig.start(**SOON)
    relay.thread.join(10)
    assert isinstance(relay.error, ConfigError)
    assert "session_replication_role is replica" in str(relay.error)
    assert "alter role" in str(relay.error)
    with pytest.raises(ConfigError, match="session_replication_role"):
        await rig.store.connect_async(name="test")


@pytest.mark.needs("postgresql")
@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_a_database_with_an_isolation_of_its_own_does_not_have_ours(postgresql_url: str, isolation: str) -> None:
    """No child was ever emptied, and statements that met another's failed."""
    with fresh_database(postgresql_url) as url:
        with psycopg.connect(url, autocommit=True) as server:
            name = urlsplit(url).path[1:]
            server.execute(f"alter database {name} set default_transaction_isolation = '{isolation}'")
        store = open_store(url)
        show = Sql("show transaction_isolation")
        connection, later = store.connect(name="test"), await store.connect_async(name="test")
        own = store.connect(name="test", factory=store.relay.connection_factory)
        assert connection.execute(show).rows == own.execute(show).rows == [("read committed",)]
        assert (await later.execute(show)).rows == [("read committed",)]
        connection.close()
        own.close()
        await later.close()


@pytest.mark.needs("postgresql")
def test_lanes_of_a_relay_that_went_without_triggers_are_found(pg: Rig) -> None:
    pg.connection.begin()
    pg.sql("select set_config('session_replication_role', 'replica', true)")
    pg.sql("update bothends.relay_lanes set relay = 0 where lane < 40 returning lane")
    pg.sql("update bothends.relay_log set relay = 0 returning messages")
    pg.connection.commit()
    pg.start(**SOON)
    pg.until(lambda: lanes(pg) == [64])
    assert pg.sql("select count(relay) from bothends.relay_log") == [(0,)]


def test_order_is_kept_while_relays_come_and_go_under_load(rig: Rig) -> None:
    rig.broker.create_topic("t", 4)
    chance = random.Random(11)
    keys = [b"k%d" % n for n in range(30)]
    count = dict.fromkeys(keys, 0)
    rig.start(**SOON)
    for turn in range(12):
        for _ in range(10):
            key = chance.choice(keys)
            rig.add("t", key, *(b"%d" % n for n in range(count[key], count[key] + 20)))
            count[key] += 20
        alive = [r for r in rig.running if r.thread.is_alive()]
        if turn % 2 == 0 and len(alive) < 4:
            rig.start(**SOON)
        elif turn % 3 == 0 and len(alive) > 1:
            chance.choice(alive).stop()
    rig.until(rig.drained)
    for key in keys:
        assert list(dict.fromkeys(rig.bodies("t", key))) == [b"%d" % n for n in range(count[key])]
    assert sum(p.records for r in rig.running for p in r.saw(Published)) == sum(count.values())


def test_a_relay_that_was_taken_for_dead_begins_anew_with_another_id(rig: Rig) -> None:
    rig.broker.create_topic("t", 1)
    relay = rig.start(**SOON)
    rig.until(lambda: relay.saw(LanesChanged))
    with_it = relay.saw(Registered)[0].relay
    rig.sql(f"delete from {rig.table('relays')} where id = {with_it} returning id")
    if rig.sqlite:
        rig.sql("update bothends_relay_lanes set relay = null returning lane")
    rig.until(lambda: relay.saw(Fenced))
    rig.add("t", b"k", b"1")
    rig.until(rig.drained)
    assert [r.relay for r in relay.saw(Registered)] != [with_it]
    assert rig.bodies("t") == [b"1"]


def test_a_zombie_can_mark_nothing_after_another_has_taken_over(rig: Rig) -> None:
    """Deterministic: the first relay's statements are run by hand, between its publishing and its settling it expires."""
    steps = rig.store.relay
    connection = rig.store.connect(name="zombie", factory=steps.connection_factory)
    who = {"pid": 1, "host": "h", "lease_s": 4.0, "former": None, "now": 0.0, "boot": "b"}
    zombie = run(steps.leases.register(name="zombie", **who), connection)
    assert len(run(steps.leases.take(zombie, 64), connection)) == 64
    rig.broker.create_topic("t", 1)
    rig.add("t", b"k", b"1", b"2")
    seqs = [row[0] for row in rig.sql(f"select seq from {rig.table('outbox')} order by seq")]

    relay = rig.start(**SOON)
    if not rig.sqlite:
        expire(rig, zombie)
    rig.until(rig.drained)
    before = rig.sql(f"select max(id), count(*) from {rig.table('relay_progress')}")
    segment = Segment(EVERY_LANE, 10**9, "" if rig.sqlite else "1:1:", 2)
    held = steps.held
    assert run(steps.rows.settle(zombie, [segment], [], []), connection) is False
    assert run(held.release(zombie, seqs), connection) is False
    assert run(held.retry(zombie, seqs[0], attempts=1, delay_s=None, passed=True, reason="", error=""), connection) is False
    assert run(held.suspect(zombie, seqs, "", ""), connection) is False
    assert run(held.get_behind(zombie, seqs), connection) is False
    assert run(held.grant(zombie, seqs[0], "skip"), connection) is False
    assert run(held.delayed_done(zombie, seqs, []), connection) is False
    assert run(steps.leases.take(zombie, 64), connection) == []
    assert run(steps.leases.renew(zombie, lease_s=4, state="ok", detail="", now=0.0, boot="b"), connection) is False
    assert rig.sql(f"select max(id), count(*) from {rig.table('relay_progress')}") == before
    connection.close()
    rig.add("t", b"k", b"3")
    rig.until(lambda: rig.bodies("t", b"k")[-1] == b"3")
    assert relay.error is None


def test_what_was_confirmed_but_not_recorded_is_published_again_under_its_id(rig: Rig) -> None:
    """Killed between the broker's confirmation and the settling: the window is forgotten with the process."""
    rig.broker.create_topic("t", 1)
    rig.add("t", b"k", b"1", b"2", b"3")
    died = threading.Event()
    killed = rig.start(**SOON)
    original = type(rig.store.relay.rows).settle

    def dies(self, me, segments, holds, delays):  # type: ignore[no-untyped-def]
        if not died.is_set():
            died.set()
            raise KeyboardInterrupt("killed")
        return original(self, me, segments, holds, delays)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(rig.store.relay.rows), "settle", dies)
        with contextlib.suppress(AssertionError):
            rig.until(lambda: not killed.thread.is_alive(), timeout_s=5)
    rig.running.remove(killed)
    assert isinstance(killed.error, KeyboardInterrupt) or rig.drained()
    if not rig.drained():
        rig.start(**SOON)
        rig.until(rig.drained)
    assert list(dict.fromkeys(rig.bodies("t"))) == [b"1", b"2", b"3"]
    for body in (b"1", b"2", b"3"):
        assert len({dict(r.headers)["ce_id"] for r in rig.records("t") if r.value == body}) == 1


def test_held_keys_move_with_their_lanes(polling_rig: Rig) -> None:
    """The head waits in the database, not in a process: the next owner of its lane goes on with it."""
    rig = polling_rig
    rig.broker.create_topic("t", 2)
    first = rig.start(**SOON)
    rig.add("gone", b"k", b"1", b"2")
    rig.until(lambda: len(rig.held()) == 2)
    rig.start(**SOON)
    rig.until(lambda: lanes(rig) == [32, 32])
    first.stop()
    rig.until(lambda: lanes(rig) == [64])
    rig.broker.create_topic("gone", 1)
    rig.add("gone", b"k", b"3")
    rig.until(rig.drained)
    assert rig.bodies("gone") == [b"1", b"2", b"3"]
    assert 0 <= lane(b"k") < 64
