"""The application under proof: one outbox, one consumer. Writers of ``load.py`` use the first, workers run the second.

A handler's conduct is asked for by the event's ``note``, so that one application serves every case.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from bothends import Context, Retry, Service, event

TOPIC = os.environ.get("PROVE_TOPIC", "prove.events")
ELSEWHERE = f"{TOPIC}.elsewhere"
"""A topic that the case ``handlers`` does not create."""
BATON = Path(os.environ.get("PROVE_BATON", "/nonexistent/baton"))
"""A folder: the handler of a note ``wait`` leaves ``entered`` there and goes on when it finds ``leave``."""
WAIT_MAX_S = 120


@event("prove.moved", key="key", topic=TOPIC)
@dataclass(frozen=True)
class Moved:
    key: str
    note: str = ""


@event("prove.moved.strictly", key="key", topic=TOPIC, strict=True)
@dataclass(frozen=True)
class MovedStrictly:
    key: str
    note: str = ""


@event("prove.sent.elsewhere", key="key", topic=ELSEWHERE)
@dataclass(frozen=True)
class SentElsewhere:
    key: str
    note: str = ""


attempts = os.environ.get("PROVE_ATTEMPTS", "none")
service = Service("prove", publish=Retry(attempts=5, first_s=0.2, cap_s=1, then="hold"))
ledger = service.consumer(
    "ledger",
    topic=TOPIC,
    owner="team-proof",
    retry=Retry(
        attempts=None if attempts == "none" else int(attempts),
        first_s=float(os.environ.get("PROVE_FIRST_S", "0.2")),
        cap_s=2,
        then="hold" if os.environ.get("PROVE_THEN") == "hold" else "pass",
        crashes=None,
    ),
)


@ledger.handle(Moved)
def moved(e: Moved, ctx: Context[psycopg.Connection[Any]]) -> None:
    book(e.key, e.note, ctx)


@ledger.handle(MovedStrictly)
def moved_strictly(e: MovedStrictly, ctx: Context[psycopg.Connection[Any]]) -> None:
    book(e.key, e.note, ctx)


@ledger.handle(SentElsewhere)
def sent_elsewhere(e: SentElsewhere, ctx: Context[psycopg.Connection[Any]]) -> None:
    book(e.key, e.note, ctx)


def book(key: str, note: str, ctx: Context[psycopg.Connection[Any]]) -> None:
    """One effect: a row that no constraint protects."""
    fails, _, times = note.partition(":")
    if fails == "fails" and ctx.attempt <= int(times):
        raise RuntimeError(f"run {ctx.attempt} of {key} fails, as it was asked to")
    ctx.connection.execute(
        "insert into effects_log (event_id, key, part, pid) values (%s, %s, %s, %s)",
        (ctx.message.id, key, ctx.message.partition, os.getpid()),
    )
    if note == "swallow" and ctx.attempt == 1:
        try:
            ctx.connection.execute("select 1 / 0")
        except psycopg.errors.DivisionByZero:
            pass  # the bug that this case is about
    elif note == "commit":
        ctx.connection.execute("commit")
    elif note == "commit-call":
        ctx.connection.commit()
    elif note == "wait" and not (BATON / "leave").exists():
        (BATON / "entered").write_text(str(os.getpid()))
        until = time.monotonic() + WAIT_MAX_S
        while not (BATON / "leave").exists() and time.monotonic() < until:
            time.sleep(0.01)
