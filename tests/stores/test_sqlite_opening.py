"""A file that is opened while another process has the write lock and it is not in WAL mode yet: SQLite answers BUSY to the
change at once, whatever the timeout is. It is waited for."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, TimeoutError
from contextlib import closing
from pathlib import Path

import pytest

from bothends.brokers.embedded.file import LogFile
from bothends.errors import StoreUnavailable
from bothends.stores.sqlite.connection import connect, connect_async


def open_store_file(path: Path) -> None:
    connect(f"sqlite:///{path}").close()


def open_in_a_coroutine(path: Path) -> None:
    async def opened() -> None:
        await (await connect_async(f"sqlite:///{path}")).close()

    asyncio.run(opened())


def open_log(path: Path) -> None:
    file = LogFile(str(path))
    with file.reading() as connection:
        connection.execute("select count(*) from meta").fetchone()
    file.close()


@pytest.mark.parametrize("open_one", [open_store_file, open_in_a_coroutine, open_log])
def test_whoever_changes_a_new_file_is_waited_for(tmp_path: Path, open_one: Callable[[Path], None]) -> None:
    path = tmp_path / "new.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as first, ThreadPoolExecutor(1) as pool:
        first.execute("begin immediate")
        opened = pool.submit(open_one, path)
        with pytest.raises(TimeoutError):
            opened.result(0.2)
        first.execute("rollback")
        opened.result(5)
    with closing(sqlite3.connect(path)) as look:
        assert look.execute("pragma journal_mode").fetchone() == ("wal",)


def test_a_folder_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="is the folder there"):
        connect(f"sqlite:///{tmp_path}/no/where.db")
