"""Handlers with an SQLAlchemy engine of their own, beside the worker's session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session, sessionmaker

from bothends import Context, Service
from bothends.testing import explore
from bothends.testing.exploring.causes import Cause
from tests.exploring.planted.events import ONE, TWO, Paid


def start(session: Session) -> None:
    session.execute(text("create table log (no text)"))
    session.execute(text("create table booked (no text)"))


def with_engine(engine: Engine, *, own: bool) -> Service:
    service = Service("engines", session_factory=sessionmaker())

    @service.consumer("book").handle(Paid, effects=True)
    def book(paid: Paid, ctx: Context[Session]) -> None:
        note = text("insert into log values (:no)")
        if own:
            with Session(engine) as mine:
                mine.execute(note, {"no": paid.order})
                mine.commit()
        session = ctx.begin()
        if not own:
            session.execute(note, {"no": paid.order})
        session.execute(text("insert into booked values (:no)"), {"no": paid.order})

    return service


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'engines.db'}"


def engine_of(database: str) -> Any:
    return create_engine(database)


def test_what_it_commits_apart_is_found(database: str) -> None:
    engine = engine_of(database)
    report = explore(with_engine(engine, own=True), [ONE, TWO], start=start, database=database)
    engine.dispose()
    assert {finding.cause for finding in report.findings} == {Cause.OTHER_TRANSACTION}, str(report)
    assert report.findings[0].where is not None
    assert report.findings[0].where.file == __file__


def test_the_worker_s_session_is_enough(database: str) -> None:
    report = explore(with_engine(engine_of(database), own=False), [ONE, TWO], start=start, database=database)
    assert report.ok, str(report)
