"""A database, a broker that obeys the test, and relays in threads. Waiting is by what relays report, never by the clock."""

from __future__ import annotations

import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from bothends.brokers import open_broker
from bothends.core.lanes import lane
from bothends.core.retry import Retry
from bothends.message import Record
from bothends.relay import Relay, RelaySettings
from bothends.settings import Source
from bothends.stores import Store, open_store
from bothends.stores.postgresql.slots import SlotSteps
from bothends.stores.schema import apply
from bothends.stores.steps import Sql, run
from tests.conftest import fresh_database
from tests.relay.unruly import Unruly

QUICK = Retry(attempts=3, first_s=0.02, factor=1.0, then="hold")
T = TypeVar("T")


class Running:
    """One relay in a thread of its own."""

    def __init__(self, rig: Rig, settings: RelaySettings, name: str) -> None:
        self.events: list[object] = []
        self._rig = rig
        self.relay = Relay(rig.store, rig.broker, name=name, settings=settings, observe=self._observe)
        self.stopping = threading.Event()
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.relay.run(self.stopping, stop_timeout_s=5)
        except BaseException as error:
            self.error = error
        finally:
            with self._rig.changed:
                self._rig.changed.notify_all()

    def _observe(self, event: object) -> None:
        with self._rig.changed:
            self.events.append(event)
            self._rig.changed.notify_all()

    def saw(self, kind: type[T]) -> list[T]:
        return [event for event in self.events if isinstance(event, kind)]

    def stop(self) -> None:
        self.stopping.set()
        self.thread.join(10)
        assert not self.thread.is_alive(), "the relay did not stop"
        if self.error is not None:
            raise self.error


class Rig:
    def __init__(self, store: Store, broker: Unruly, source: Source = "poll") -> None:
        self.store, self.broker, self.source = store, broker, source
        self.changed = threading.Condition()
        self.running: list[Running] = []
        self.connection = store.connect(name="test")
        self.sqlite = store.dialect == "sqlite"
        self._count = 0

    def table(self, name: str) -> str:
        return f"bothends_{name}" if self.sqlite else f"bothends.{name}"

    def sql(self, text: str, **params: Any) -> list[tuple[Any, ...]]:
        return self.connection.execute(Sql(text, params)).rows

    def insert(self, topic: str, key: bytes | None, body: bytes, **columns: Any) -> Sql:
        """The statement that adds one event."""
        self._count += 1
        row: dict[str, Any] = {
            "id": f"e{self._count}-{uuid.uuid4().hex[:8]}", "source": "test", "type": "thing.happened", "topic": topic,
            "key": key, "body": body, "content_type": "application/json", "time": "2026-01-01T00:00:00Z",
        } | columns
        if self.sqlite:
            row["key_lane"] = None if key is None else lane(key)
        values = {name: f":{name}" for name in row}
        if "due_in_s" in row:
            del values["due_in_s"]
            values["deliver_at"] = (
                "(julianday('now') - 2440587.5) * 86400.0 + :due_in_s" if self.sqlite
                else "clock_timestamp() + make_interval(secs => :due_in_s)"
            )
        return Sql(f"insert into {self.table('outbox')} ({', '.join(values)}) values ({', '.join(values.values())})", row)

    def add(self, topic: str, key: bytes | None, *bodies: bytes, **columns: Any) -> None:
        """Adds events in one transaction."""
        self.connection.begin()
        for body in bodies:
            self.connection.execute(self.insert(topic, key, body, **columns))
        self.connection.commit()

    def start(self, *, publish: Retry = QUICK, name: str = "relay", **settings: Any) -> Running:
        values = {"publish": publish, "batch_max": 100, "poll_idle_s": 0.01, "source": self.source} | settings
        started = Running(self, RelaySettings(**values), name)
        self.running.append(started)
        return started

    def until(self, what: Callable[[], T], timeout_s: float = 60.0) -> T:
        """The first true answer of ``what``, asked again whenever a relay reports something, and now and then. A slot, for
        one, waits for every transaction of the server, those of other tests too."""
        deadline = time.monotonic() + timeout_s
        while not (found := what()):
            for each in self.running:
                if each.error is not None:
                    raise each.error
            assert time.monotonic() < deadline, f"not within {timeout_s} s: {self.diagnosis()}"
            with self.changed:
                self.changed.wait(0.02)
        return found

    def diagnosis(self) -> str:
        held = self.sql(f"select seq, topic, state, next_at, reason from {self.table('held')} order by seq limit 20")
        seen = [Counter(type(event).__name__ for event in each.events) for each in self.running]
        return f"held {held}; relays saw {seen}"

    def records(self, topic: str) -> list[Record]:
        """What the topic has, by partition and offset."""
        found: list[Record] = []
        for number in range(self.broker.real.topic(topic).partitions):
            offset = 0
            while page := self.broker.read(topic, partition=number, offset=offset, max_records=10_000):
                found += page
                offset = page[-1].origin.offset + 1
        return found

    def bodies(self, topic: str, key: bytes | None = None) -> list[bytes | None]:
        """Bodies in order per key; only those of ``key`` where it is given. First copies and later ones."""
        return [record.value for record in self.records(topic) if key is None or record.key == key]

    def held(self) -> list[tuple[Any, ...]]:
        """(body, state, attempts, reason) of held rows, in order."""
        found = self.sql(f"select body, state, attempts, reason from {self.table('held')} order by seq")
        return [(bytes(row[0]), *row[1:]) for row in found]

    def drained(self) -> bool:
        """Whether nothing waits: neither in the outbox nor beside it."""
        if self.sqlite:
            waiting = self.sql("select count(*) from bothends_outbox")[0][0]
        else:
            waiting = self.sql(
                "with c as (select l.lane, p.hwm, p.snapshot from bothends.relay_lanes l left join lateral (select hwm, "
                "snapshot from bothends.relay_progress p where (p.lanes >> l.lane) & 1 <> 0 order by id desc limit 1) p "
                "on true) select count(*) from bothends.outbox o join c on c.lane = bothends.lane(o.key, o.seq) where "
                "c.hwm is null or o.seq > c.hwm or not pg_visible_in_snapshot(o.xid, c.snapshot)")[0][0]
        beside = sum(self.sql(f"select count(*) from {self.table(name)}")[0][0] for name in ("held", "delayed"))
        return not waiting and not beside

    def close(self) -> None:
        for each in self.running:
            each.stopping.set()
        for each in self.running:
            each.thread.join(10)
        self.connection.close()


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory for sockets, whose paths must be shorter than those of pytest's are under xdist."""
    with tempfile.TemporaryDirectory(prefix="be-") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def pg_store(postgresql_url: str) -> Iterator[Store]:
    with fresh_database(postgresql_url) as url:
        store = open_store(url)
        apply(store)
        yield store


