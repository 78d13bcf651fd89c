"""``add`` into the log alone: what a message holds, its order and place, what is refused, and who decides [R8]."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothends import ConfigError, InvalidEvent, NoTransaction, Service, Tombstone
from bothends import event as declare
from bothends.codecs.cloudevents import unpack_attributes, unpack_headers
from bothends.drafts import Draft, draft
from bothends.relay.records import outgoing
from bothends.stores import open_store
from bothends.stores.connection import Connection
from bothends.stores.postgresql.messages import EVENTS_MAX, PostgresqlMessages, check, pack, unpack
from bothends.stores.steps import Result, Sql, run
from tests.stores.handles import POSTGRESQL, SQLITE, Held
from tests.stores.logs import Log
from tests.stores.test_outbox_order import blocked

pg = pytest.mark.needs("postgresql")


@declare("account.changed", key="account", topic="accounts", strict=True)
@dataclass
class Changed:
    account: str


@pytest.fixture
def log(pg15_url: str) -> Iterator[Log]:
    with closing(Log(pg15_url)) as found:
        yield found


@pytest.fixture
def by_message() -> Service:
    return Service(f"s{uuid.uuid4().hex[:12]}", relay_source="message")


@pytest.fixture(params=[pytest.param(opener, id=name) for name, opener in POSTGRESQL.items()])
async def held(request: pytest.FixtureRequest, pg15_url: str) -> AsyncIterator[Held]:
    manager: AbstractAsyncContextManager[Held] = request.param(pg15_url)
    async with manager as opened:
        yield opened


# What is in one ---------------------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40)
drafts = st.builds(
    Draft, id=texts, source=texts, type=texts, topic=texts, key=st.none() | st.binary(max_size=40),
    body=st.none() | st.binary(max_size=200), content_type=st.none() | texts, time=texts,
    version=st.integers(1, 2**31 - 1), attributes=st.dictionaries(texts, texts, max_size=3),
    headers=st.lists(st.tuples(texts, st.binary(max_size=20)), max_size=3), deliver_at=st.none(), delay_s=st.none(),
    strict=st.booleans(), given_id=st.just(False),
)


@given(drafts)
def test_every_event_comes_back(made: Draft) -> None:
    (row,) = unpack(pack([made]))
    id, source, type, topic, key, body, content_type, time, version, attributes, headers = row
    assert (id.decode(), source, type, topic, key, body, content_type, time.decode(), version) == (
        made.id, made.source, made.type, made.topic, made.key, made.body, made.content_type, made.time, made.version)
    assert unpack_attributes(attributes) == made.attributes
    assert unpack_headers(headers) == made.headers
    [record] = outgoing([(0, 1, 0, *row)])  # it is what a relay publishes
    assert (record.topic, record.key, record.value) == (made.topic, made.key, made.body)


@given(st.binary(max_size=200))
def test_other_bytes_are_a_value_error(content: bytes) -> None:
    with pytest.raises(ValueError):
        unpack(content)


ROW: list[Any] = [b"id", "source", "type", "topic", None, None, None, b"time", 1, None, None]


@pytest.mark.parametrize("values", [
    ROW[:-1], [*ROW, None], ["id", *ROW[1:]], [b"id", b"source", *ROW[2:]], [*ROW[:4], "key", *ROW[5:]],
    [*ROW[:7], "time", *ROW[8:]], [*ROW[:8], 0, *ROW[9:]], [*ROW[:8], 2**31, *ROW[9:]], [*ROW[:8], True, *ROW[9:]],
    [b"\xff", *ROW[1:]], [b"\0", *ROW[1:]], [b"id", "a\0", *ROW[2:]], [*ROW[:6], "\0", *ROW[7:]], [*ROW[:7], b"\0", *ROW[8:]],
    [*ROW[:9], "\0", None], {"id": 1}, None,
])
def test_what_is_no_row_is_a_value_error(values: Any) -> None:
    with pytest.raises(ValueError):
        unpack(msgspec.msgpack.encode([ROW, values]))


def test_a_row_may_have_nothing_that_is_optional() -> None:
    assert unpack(msgspec.msgpack.encode([ROW])) == [tuple(ROW)]
    for content in ([], ROW, {}, None):
        with pytest.raises(ValueError):
            unpack(msgspec.msgpack.encode(content))
    with pytest.raises(ValueError):
        unpack(msgspec.msgpack.encode([ROW]) + b"\0")


@pytest.mark.parametrize("count", [1, 11, 15, 16, 256, EVENTS_MAX - 1])
def test_any_number_of_events_share_a_message(count: int) -> None:
    """The array's own length has zeros in it from 16 on."""
    rows = [[b"%d" % n, *ROW[1:]] for n in range(count)]
    assert [row[0] for row in unpack(msgspec.msgpack.encode(rows))] == [row[0] for row in rows]
    with pytest.raises(ValueError):
        unpack(msgspec.msgpack.encode([*rows, [b"\0", *ROW[1:]]]))


