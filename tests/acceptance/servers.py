"""Servers of PostgreSQL that a proof has for itself: on a port of their own, in a folder of its own, and killed at will."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from bothends.demo.processes import children_of
from bothends.demo.proxies import Address
from tests.acceptance.ground import ROOT

sys.path.append(str(ROOT / "scripts"))

from serving.machine import HOST, alive, read_pid, wait_until
from serving.postgresql import PostgreSQL, PostgreSQL18

GONE_S = 10.0
_INSTALLED = {15: PostgreSQL("postgresql", 0, ""), 18: PostgreSQL18("postgresql18", 0, "")}
"""Where their programs are."""


class Server(PostgreSQL):
    """``settings`` are added to those of the tests' server."""

    def __init__(self, pg: int, folder: Path, name: str, **settings: str) -> None:
        self._pg, self._folder = pg, folder
        with socket.create_server((HOST, 0)) as free:
            port = free.getsockname()[1]
        super().__init__(name, port, "BOTHENDS_PROVE_URL")
        self.settings = MappingProxyType({**PostgreSQL.settings, "shared_buffers": "128MB", **settings})

    @property
    def home(self) -> Path:
        return self._folder / self.name

    @property
    def url(self) -> str:
        return self.urls["BOTHENDS_PROVE_URL"]

    @property
    def address(self) -> Address:
        return Address(HOST, self.ports[0])

    def bin(self) -> Path:
        return _INSTALLED[self._pg].bin()

    def install(self) -> None:
        _INSTALLED[self._pg].home.mkdir(parents=True, exist_ok=True)
        _INSTALLED[self._pg].install()

    def kill(self) -> None:
        """SIGKILL to every process of it: nothing is flushed, nobody is told, and no backend answers a moment longer."""
        pid = self.pid()
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)  # it has no more children than these
        everybody = [*children_of(pid), pid]
        for one in everybody:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        if not wait_until(lambda: not any(map(_lives, everybody)), GONE_S):
            raise RuntimeError(f"{self.name} was killed, and lives")

    def copy(self, name: str, **settings: str) -> Server:
        """A stand-by of this server, which is not started yet. It keeps its place with a slot, both of its ``name``."""
        other = Server(
            self._pg, self._folder, name, hot_standby_feedback="on", primary_slot_name=name,
            primary_conninfo=f"host={HOST} port={self.ports[0]} user=postgres dbname=postgres application_name={name}",
            **settings,
        )
        other.home.mkdir()
        owner = self.as_owner()
        if owner:
            os.chown(other.home, owner["user"], owner["group"])
        self.control("pg_basebackup", "-d", self.url, "-D", other.data, "-X", "stream", "-c", "fast")
        (other.data / "standby.signal").touch()
        if owner:
            os.chown(other.data / "standby.signal", owner["user"], owner["group"])
        return other

    def promote(self) -> None:
        """And waits until it takes what is written."""
        self.control("pg_ctl", "-D", self.data, "-w", "promote")


@contextmanager
def servers() -> Iterator[Path]:
    """A folder for servers; those that are in it at the end are stopped, and it is deleted."""
    folder = Path(tempfile.mkdtemp(prefix="bothends-servers-", dir="/var/tmp"))
    folder.chmod(0o755)  # who runs them is not who proves
    try:
        yield folder
    finally:
        living = [pid for data in folder.glob("*/data") if alive(pid := read_pid(data / "postmaster.pid"), str(data))]
        for pid in living:
            os.kill(pid, signal.SIGQUIT)  # at once
        wait_until(lambda: not any(map(_lives, living)), GONE_S)
        shutil.rmtree(folder, ignore_errors=True)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