def _emptied(store: Store) -> None:
    connection = store.connect()
    connection.execute(Sql("truncate bothends.outbox, bothends.held, bothends.delayed, bothends.relay_progress", rows=False))
    connection.execute(Sql("delete from bothends.relays", rows=False))
    connection.execute(Sql("delete from bothends.audit", rows=False))
    connection.execute(Sql(
        "update bothends.relay_log set ready = false, slot = '', position = null, published = ''", rows=False))
    for messages in (False, True):
        slots = SlotSteps(store.schema, messages=messages)
        name = run(slots.name(), connection)
        run(slots.free(name), connection)
        run(slots.drop(name), connection)
        run(slots.drop_publication(), connection)
    connection.execute(Sql("delete from bothends.meta where name in ('broker', 'cluster')", rows=False))
    connection.close()


@pytest.fixture
def rig_of(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def make(store: Store, source: Source = "poll") -> Rig:
        real = open_broker(f"memory://{uuid.uuid4().hex}")
        made.append(Rig(store, Unruly(real), source))
        return made[-1]

    yield make
    for rig in made:
        rig.close()


@pytest.fixture
def pg(pg_store: Store, rig_of: Callable[..., Rig]) -> Rig:
    _emptied(pg_store)
    return rig_of(pg_store)


@pytest.fixture
def pg_log(pg_store: Store, rig_of: Callable[..., Rig]) -> Iterator[Rig]:
    """PostgreSQL, its relays reading the log."""
    _emptied(pg_store)
    rig = rig_of(pg_store, "wal")
    yield rig
    rig.close()
    _emptied(pg_store)


@pytest.fixture
def sqlite(tmp_path: Path, rig_of: Callable[..., Rig]) -> Rig:
    store = open_store(f"sqlite:///{tmp_path}/outbox.db")
    apply(store)
    return rig_of(store)


@pytest.fixture(params=[pytest.param("pg", marks=pytest.mark.needs("postgresql")), "sqlite"])
def polling_rig(request: pytest.FixtureRequest) -> Rig:
    """Each world in which relays share lanes."""
    found: Rig = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=[
    pytest.param("pg", marks=pytest.mark.needs("postgresql")),
    pytest.param("pg_log", marks=pytest.mark.needs("postgresql")), "sqlite"])
def rig(request: pytest.FixtureRequest) -> Rig:
    """Each world in turn."""
    found: Rig = request.getfixturevalue(request.param)
    return found