# Through every handle ---------------------------------------------------------------------------------------------


@pg
async def test_a_message_commits_with_the_state_and_nothing_is_stored(
    held: Held, log: Log, by_message: Service, look: Callable[[str], Any], pg15_url: str
) -> None:
    id = uuid.uuid4().hex
    await held.execute(f"insert into business (id) values ('{id}')")
    raw, headers = bytes(range(256)) * 3_500, [("trace", b"\x00\xff"), ("ø", "👅".encode()), ("trace", b"")]
    first = await held.add(
        by_message, {"k\0": "👅"}, type="wörd.👅", key="é👅", headers=headers, subject="it's", version=7)
    second = await held.add(by_message, raw, type="bulk", key="", content_type="application/x-thing", topic="other")
    third = await held.add(by_message, Tombstone("gone", key="%s $1 :key ?"))
    assert log.ids == []
    await held.commit()
    rows = log.read()
    assert [row[0].decode() for row in rows] == [first, second, third]
    assert [row[1] for row in rows] == [by_message.source] * 3
    assert [row[2] for row in rows] == ["wörd.👅", "bulk", "gone"]
    assert [row[3] for row in rows] == [f"{by_message.name}.events", "other", f"{by_message.name}.events"]
    assert [row[4] for row in rows] == ["é👅".encode(), b"", b"%s $1 :key ?"]
    assert [row[5] for row in rows] == [b'{"k\\u0000":"\xf0\x9f\x91\x85"}', raw, None]
    assert [row[6] for row in rows] == ["application/json", "application/x-thing", None]
    assert (rows[0][8], rows[0][9], unpack_headers(rows[0][10])) == (7, '{"subject":"it\'s"}', headers)
    seen = look(pg15_url)
    assert (seen.business(id), seen.ids) == (1, [])


@pg
async def test_what_is_rolled_back_leaves_no_message(held: Held, log: Log, by_message: Service) -> None:
    added: list[str] = []

    async def body() -> None:
        added.append(await held.add(by_message, {"n": len(added)}, type="a"))

    await held.execute("select 1")
    await body()
    await held.rollback()
    assert log.ids == []
    await held.execute("select 1")
    await body()
    await held.savepoint(body, keep=False)
    await held.savepoint(body, keep=True)
    await body()
    await held.commit()
    assert log.ids == [added[1], added[3], added[4]]


@pg
async def test_what_needs_a_table_is_refused_before_any_sql(held: Held, log: Log, by_message: Service) -> None:
    later = datetime(2090, 1, 1, tzinfo=UTC)
    await held.execute("select 1")
    for option in ({"id": "mine"}, {"delay": timedelta(seconds=1)}, {"deliver_at": later}):
        with pytest.raises(InvalidEvent, match=f"{next(iter(option))}.*relay_source"):
            await held.add(by_message, {}, type="a", **option)
    id = await held.add(by_message, {}, type="a", delay=timedelta(0))  # is now
    await held.commit()
    assert log.ids == [id]


