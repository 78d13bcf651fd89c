"""What a model stands on: a database of its own for each example."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bothends.stores import Store, open_store
from bothends.stores.schema import apply
from bothends.stores.steps import Sql
from bothends.testing.exploring.clock import lend_to_sqlite
from tests.models.brokers import number_of
from tests.models.simulation import Simulation, scratch

__all__ = ["Ground", "PostgresqlGround"]


class Ground:
    """SQLite, a file of its own for each example."""

    writers_max = 1
    _template: bytes = b""
    FENCE = """
        create table model_wrongs (what text);
        create table model_effects (seq integer primary key, number integer, note text, receipt text);
        create trigger model_fence after insert on bothends_relay_progress begin
            insert into model_wrongs select 'relay ' || new.relay || ' marks without a registration'
                where not exists (select 1 from bothends_relays where id = new.relay);
            insert into model_wrongs
                select 'relay ' || new.relay || ' marks lane ' || lane || ' of ' || coalesce(relay, 'nobody')
                from bothends_relay_lanes where ((new.lanes >> lane) & 1) <> 0 and relay is not new.relay;
        end;
    """

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._stack = ExitStack()
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="be-", dir=scratch()))
        path = Path(folder) / "model.db"
        path.write_bytes(self._template)
        self.store: Store = open_store(f"sqlite:///{path}")
        self.own = self.connect()

    @classmethod
    def prepare(cls) -> None:
        if cls._template:
            return
        with tempfile.TemporaryDirectory(prefix="be-", dir=scratch()) as folder:
            path = Path(folder) / "model.db"
            store = open_store(f"sqlite:///{path}")
            apply(store)
            connection = store.connect()
            connection.driver.executescript(cls.FENCE)
            connection.execute(Sql("pragma wal_checkpoint(truncate)"))
            connection.close()
            cls._template = path.read_bytes()

    def connect(self) -> Any:
        connection = self.store.connect()
        connection.driver.execute("pragma synchronous = off")
        connection.driver.execute("pragma busy_timeout = 0")
        lend_to_sqlite(connection.driver, self._simulation.clock)
        self._stack.callback(connection.close)
        return connection

    def close(self) -> None:
        self._stack.close()

    def forward(self, seconds: float) -> None:
        """Its clock is the simulation's."""

    def table(self, name: str) -> str:
        return f"bothends_{name}"

    def rows(self, text: str, **params: Any) -> list[tuple[Any, ...]]:
        return list(self.own.execute(Sql(text, params)).rows)

    def waiting(self) -> set[int]:
        """Events that some relay has still to publish, or that are held."""
        found = set()
        for name in ("outbox", "held", "delayed"):
            found |= {number_of(bytes(body)) for (body,) in self.rows(f"select body from {self.table(name)}")}
        return found

    def wrongs(self) -> list[str]:
        return [row[0] for row in self.rows("select what from model_wrongs")]


class PostgresqlGround:
    """PostgreSQL: one database (``url``) for all examples, emptied for each. Its clock cannot be moved, so what is stored
    goes back in time."""

    url = _prepared = ""
    writers_max = 3
    LATER_S = 0.2
    """Time that has passed is written down when it is this much."""
    FENCE = """
        create table model_wrongs (what text);
        create function model_fence() returns trigger language plpgsql as $$ begin
            insert into model_wrongs select 'relay ' || new.relay || ' marks without a registration'
                where not exists (select from bothends.relays where id = new.relay);
            insert into model_wrongs
                select 'relay ' || new.relay || ' marks lane ' || lane || ' of ' || coalesce(relay::text, 'nobody')
                from bothends.relay_lanes where ((new.lanes >> lane) & 1) <> 0 and relay is distinct from new.relay;
            return null;
        end $$;
        create trigger model_fence after insert on bothends.relay_progress for each row execute function model_fence();
    """
    UNDONE = """
        with c as (select l.lane, p.hwm, p.snapshot from bothends.relay_lanes l left join lateral (
            select hwm, snapshot from bothends.relay_progress p where (p.lanes >> l.lane) & 1 <> 0 order by id desc limit 1
        ) p on true)
        select body from bothends.outbox o join c on c.lane = bothends.lane(o.key, o.seq)
        where c.hwm is null or o.seq > c.hwm or not pg_visible_in_snapshot(o.xid, c.snapshot)
        union all select body from bothends.held union all select body from bothends.delayed
    """

    @classmethod
    def prepare(cls) -> None:
        if cls._prepared == cls.url:
            return
        cls._prepared = cls.url
        store = open_store(cls.url)
        apply(store)
        connection = store.connect()
        connection.driver.execute(cls.FENCE)
        name = connection.driver.info.dbname
        connection.driver.execute(f'alter database "{name}" set synchronous_commit = off')
        connection.close()

    def __init__(self, simulation: Simulation) -> None:
        del simulation
        self._stack = ExitStack()
        self.store: Store = open_store(self.url)
        self.own = self.connect()
        self._behind_s = 0.0
        self.own.driver.execute(
            "truncate bothends.outbox, bothends.held, bothends.delayed, bothends.relay_progress, model_wrongs; "
            "delete from bothends.relays; update bothends.relay_lanes set relay = null; delete from bothends.meta where name "
            "in ('broker', 'cluster')")

    def connect(self) -> Any:
        connection = self.store.connect()
        self._stack.callback(connection.close)
        return connection

    def close(self) -> None:
        self._stack.close()

    def forward(self, seconds: float) -> None:
        self._behind_s += seconds
        if self._behind_s < self.LATER_S:
            return
        earlier = f"- make_interval(secs => {self._behind_s:.6f})"
        self._behind_s = 0.0
        self.own.driver.execute("; ".join(
            f"update bothends.{table} set {column} = {column} {earlier} where {column} is not null" for table, column in (
                ("relays", "lease_until"), ("held", "next_at"), ("delayed", "deliver_at"), ("outbox", "deliver_at"))))

    def table(self, name: str) -> str:
        return f"bothends.{name}"

    def rows(self, text: str, **params: Any) -> list[tuple[Any, ...]]:
        return list(self.own.execute(Sql(text, params)).rows)

    def waiting(self) -> set[int]:
        return {number_of(bytes(body)) for (body,) in self.rows(self.UNDONE)}

    def wrongs(self) -> list[str]:
        return [row[0] for row in self.rows("select what from model_wrongs")]
