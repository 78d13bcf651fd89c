"""The database goes away, or only our connection does: the relay comes back by itself, and nothing is charged for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from bothends.relay.events import LanesChanged, Published, Registered, Rejected, SourceChanged, StoreLost
from bothends.stores import open_store
from bothends.wakeup import Bell, channel, database_of, notify, postgresql_of, ring
from tests.relay.conftest import Rig


def end_relays(rig: Rig, name: str = "bothends relay") -> int:
    found = rig.sql(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and "
        "application_name = :name", name=name)
    return len(found)


def test_a_connection_that_is_cut_costs_duplicates_at_most(pg: Rig) -> None:
    pg.broker.create_topic("t", 2)
    relay = pg.start()
    for n in range(20):
        pg.add("t", b"k", *(b"%d" % m for m in range(n * 50, n * 50 + 50)))
        if n % 5 == 4:
            end_relays(pg)
    pg.until(pg.drained)
    assert list(dict.fromkeys(pg.bodies("t"))) == [b"%d" % n for n in range(1000)]
    pg.until(lambda: relay.saw(StoreLost))
    assert len(relay.saw(Registered)) >= 2
    assert not relay.saw(Rejected)


def test_the_lanes_of_its_former_self_are_free_at_once(pg: Rig) -> None:
    relay = pg.start(lease_s=30.0, renew_s=0.1)
    pg.until(lambda: relay.saw(LanesChanged))
    end_relays(pg)
    pg.until(lambda: len(relay.saw(LanesChanged)) == 2)
    assert pg.sql("select count(*) from bothends.relays") == [(1,)]


@pytest.fixture
def listening(pg: Rig, short_path: Path) -> Iterator[Bell]:
    bell = Bell(database_of(pg.store.url), str(short_path))
    bell.listen(pg.store.url, "bothends")
    yield bell
    bell.close()


def rings_until(bell: Bell, timeout_s: float, act: object = None) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if callable(act):
            act()
        if bell.wait(0.1):
            return True
    return False


def test_a_notification_rings_also_after_its_connection_was_ended(pg: Rig, listening: Bell) -> None:
    assert rings_until(listening, 10), "LISTEN itself rings: something may have been missed before"
    with psycopg.connect(pg.store.url, autocommit=True) as connection:
        assert rings_until(listening, 5, lambda: notify(connection))
        assert end_relays(pg, "bothends listen") == 1
        assert rings_until(listening, 10), "listening again"
        assert rings_until(listening, 5, lambda: notify(connection))


def test_a_database_that_refuses_is_not_asked_without_pause(short_path: Path) -> None:
    attempts: list[float] = []
    original = psycopg.connect

    def connect(*args: object, **kwargs: object) -> object:
        attempts.append(time.monotonic())
        raise psycopg.OperationalError("refused")

    bell = Bell("x", str(short_path))
    done = threading.Event()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psycopg, "connect", connect)
        bell.listen("postgresql://nowhere/x", "bothends")
        done.wait(1.2)
        bell.close()
    assert psycopg.connect is original
    assert 1 <= len(attempts) <= 5


def test_a_ring_reaches_only_its_own_database(short_path: Path) -> None:
    mine, other = Bell("mine", str(short_path)), Bell("other", str(short_path))
    ring("mine", str(short_path))
    assert mine.wait(1)
    assert not other.rang()
    for each in (mine, other):
        each.close()
    ring("mine", str(short_path))
    assert list(short_path.iterdir()) == []


def test_rings_never_wait_and_never_raise(short_path: Path) -> None:
    bell = Bell("mine", str(short_path))
    for _ in range(2000):
        ring("mine", str(short_path))
    assert bell.wait(1)
    assert not bell.rang()
    bell.close()
    ring("mine", str(short_path / "not there" / "at all"))
    ring("mine", "/proc/1")


def test_the_socket_of_a_dead_relay_is_removed(short_path: Path) -> None:
    bell = Bell("mine", str(short_path))
    bell._socket.close()  # type: ignore[union-attr]
    assert len(list(short_path.iterdir())) == 1
    ring("mine", str(short_path))
    assert list(short_path.iterdir()) == []


def test_names_of_one_database_agree() -> None:
    assert database_of("postgresql://u:p@localhost:5432/shop") == postgresql_of("127.0.0.1", "5432", "shop")
    assert database_of("postgresql+asyncpg://u@/shop?host=/run/postgresql") == postgresql_of("", "", "shop")
    assert database_of("postgresql://db.example/shop") == postgresql_of("db.example", "5432", "shop")
    assert database_of("postgresql://db.example/shop", "other") != database_of("postgresql://db.example/shop")
    assert database_of("sqlite:///a/../b.db") == database_of("sqlite:///b.db")
    assert channel() == "bothends_outbox"


@pytest.mark.parametrize("url", [
    "postgresql://u:p@a:1,b:5432/shop?target_session_attrs=read-write", "postgresql://b,a:1/shop",
    "postgresql:///shop?host=a,b&port=1,5432", "postgresql://u@/?host=a,b&port=1,&dbname=shop",
])
def test_names_of_one_database_with_several_hosts_agree(url: str) -> None:
    assert database_of(url) == postgresql_of("a,b", "1,5432", "shop") != database_of("postgresql://a:1/shop")
    assert database_of("postgresql://[::1]:1,[::2]:2/shop") == postgresql_of("::2,localhost", "2,1", "shop")


def test_a_relay_with_several_hosts_works_on_the_one_that_answers(
    pg_log: Rig, rig_of: Callable[..., Rig]
) -> None:
    """As for a failover: the first host is down. Rows are read from the log, over the second connection."""
    parts = urlsplit(pg_log.store.url)
    several = parts._replace(
        netloc=f"{parts.username}:secret@127.0.0.1:1,{parts.hostname}:{parts.port}",
        query="target_session_attrs=read-write").geturl()
    rig = rig_of(open_store(several), "wal")
    rig.broker.create_topic("t", 1)
    relay = rig.start(listen=True)
    rig.until(lambda: any(event.source == "wal" for event in relay.saw(SourceChanged)))
    rig.add("t", b"k", b"1")
    rig.until(lambda: rig.bodies("t") == [b"1"])
    relay.stop()


def test_an_outage_of_the_database_ends_with_everything_published(pg: Rig, postgresql_url: str) -> None:
    """No connection is let in for a while."""
    pg.broker.create_topic("t", 1)
    relay = pg.start()
    pg.add("t", b"k", b"1")
    pg.until(pg.drained)
    name = pg.sql("select current_database()")[0][0]
    with psycopg.connect(postgresql_url, autocommit=True) as server:
        server.execute(f'alter database "{name}" allow_connections false')
        end_relays(pg)
        pg.until(lambda: len(relay.saw(StoreLost)) >= 3)
        pg.add("t", b"k", b"2")
        server.execute(f'alter database "{name}" allow_connections true')
    pg.until(pg.drained)
    assert list(dict.fromkeys(pg.bodies("t"))) == [b"1", b"2"]
    pg.until(lambda: sum(p.records for p in relay.saw(Published)) == 2)
    assert len(relay.saw(StoreLost)) < 60, "it asked without pause"
