"""World: where one run lives. SQLite files and a log file in a folder of its own, or schemas and topics on servers.

Everything that is shared with others carries the run's name, and ``remove`` takes it away again.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bothends.brokers import open_broker
from bothends.demo import names
from bothends.demo.audit import Sums
from bothends.demo.money import ZERO
from bothends.demo.proxies import Address
from bothends.demo.shop import Connection, Shop, open_database
from bothends.ports import Broker
from bothends.stores import open_store
from bothends.stores import schema as tables
from bothends.stores.steps import run

__all__ = ["World", "address_of", "moved"]

PARTITIONS = 8
_FREE_MAX = 10
_DEFAULT_PORTS = {"postgresql": 5432, "kafka": 9092}


def address_of(url: str) -> Address | None:
    """The one server behind ``url``; None where there are several, or none (a socket, a file)."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if not host or "," in parts.netloc or parts.scheme not in _DEFAULT_PORTS:
        return None
    return Address(host, port or _DEFAULT_PORTS[parts.scheme])


def moved(url: str, to: Address) -> str:
    """``url`` with another host and port; user, path and parameters stay."""
    parts = urlsplit(url)
    user, at, _ = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{user}{at}{to.host}:{to.port}").geturl()


@dataclass
class World:
    """``database`` and ``broker`` are URLs of servers; without them, files in ``folder``."""

    run: str
    folder: Path
    database: str | None = None
    broker_url: str = ""
    embedded_broker: bool = False
    relay_source: str = "auto"
    """``message``: producers and consumers store no events."""

    def __post_init__(self) -> None:
        if not self.broker_url:
            self.embedded_broker = True
            self.broker_url = f"embedded:///{self.log_file}"
        self.topics = {name: names.topic_of(self.run, name) for name in names.TOPICS}
        self.shops = {service: Shop(self.run, service) for service in names.SERVICES}
        self.groups = {consumer: f"{self.run}-{consumer}" for consumer in names.CONSUMERS}
        self._broker: Broker | None = None
        self._sign: Any = None

    @property
    def log_file(self) -> Path:
        return self.folder / "log.db"

    def file_of(self, service: str) -> Path:
        return self.folder / f"{service}.db"

    def database_of(self, service: str) -> str:
        return self.database or f"sqlite:///{self.file_of(service)}"

    def schema_of(self, service: str) -> str:
        return names.schema_of(self.run, service)

    def environ(self, proxies: Mapping[str, Address]) -> dict[str, str]:
        """What an operator would set for every process of the run; nothing of ours is inherited."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith("BOTHENDS_")}
        for service in names.SERVICES:
            url = self.database_of(service)
            if "database" in proxies:
                url = moved(url, proxies["database"])
            environ[f"BOTHENDS_{service.upper()}_DATABASE_URL"] = url
        broker = moved(self.broker_url, proxies["broker"]) if "broker" in proxies else self.broker_url
        environ |= {
            "BOTHENDS_BROKER_URL": broker, "BOTHENDS_GROUP_PREFIX": f"{self.run}-", "BOTHENDS_LOG_FORMAT": "json",
            "BOTHENDS_LOG_COUNTS_S": "1", "BOTHENDS_RELAY_SOURCE": self.relay_source, "DEMO_RUN": self.run,
        }
        if len(str(self.folder / "run")) <= 60:  # sockets live there, and their names have a limit
            environ["BOTHENDS_RUNTIME_DIR"] = str(self.folder / "run")
        return environ

    @property
    def broker(self) -> Broker:
        """Past any proxy."""
        if self._broker is None:
            self._broker = open_broker(self.broker_url)
        return self._broker

    def connect(self, service: str) -> Connection:
        """Past any proxy, each statement on its own."""
        return open_database(self.database_of(service))

    @contextlib.contextmanager
    def connected(self, service: str) -> Iterator[Connection]:
        db = self.connect(service)
        try:
            yield db
        finally:
            db.close()

    def store(self, service: str) -> Any:
        return open_store(self.database_of(service), self.schema_of(service))

    def prepare(self) -> None:
        """Our tables, the application's tables, the topics."""
        self.folder.joinpath("run").mkdir(mode=0o700, exist_ok=True)
        self.prepare_databases()
        for topic in self.topics.values():
            self.broker.create_topic(topic, PARTITIONS)

    def prepare_databases(self) -> None:
        if self.database is not None and self._sign is None:
            from bothends.demo.leftovers import sign_of_life

            self._sign = sign_of_life(self.database, self.run)
        for service in names.SERVICES:
            tables.apply(self.store(service))
            if self.relay_source == "message":
                self._keep_messages(service)
            with self.connected(service) as db:
                self.shops[service].create_tables(db)

    def _keep_messages(self, service: str) -> None:
        """A slot that keeps messages from now on: producers may begin before the relays do."""
        from bothends.stores.postgresql.slots import SlotSteps

        connection = self.store(service).connect(name="bothends demo")
        try:
            run(SlotSteps(self.schema_of(service), messages=True).prepare(), connection)
        finally:
            connection.close()

    def sums(self) -> dict[str, Sums]:
        """Units from inventory's database, revenue from that of analytics."""
        with self.connected("inventory") as db:
            units = self.shops["inventory"].units(db)
        with self.connected("analytics") as db:
            revenue = self.shops["analytics"].revenue(db)
        return {p: Sums(units.get(p, 0), revenue.get(p, ZERO)) for p in units.keys() | revenue.keys()}

    def remove(self) -> None:
        """Everything that is not in ``folder``: schemas and topics on servers."""
        if not self.embedded_broker:
            for topic in self.topics.values():
                self.broker.delete_topic(topic)
        if self.database is not None:
            from psycopg.sql import SQL, Identifier

            self.remove_logs()
            with self.connected("orders") as db:
                assert not isinstance(db, sqlite3.Connection)
                for service in names.SERVICES:
                    db.execute(SQL("drop schema if exists {} cascade").format(Identifier(self.schema_of(service))))

    def remove_logs(self) -> None:
        """Slots and publications alone: also of what is kept, since a slot that nobody reads fills the server's disk."""
        if self.database is not None:
            for service in names.SERVICES:
                self._remove_log(service)

    def _remove_log(self, service: str) -> None:
        """Slots and publications that relays of this run have made. They have ended, but a server learns late of the end of
        one that was killed: what is in use is freed first."""
        from psycopg.errors import ObjectInUse

        from bothends.stores.postgresql.slots import SlotSteps

        connection = self.store(service).connect(name="bothends demo")
        try:
            for messages in (False, True):
                steps = SlotSteps(self.schema_of(service), messages=messages)
                slot = run(steps.name(), connection)
                for _ in range(_FREE_MAX):
                    run(steps.free(slot), connection)  # waits a second at most
                    with contextlib.suppress(ObjectInUse):
                        run(steps.drop(slot), connection)
                        break
                run(steps.drop_publication(), connection)
        finally:
            connection.close()

    def close(self) -> None:
        if self._broker is not None:
            self._broker.close()
            self._broker = None
        if self._sign is not None:
            self._sign.close()
            self._sign = None

    def lock_files(self, what: str) -> list[Path]:
        """The SQLite files whose write lock makes the broker, or the database, absent; none where it is a server."""
        if what == "broker":
            return [self.log_file] if self.embedded_broker else []
        return [self.file_of(service) for service in names.SERVICES] if self.database is None else []
