"""The explorer on PostgreSQL: what it finds, what it leaves in peace, and that it repeats itself."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from bothends import AsyncContext, Context, Service
from bothends.testing import explore
from bothends.testing.exploring.boundaries import Fault, Kind
from bothends.testing.exploring.causes import Cause
from bothends.testing.exploring.databases import Database
from bothends.testing.exploring.worlds import World
from tests.exploring.planted import Plant, identities, marks, orders, outside
from tests.exploring.planted.events import ONE, STOCK, TWO, Paid

PLANTS = [marks.PLANTS[3], outside.PLANTS[0], outside.PLANTS[4], identities.PLANTS[1], orders.PLANTS[0]]
DB = Context[psycopg.Connection[Any]]
TAKE = "update stock set units = units - %s"


@pytest.fixture(autouse=True)
def own_database(postgresql_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED_DATABASE", postgresql_url)


@pytest.mark.parametrize("plant", PLANTS, ids=str)
def test_the_bug_is_found_and_its_twin_is_left_in_peace(plant: Plant, postgresql_url: str) -> None:
    report = explore(plant.make(True), plant.events, start=plant.start, database=postgresql_url)
    assert {finding.cause for finding in report.findings} <= set(plant.causes), str(report)
    assert report.findings
    assert all(finding.where is not None and "planted" in finding.where.file for finding in report.findings)
    twin = explore(plant.make(False), plant.events, start=plant.start, database=postgresql_url)
    assert twin.ok, str(twin)
    assert twin.complete


def test_a_commit_inside_the_handler_is_found(postgresql_url: str) -> None:
    report = explore(marks.PLANTS[5].make(True), [ONE], start=marks.start, database=postgresql_url)
    assert [finding.cause for finding in report.findings] == [Cause.ENDED_TRANSACTION]


def test_the_same_seed_gives_the_same_story(postgresql_url: str) -> None:
    first, second = (
        explore(marks.PLANTS[1].make(True), [ONE], start=marks.start, seed=7, database=postgresql_url) for _ in range(2))
    assert str(first) == str(second)
    assert first.findings
    assert first.notes == ()


def coroutines(wrong: bool) -> Service:
    service = Service("coroutines")

    @service.consumer("stock", inbox=not wrong).handle(Paid)
    async def take(paid: Paid, ctx: AsyncContext[psycopg.AsyncConnection[Any]]) -> None:
        async with ctx.connection.cursor() as cursor:
            await cursor.execute(TAKE, [paid.units])

    return service


def test_coroutines(postgresql_url: str) -> None:
    wrong, right = (
        explore(coroutines(is_wrong), [ONE], start=marks.start, database=postgresql_url) for is_wrong in (True, False))
    assert [finding.cause for finding in wrong.findings] == [Cause.NO_MARK]
    assert right.ok, str(right)


def sessions() -> Service:
    service = Service("sessions", session_factory=async_sessionmaker())

    @service.consumer("stock").handle(Paid)
    async def take(paid: Paid, ctx: AsyncContext[AsyncSession]) -> None:
        await ctx.session.execute(text("update stock set units = units - :units"), {"units": paid.units})

    return service


def start_with_session(session: Session) -> None:
    session.execute(text(STOCK))


def test_sessions_of_coroutines(postgresql_url: str) -> None:
    report = explore(sessions(), [ONE], start=start_with_session, database=postgresql_url)
    assert report.ok, str(report)


def with_engine(url: str) -> Service:
    """What is committed apart, through a pool of the user's own."""
    service = Service("engines", session_factory=sessionmaker())
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))

    @service.consumer("book").handle(Paid, effects=True)
    def book(paid: Paid, ctx: Context[Session]) -> None:
        with Session(engine) as mine:
            mine.execute(text("update stock set units = units - :units"), {"units": paid.units})
            mine.commit()
        ctx.begin()

    return service


def test_an_engine_of_the_user_s_own(postgresql_url: str) -> None:
    report = explore(with_engine(postgresql_url), [ONE], start=start_with_session, database=postgresql_url)
    assert {finding.cause for finding in report.findings} == {Cause.OTHER_TRANSACTION}, str(report)


# One run


def world_of(service: Service, url: str, start: str, *events: Any) -> World:
    def prepare(db: Any, database: Database) -> None:
        db.execute(start)
        database.publish(db, [service], events)

    return World([service], prepare, url=url)


