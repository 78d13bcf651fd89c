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

__all__ = ["Ground"]


class Ground:
    """SQLite, a file of its own for each example."""

    writers_max = 1
    _template: bytes = b""
    SETTLED_BY_ITS_OWNER = """
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
        if not Ground._template:
            self._make(path)
            Ground._template = path.read_bytes()
        path.write_bytes(Ground._template)
        self.store: Store = open_store(f"sqlite:///{path}")
        self.own = self.connect()

    def _make(self, path: Path) -> None:
        store = open_store(f"sqlite:///{path}")
        apply(store)
        connection = store.connect()
        connection.driver.executescript(self.SETTLED_BY_ITS_OWNER)
        connection.execute(Sql("pragma wal_checkpoint(truncate)"))
        connection.close()

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