@pg
@pytest.mark.parametrize("opener", [pytest.param(opener, id=name) for name, opener in SQLITE.items()])
async def test_other_databases_have_no_log(
    opener: Callable[[str], AbstractAsyncContextManager[Held]], sqlite_url: str, by_message: Service
) -> None:
    async with opener(sqlite_url) as held:
        await held.execute("insert into business (id) values ('x')")
        with pytest.raises(ConfigError, match="only PostgreSQL has a log"):
            await held.add(by_message, {}, type="a")
        await held.rollback()


# On PostgreSQL ----------------------------------------------------------------------------------------------------


@pg
def test_a_message_that_would_commit_by_itself_is_refused(pg15_url: str, log: Log, by_message: Service) -> None:
    with psycopg.connect(pg15_url, autocommit=True) as connection:
        with pytest.raises(NoTransaction):
            by_message.outbox.add(connection, {}, type="a")
        with connection.pipeline(), pytest.raises(NoTransaction):
            by_message.outbox.add(connection, {}, type="a")
        with connection.transaction():
            id = by_message.outbox.add(connection, {}, type="a")
    assert log.ids == [id]


@pg
def test_messages_of_transactions_come_in_the_order_of_their_commits(pg15_url: str, log: Log, by_message: Service) -> None:
    with closing(psycopg.connect(pg15_url)) as one, closing(psycopg.connect(pg15_url)) as two:
        early = by_message.outbox.add(one, {}, type="a")
        late = [by_message.outbox.add(two, {"n": n}, type="a") for n in range(3)]
        two.commit()
        more = by_message.outbox.add(one, {}, type="a")
        one.commit()
    assert log.ids == [*late, early, more]


@pg
def test_strict_keys_wait_for_each_other_and_for_rows(pg15_url: str, log: Log, by_message: Service) -> None:
    stored = Service(by_message.name, relay_source="poll")
    for other in (by_message, stored):
        with closing(psycopg.connect(pg15_url)) as first, closing(psycopg.connect(pg15_url)) as second, \
                closing(psycopg.connect(pg15_url, autocommit=True)) as eye, ThreadPoolExecutor(1) as pool:
            by_message.outbox.add(first, Changed("1"))
            by_message.outbox.add(second, Changed("2"))  # another key waits for nobody
            waiting = pool.submit(other.outbox.add, second, Changed("1"))
            blocked(eye, second.info.backend_pid)
            first.commit()
            waiting.result()
            second.rollback()
    assert len(log.read()) == 2


@pg
@pytest.mark.parametrize("count", [1, 2, 1_203])
def test_many_go_in_few_statements_in_their_order(pg15_url: str, log: Log, count: int) -> None:
    store = open_store(pg15_url)
    made = [draft({"n": n}, source="s", default_topic="t", type="a", key=str(n % 3)) for n in range(count)]
    made = [msgspec.structs.replace(one, strict=count == 2) for one in made]
    connection = store.connect()
    counted = Counting(connection)
    connection.begin()
    run(PostgresqlMessages("bothends").add(made), counted)
    connection.commit()
    connection.close()
    assert log.ids == [one.id for one in made]
    assert counted.statements == {1: 1, 2: 2, 1_203: 3}[count]
    assert not counted.waited


class Counting:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.statements, self.waited = 0, 0

    def execute(self, statement: Sql, /) -> Result:
        self.statements += 1
        self.waited += statement.rows
        return self._connection.execute(statement)


@pg
def test_in_a_pipeline_nobody_waits_for_a_message(pg15_url: str, log: Log, by_message: Service) -> None:
    with closing(psycopg.connect(pg15_url)) as first, closing(psycopg.connect(pg15_url)) as second:
        first.execute("lock table business")
        with second.pipeline():
            second.execute("insert into business (id) values ('waits')")
            ids = [by_message.outbox.add(second, {"n": n}, type="a") for n in range(3)]  # though nothing is answered
            first.rollback()
            second.commit()
    assert log.ids == ids


@pg
def test_another_schema_has_a_prefix_of_its_own(pg15_url: str) -> None:
    service = Service("orders", relay_source="message", schema="o-2 b")
    with closing(Log(pg15_url, "o-2 b")) as log:
        with psycopg.connect(pg15_url) as connection:
            id = service.outbox.add(connection, {}, type="a")
        assert log.ids == [id]


