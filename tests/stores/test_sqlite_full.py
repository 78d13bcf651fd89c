"""A full disk under a relay's own transaction: what is said is the disk, not the transaction that it has ended."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from bothends.stores import open_store
from bothends.stores.schema import apply
from bothends.stores.sqlite.relay_rows import fenced
from bothends.stores.steps import Sql, run


def test_the_disk_is_what_is_said(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/shop.db")
    apply(store)
    connection = store.connect()
    connection.execute(Sql(
        "insert into bothends_relays (id, name, pid, host, lease_s, lease_until, boot, boot_until) "
        "values (7, 'r', 1, 'h', 4, 4, 'b', 4)"))
    connection.execute(Sql("pragma max_page_count = 1"))
    filling = Sql("insert into bothends_meta (name, value) values ('filling', :x)", {"x": "x" * 100_000})
    with pytest.raises(sqlite3.OperationalError, match="full"):
        run(fenced(7, [filling]), connection)
    assert not connection.in_transaction()
    connection.close()
