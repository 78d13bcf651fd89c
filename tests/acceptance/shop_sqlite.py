"""The application of the SQLite freeze: one consumer whose handler can be made to wait inside its transaction."""

from __future__ import annotations

import os
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path

from bothends import Context, Retry, Service, event

BATON = Path(os.environ.get("PROVE_BATON", "/nonexistent/baton"))
WAIT_MAX_S = 120


@event("prove.moved", key="key", topic="prove.embedded")
@dataclass(frozen=True)
class Moved:
    key: str
    note: str = ""


service = Service("prove-sqlite")
ledger = service.consumer("ledger", owner="team-proof", retry=Retry(attempts=None, crashes=None))


@ledger.handle(Moved)
def book(e: Moved, ctx: Context[sqlite3.Connection]) -> None:
    ctx.connection.execute("insert into effects_log (event_id, key) values (?, ?)", (ctx.message.id, e.key))
    if e.note == "wait" and not (BATON / "leave").exists():
        (BATON / "entered").write_text(str(os.getpid()))
        until = time.monotonic() + WAIT_MAX_S
        while not (BATON / "leave").exists() and time.monotonic() < until:
            time.sleep(0.01)
