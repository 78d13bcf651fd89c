"""Order, time and counted work of ``add``: strict keys [P4], delays by the database's clock [O4][P9], statements."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel

from bothends import InvalidEvent, Service
from bothends import event as declare
from bothends.core.lanes import lane
from bothends.drafts import Draft, draft
from bothends.stores import open_store
from bothends.stores.steps import Result, Sql, run
from tests.stores.conftest import Look

pg = pytest.mark.needs("postgresql")
URLS = [pytest.param("sqlite_url", id="sqlite"), pytest.param("pg15_url", id="postgresql", marks=pg)]


@declare("account.changed", key="account", topic="accounts", strict=True)
@dataclass
class Changed:
    account: str
    n: int = 0


@pytest.fixture(params=URLS)
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


def blocked(eye: psycopg.Connection[Any], pid: int) -> None:
    for _ in range(20_000):
        row = eye.execute("select cardinality(pg_blocking_pids(%s))", [pid]).fetchone()
        if row and row[0]:
            return
    raise AssertionError("nobody waited")


# Strict keys ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [None, IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
def test_strict_transactions_of_one_key_wait_for_each_other(
    pg15_url: str, service: Service, look: Callable[[str], Look], level: IsolationLevel | None
) -> None:
    with closing(psycopg.connect(pg15_url)) as first, closing(psycopg.connect(pg15_url)) as second, \
            closing(psycopg.connect(pg15_url, autocommit=True)) as eye, ThreadPoolExecutor(1) as pool:
        first.isolation_level = second.isolation_level = level
        a = service.outbox.add(first, Changed("1"))
        other = service.outbox.add(second, Changed("2"))  # another key: at once
        waits = pool.submit(service.outbox.add, second, Changed("1"))
        blocked(eye, second.info.backend_pid)
        later = service.outbox.add(first, Changed("1"))
        first.commit()
        b = waits.result(10)
        second.commit()
    assert look(pg15_url).ids == [a, other, later, b]


def test_strict_events_take_effect_in_commit_order_where_add_comes_first(pg15_url: str, service: Service) -> None:
    with psycopg.connect(pg15_url) as connection:
        connection.execute("create sequence if not exists commits")

    def writer(_: int) -> list[tuple[int, str]]:
        found = []
        with closing(psycopg.connect(pg15_url)) as connection:
            for _n in range(20):
                id = service.outbox.add(connection, Changed("shared"))
                row = connection.execute("select nextval('commits')").fetchone()
                assert row
                connection.commit()
                found.append((row[0], id))
        return found

    with ThreadPoolExecutor(4) as pool:
        by_commit = [id for _, id in sorted(pair for pairs in pool.map(writer, range(4)) for pair in pairs)]
    with psycopg.connect(pg15_url) as connection:
        rows = connection.execute("select id from bothends.outbox where source = %s order by seq", [service.source])
        assert [row[0] for row in rows] == by_commit


def test_a_rolled_back_savepoint_lets_the_strict_key_go(pg15_url: str, service: Service) -> None:
    with closing(psycopg.connect(pg15_url)) as first, closing(psycopg.connect(pg15_url)) as second:
        first.execute("select 1")
        with first.transaction(force_rollback=True):
            service.outbox.add(first, Changed("1"))
        second.execute("set lock_timeout = '2s'")
        service.outbox.add(second, Changed("1"))


# Time -------------------------------------------------------------------------------------------------------------

ADD_IN_ANOTHER_ZONE = """
import sys
from datetime import datetime, timedelta
from bothends import Service
url, source = sys.argv[1:]
service = Service(source)
if url.startswith("sqlite"):
    import sqlite3
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
else:
    import psycopg
    connection = psycopg.connect(url, options="-c TimeZone=America/New_York")
service.outbox.add(connection, {}, type="t", delay=timedelta(hours=1))
service.outbox.add(connection, {}, type="t", deliver_at=datetime.now().astimezone() + timedelta(hours=1))
service.outbox.add(connection, {}, type="t", id="given", delay=timedelta(hours=1))
connection.commit()
"""


def test_a_delay_means_the_same_in_every_time_zone(url: str, service: Service, look: Callable[[str], Look]) -> None:
    for zone in ("Etc/GMT+1", "Asia/Shanghai"):
        source = f"{service.source}-{zone.replace('/', '').replace('+', '').lower()}"
        subprocess.run(
            [sys.executable, "-c", ADD_IN_ANOTHER_ZONE, url, source], check=True, env={**os.environ, "TZ": zone},
        )
        seen = look(url)
        seen.source = source
        now = "(julianday('now') - 2440587.5) * 86400.0" if "sqlite" in url else "clock_timestamp()"
        left = seen.column(f"{'deliver_at' if 'sqlite' in url else 'extract(epoch from deliver_at)'} - "
                           f"{now if 'sqlite' in url else f'extract(epoch from {now})'}")
        assert len(left) == 3
        assert all(3_540 < float(seconds) <= 3_600.5 for seconds in left), left


def test_instants_are_kept_to_the_microsecond(pg15_url: str, service: Service, look: Callable[[str], Look]) -> None:
    due = (datetime.now(UTC) + timedelta(days=20_000)).replace(microsecond=123_456)
    with psycopg.connect(pg15_url) as connection:
        service.outbox.add(connection, {}, type="t", deliver_at=due.astimezone(timezone(timedelta(hours=5, minutes=45))))
        service.outbox.add(connection, {}, type="t", deliver_at=datetime(1970, 1, 1, tzinfo=UTC))
        for wrong in (datetime.max, datetime.max.replace(tzinfo=UTC), datetime(2030, 1, 1)):
            with pytest.raises(InvalidEvent):
                service.outbox.add(connection, {}, type="t", deliver_at=wrong)
        with pytest.raises(InvalidEvent):
            service.outbox.add(connection, {}, type="t", delay=timedelta(days=365_000))
    assert look(pg15_url).column("deliver_at") == [due, datetime(1970, 1, 1, tzinfo=UTC)]


# Lanes ------------------------------------------------------------------------------------------------------------


def test_both_databases_have_one_idea_of_lanes(
    pg15_url: str, sqlite_url: str, service: Service, look: Callable[[str], Look]
) -> None:
    keys = ["", "é", "e\u0301", "👅", *(f"key {n}" for n in range(200)), None]
    for url, computed in ((pg15_url, "bothends.lane(key, seq)"), (sqlite_url, "lane")):
        connection = open_store(url).connect()
        connection.begin()
        for key in keys:
            service.outbox.add(connection.driver, {}, type="t", key=key)
        connection.commit()
        connection.close()
        lanes, last = look(url).column(computed), look(url).column("seq")[-1]
        assert lanes == [lane(key.encode()) for key in keys if key is not None] + [last & 63]
        assert set(lanes) <= set(range(64))
    assert len({lane(str(n).encode()) for n in range(10_000)}) == 64


# Counted work -----------------------------------------------------------------------------------------------------


def traced(connection: psycopg.Connection[Any], work: Callable[[], None]) -> list[str]:
    """The names of the protocol's messages from the client, as libpq saw them."""
    with tempfile.TemporaryFile("w+") as file:
        connection.pgconn.trace(file.fileno())
        work()
        connection.pgconn.untrace()
        file.seek(0)
        return [line.split("\t")[3].strip() for line in file if line.split("\t")[1] == "F"]