@pg
def test_a_role_needs_no_right_to_write_messages(pg15_url: str, log: Log, by_message: Service) -> None:
    role = f"poor_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(pg15_url, autocommit=True) as owner:
        owner.execute(f"create role {role}".encode())
        try:
            with psycopg.connect(pg15_url) as connection:
                connection.execute(f"set role {role}".encode())
                id = by_message.outbox.add(connection, Changed("1"))
        finally:
            owner.execute(f"drop role {role}".encode())
    assert log.ids == [id]


# Who decides ------------------------------------------------------------------------------------------------------


@pytest.fixture
def where(pg15_url: str, log: Log, look: Callable[[str], Any]) -> Callable[[Service], str]:
    """Where the next event of a service goes."""

    def add(service: Service) -> str:
        with psycopg.connect(pg15_url) as connection:
            id = service.outbox.add(connection, {}, type="a")
        stored = look(pg15_url).connection.execute(Sql("select 1 from bothends.outbox where id = :id", {"id": id})).rows
        logged = log.ids
        assert logged == ([] if stored else [id])
        return "table" if stored else "log"

    return add


@pg
def test_the_setting_is_looked_up_at_the_first_add(
    where: Callable[[Service], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BOTHENDS_RELAY_SOURCE", "message")
    service, other = Service("order-desk"), Service("stock")  # nothing is read here
    monkeypatch.setenv("BOTHENDS_RELAY_SOURCE", "wal")
    assert where(service) == "table"
    monkeypatch.setenv("BOTHENDS_STOCK_RELAY_SOURCE", "message")
    assert [where(service), where(other)] == ["table", "log"]
    monkeypatch.setenv("BOTHENDS_STOCK_RELAY_SOURCE", "poll")
    assert where(other) == "log"  # nor a second time
    monkeypatch.delenv("BOTHENDS_RELAY_SOURCE")
    monkeypatch.delenv("BOTHENDS_STOCK_RELAY_SOURCE")
    (tmp_path / "bothends.toml").write_text('[orders]\nrelay_source = "message"\n')
    assert where(Service("orders")) == "log"
    assert where(Service("orders", relay_source="auto")) == "table"  # code wins over TOML
    monkeypatch.setenv("BOTHENDS_RELAY_SOURCE", "poll")
    assert where(Service("orders", relay_source="message")) == "table"  # the environment wins over code


@pg
def test_a_setting_that_is_none_is_a_config_error(pg15_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOTHENDS_RELAY_SOURCE", "log")
    monkeypatch.setenv("BOTHENDS_PARTITIONS", "not a number")  # is no business of one who only adds
    with psycopg.connect(pg15_url) as connection:
        service = Service("orders")
        for _ in range(2):
            with pytest.raises(ConfigError, match="BOTHENDS_RELAY_SOURCE: relay_source must be one of"):
                service.outbox.add(connection, {}, type="a")
        monkeypatch.setenv("BOTHENDS_RELAY_SOURCE", "poll")
        service.outbox.add(connection, {}, type="a")
        connection.rollback()


@pg
def test_a_process_tells_what_its_flags_say(
    where: Callable[[Service], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from bothends.operating.apps import load

    name = f"told_{uuid.uuid4().hex[:8]}"
    (tmp_path / f"{name}.py").write_text("from bothends import Service\norders = Service('orders')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    service = load(name).services[0]
    assert where(service) == "table"
    load(name, {"relay_source": "message"})
    assert where(service) == "log"


@pg
def test_what_tests_keep_becomes_a_row_and_the_same_is_refused(where: Callable[[Service], str], by_message: Service) -> None:
    assert where(by_message) == "log"
    with by_message.outbox.kept():
        with by_message.outbox.kept():
            assert where(by_message) == "table"
        assert where(by_message) == "table"
        with pytest.raises(InvalidEvent, match="relay_source"):
            by_message.outbox.check(draft({}, source="s", default_topic="t", type="a", id="mine"))
    assert where(by_message) == "log"


def test_check_lets_through_what_needs_no_table() -> None:
    check(draft({}, source="s", default_topic="t", type="a", derived_id="d", delay=timedelta(0)))
