"""A small application in a folder of its own, and the command line called in this process."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bothends import cli
from bothends.stores import open_store
from bothends.stores.schema import apply
from tests.admin.shelf import Shelf

SHOP = '''
import sqlite3
from dataclasses import dataclass
from bothends import Context, Retry, Service, event

@event("order.created", key="order_id", topic="orders.events")
@dataclass(frozen=True)
class OrderCreated:
    order_id: str
    sku: str = "a"

inventory = Service("inventory")
stock = inventory.consumer("stock", owner="team-stock", retry=Retry(attempts=2, first_s=0.01, then="hold"))

@stock.handle(OrderCreated)
def deduct(order: OrderCreated, ctx: Context[sqlite3.Connection]) -> None:
    ctx.connection.execute("insert into seen values (?)", (order.order_id,))
'''


class Cli:
    """Runs one command in this process."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys
        self.out = self.err = ""

    def __call__(self, *arguments: str, status: int = 0) -> str:
        self._capsys.readouterr()
        got = cli.run(list(arguments))
        self.out, self.err = self._capsys.readouterr()
        assert got == status, (self.out, self.err)
        return self.out

    def json(self, *arguments: str, status: int = 0) -> Any:
        return json.loads(self(*arguments, "--json", status=status))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder: ``shop.py`` and its settings. Modules imported from it are forgotten afterwards."""
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "bothends.toml").write_text(
        'app = "shop"\ndatabase_url = "sqlite:///shop.db"\nbroker_url = "embedded:///events.db"\npartitions = 2\n')
    monkeypatch.chdir(tmp_path)
    for name in ("BOTHENDS_APP", "BOTHENDS_DATABASE_URL", "BOTHENDS_BROKER_URL", "BOTHENDS_GROUP_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    before, path = set(sys.modules), list(sys.path)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def bothends(project: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(project, capsys)


@pytest.fixture
def shelf(project: Path) -> Iterator[Shelf]:
    """The application's database, with tables, for rows as workers leave them."""
    store = open_store(f"sqlite:///{project / 'shop.db'}")
    apply(store)
    connection = store.connect()
    yield Shelf(store, connection)
    connection.close()
