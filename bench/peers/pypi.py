"""From PyPI: what the relays of Python packages have in common, an environment of their own and a program in it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg

from bench.peers import fetching
from bench.peers.peer import PROGRAMS, Peer, Site, Unavailable

__all__ = ["FromPyPI"]

_TABLES_S = 60


class FromPyPI(Peer):
    package: str
    """As PyPI names it; ``programs/PACKAGE.txt`` pins it, ``programs/relay_PACKAGE.py`` is its user's code."""

    @property
    def _stem(self) -> str:
        return self.package.replace("-", "_")

    @property
    def version(self) -> str:  # type: ignore[override]
        return fetching.requirement(self._stem, self.package)

    def fetch(self) -> None:
        fetching.python_with(self._stem)

    def prepare(self, site: Site, connection: psycopg.Connection[Any]) -> None:
        done = subprocess.run(
            [str(word) for word in self._program("tables", site)], capture_output=True, text=True, timeout=_TABLES_S)
        if done.returncode:
            raise Unavailable("its tables were not made: " + " / ".join(done.stderr.splitlines()[-3:]))
        connection.execute("create table place (topic text)")
        connection.execute("insert into place values (%s)", [site.topic])

    def command(self, site: Site) -> Sequence[str | Path]:
        return self._program("relay", site)

    def _program(self, act: str, site: Site) -> list[str | Path]:
        task = {
            "database": site.database, "asyncpg": urlsplit(site.database)._replace(scheme="postgresql+asyncpg").geturl(),
            "servers": site.servers, "topic": site.topic,
        }
        return [fetching.python_with(self._stem), PROGRAMS / f"relay_{self._stem}.py", act, json.dumps(task)]