@pytest.mark.parametrize("options", [{}, {"id": "given"}, {"delay": timedelta(seconds=5)}, {"key": None}])
def test_add_is_one_statement_in_one_round_trip(pg15_url: str, service: Service, options: dict[str, Any]) -> None:
    with closing(psycopg.connect(pg15_url)) as connection:
        connection.execute("select 1")
        sent = traced(connection, lambda: _none(service.outbox.add(connection, Changed("1"), **options)))
        assert (sent.count("Execute"), sent.count("Sync")) == (1, 1)


def test_a_pipeline_does_not_wait_for_add(pg15_url: str, service: Service, look: Callable[[str], Look]) -> None:
    added: list[str] = []

    def sent(add: Callable[[psycopg.Connection[Any]], None]) -> tuple[int, int, int]:
        with closing(psycopg.connect(pg15_url)) as connection:

            def work() -> None:
                with connection.pipeline():
                    for n in range(20):
                        connection.execute("insert into business (id) values (%s)", [f"{service.source} {n}"])
                        add(connection)

            names = traced(connection, work)
            connection.commit()
        return names.count("Execute"), names.count("Sync"), names.count("Flush")

    nothing = sent(lambda connection: None)
    fresh = sent(lambda connection: added.append(service.outbox.add(connection, {}, type="t")))
    strict = sent(lambda connection: added.append(service.outbox.add(connection, Changed("1"))))
    # With BEGIN. Of the flushes one is psycopg's own: it asks for it where results are not there yet at the end.
    assert [executed for executed, _, _ in (nothing, fresh, strict)] == [21, 41, 41]
    assert fresh[1] == strict[1] == nothing[1]
    assert max(flushes for _, _, flushes in (nothing, fresh, strict)) <= 1
    assert look(pg15_url).ids == added


def test_a_pipeline_in_autocommit_knows_whether_it_is_in_a_transaction(pg15_url: str, service: Service) -> None:
    from bothends import NoTransaction

    with psycopg.connect(pg15_url, autocommit=True) as connection, connection.pipeline():
        connection.execute("select 1")
        with pytest.raises(NoTransaction):
            service.outbox.add(connection, {}, type="t")
        connection.execute("begin")
        service.outbox.add(connection, {}, type="t")
        connection.execute("rollback")
        with connection.transaction():
            service.outbox.add(connection, {}, type="t")


def _none(_: object) -> None:
    return None


class Counting:
    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.texts: list[str] = []

    def execute(self, statement: Sql, /) -> Result:
        self.texts.append(statement.text)
        result: Result = self.connection.execute(statement)
        return result


def test_many_drafts_are_few_statements_and_keep_their_order(
    url: str, service: Service, look: Callable[[str], Look]
) -> None:
    def make(n: int, **options: Any) -> Draft:
        return draft({"n": n}, source=service.source, default_topic="a", type="t", **options)

    drafts = [make(n, key=f"k{n % 7}", headers=[("n", str(n).encode())] if n % 3 else ()) for n in range(900)]
    drafts += [make(900, delay=timedelta(hours=1)), make(901, subject="s"),
               draft(Changed("1", 902), source=service.source, default_topic="a"),
               draft(Changed("2", 903), source=service.source, default_topic="a")]
    store = open_store(url)
    connection = store.connect()
    counting = Counting(connection)
    connection.begin()
    run(store.outbox.add(drafts), counting)
    connection.commit()
    connection.close()
    seen = look(url)
    assert seen.ids == [one.id for one in drafts]
    assert seen.column("key") == [one.key for one in drafts]
    assert seen.column("body") == [one.body for one in drafts]
    assert [n for n, due in enumerate(seen.column("deliver_at")) if due is not None] == [900]
    assert len(counting.texts) == (10 if store.dialect == "sqlite" else 3)  # PostgreSQL: 500 + keys + 404