def stamping() -> Service:
    service = Service("stamping")

    @service.consumer("note").handle(Paid)
    def note(paid: Paid, ctx: DB) -> None:
        row = ctx.connection.execute("insert into noted (no, at) values (%s, clock_timestamp()) returning id", [paid.order])
        ctx.connection.execute(
            "insert into copied select %s, now() - current_timestamp, 'now() is quoted', current_date", row.fetchone())

    return service


STAMPED = (
    "create table noted (id bigint generated always as identity primary key, no text, at timestamptz, "
    "made timestamptz default now(), due date default current_date + 1);"
    "create table copied (noted bigint, none interval, said text, day date)"
)


def test_a_run_repeats_to_the_microsecond_and_counts_on_where_another_would(postgresql_url: str) -> None:
    with world_of(stamping(), postgresql_url, STAMPED, ONE, TWO).opened() as world:
        runs = [world.run({}).picture for _ in range(3)]
        noise = world.run({}, noise=True).picture
    rows = [run.rows["noted"] for run in runs]
    assert rows[0] == rows[1] == rows[2]
    assert all("datetime.datetime(2030, 1, 1, " in row[2] and "datetime.datetime(2030, 1, 1, " in row[3] for row in rows[0])
    assert [row[4] for row in rows[0]] == ["datetime.date(2030, 1, 2)"] * 2
    assert [row[1:] for row in runs[0].rows["copied"]] == [
        ("datetime.timedelta(0)", "'now() is quoted'", "datetime.date(2030, 1, 1)")] * 2
    assert ("noted", 0) in runs[0].given_out
    for table, column in (("noted", 2), ("noted", 3), ("noted", 4), ("copied", 0), ("copied", 3)):
        assert runs[0].rows[table][0][column] != noise.rows[table][0][column], (table, column)


def test_a_number_that_a_rollback_has_used_up_is_no_difference(postgresql_url: str) -> None:
    def start(db: Any) -> None:
        db.execute(STAMPED)

    report = explore(stamping(), [ONE], start=start, database=postgresql_url)
    assert report.ok, str(report)


def sessions_seen() -> Service:
    service = Service("sessions-seen")

    @service.consumer("note").handle(Paid)
    def note(paid: Paid, ctx: DB) -> None:
        ctx.connection.execute("insert into seen select array(select pid from pg_stat_activity), pg_backend_pid()")
        with ctx.connection.transaction(), psycopg.connect(ctx.connection.info.dsn, autocommit=True) as other:
            other.execute("insert into tries values (pg_backend_pid())")

    return service


def test_the_server_has_lost_a_dead_process_when_the_next_begins(postgresql_url: str) -> None:
    start = "create table seen (pids int[], own int); create table tries (pid int)"
    with world_of(sessions_seen(), postgresql_url, start, ONE).opened() as world:
        boundaries = world.run({}).tape.boundaries
        struck = next(b.number for b in boundaries if b.users and "into tries" in b.text)
        ending = world.run({struck: Fault.CRASH_AFTER})
        tries = [int(row[0]) for row in ending.picture.rows["tries"]]
        ((pids, own),) = ending.picture.rows["seen"]  # of two tries one was rolled back
    assert len(tries) == 2
    assert str(tries[0]) not in pids.strip("[]").split(", ")
    assert own in pids


def altering() -> Service:
    service = Service("altering")

    @service.consumer("note").handle(Paid)
    def note(paid: Paid, ctx: DB) -> None:
        ctx.connection.execute(f"create table t_{paid.order} (no text)")
        ctx.connection.execute(f"insert into t_{paid.order} values (1)")

    return service


def test_tables_that_a_run_has_made_are_gone_in_the_next(postgresql_url: str) -> None:
    with world_of(altering(), postgresql_url, "select 1", ONE, TWO).opened() as world:
        for _ in range(2):
            ending = world.run({})
            assert {name: rows for name, rows in ending.picture.rows.items() if rows and name.startswith("t_")} == {
                "t_1001": [("'1'",)], "t_1002": [("'1'",)]}
        commit = next(b.number for b in ending.tape.boundaries if b.kind is Kind.COMMIT and b.consumer)
        assert world.run({commit: Fault.HAPPENED}).picture.rows == ending.picture.rows


def test_two_schemas_in_one_database(postgresql_url: str) -> None:
    first, second = Service("first", schema="first_s"), Service("second", schema="second_s")

    @second.consumer("stock").handle(Paid)
    def take(paid: Paid, ctx: DB) -> None:
        ctx.connection.execute(TAKE, [paid.units])

    report = explore([first, second], [(first, ONE)], start=marks.start, database=postgresql_url)
    assert report.ok, str(report)
