"""Round trips that are shared, and arrays that are written by hand, on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bothends.errors import ConfigError
from bothends.stores.connection import CommitRefused
from bothends.stores.postgresql.arrays import booleans, byteas, texts
from bothends.stores.postgresql.connection import PostgresqlConnection, connect, connect_async
from bothends.stores.postgresql.pipeline import BEGIN, COMMIT
from bothends.stores.steps import Result, Sql

pytestmark = pytest.mark.needs("postgresql")

NOTE = "insert into note values (:text) returning text"
DIVIDE = "select 1 / :n::int"


async def test_a_url_that_cannot_be_read_is_refused_without_its_password() -> None:
    with pytest.raises(ConfigError, match=r"postgresql://u:\*\*\*@h/d") as refused:
        connect("postgresql://u:secret@h/d?shop=cheese")
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__
    with pytest.raises(ConfigError):
        await connect_async("postgresql://u:secret@h/d?shop=cheese")


@pytest.fixture
def connection(postgresql_url: str) -> Iterator[PostgresqlConnection]:
    found = connect(postgresql_url)
    found.execute(Sql("create temporary table note (text text)"))
    yield found
    found.close()


def notes(connection: PostgresqlConnection) -> list[str]:
    return [text for (text,) in connection.execute(Sql("select text from note order by text")).rows]


def test_the_answers_come_in_order_with_their_tags(connection: PostgresqlConnection) -> None:
    for _ in range(3):
        found = connection.begin_with(Sql("select :a::text, :b::int, :c::text", {"a": "hé\n'\"", "b": -7, "c": None}))
        assert found == Result([("hé\n'\"", -7, None)], 1, "SELECT 1")
        assert connection.in_transaction()
        connection.commit_with(Sql("select 1"))
        assert not connection.in_transaction()
    connection.begin_with(Sql(NOTE, {"text": "a"}))
    assert connection.execute(Sql("update note set text = 'b'")).count == 1  # and the usual ways work beside it
    connection.commit_with(Sql("update note set text = 'c'"))
    assert notes(connection) == ["c"]


def test_a_gate_that_fails_lets_nothing_through(connection: PostgresqlConnection) -> None:
    connection.begin_with(Sql(NOTE, {"text": "a"}))
    with pytest.raises(psycopg.errors.DivisionByZero):
        connection.commit_with(Sql(DIVIDE, {"n": 0}))
    assert connection.in_transaction()  # failed, to be rolled back
    connection.rollback()
    assert notes(connection) == []
    connection.begin_with(Sql(NOTE, {"text": "b"}))
    connection.commit_with(Sql(DIVIDE, {"n": 1}))
    assert notes(connection) == ["b"]


@pytest.mark.parametrize(("text", "error"), [
    ("select 1 / :n::int", psycopg.errors.DivisionByZero), ("selec :n", psycopg.errors.SyntaxError),
    ("select :n::int from missing", psycopg.errors.UndefinedTable),
])
def test_what_fails_first_is_raised_and_the_connection_goes_on(
    connection: PostgresqlConnection, text: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        connection.begin_with(Sql(text, {"n": 0}))
    connection.rollback()
    assert connection.usable()
    assert not connection.in_transaction()
    assert connection.begin_with(Sql(NOTE, {"text": "a"})).rows == [("a",)]
    connection.rollback()


def test_a_deferred_constraint_fails_the_commit_itself(connection: PostgresqlConnection) -> None:
    connection.execute(Sql("create temporary table once (n int, unique (n) deferrable initially deferred)"))
    connection.begin_with(Sql("insert into once values (1), (1)"))
    with pytest.raises(psycopg.errors.UniqueViolation):
        connection.commit_with(Sql("select 1"))
    assert not connection.in_transaction()


def test_a_transaction_that_failed_or_ended_before_is_not_committed(connection: PostgresqlConnection) -> None:
    connection.begin_with(Sql("select 1"))
    with pytest.raises(psycopg.errors.DivisionByZero):
        connection.execute(Sql(DIVIDE, {"n": 0}))
    with pytest.raises(CommitRefused, match="swallowed"):
        connection.commit_with(Sql("select 1"))
    connection.rollback()
    with pytest.raises(CommitRefused, match="no transaction"):
        connection.commit_with(Sql("select 1"))


def test_a_lost_connection_is_no_refused_commit(connection: PostgresqlConnection, postgresql_url: str) -> None:
    connection.begin_with(Sql(NOTE, {"text": "a"}))
    pid = connection.driver.info.backend_pid
    with psycopg.connect(postgresql_url, autocommit=True) as other:
        other.execute("select pg_terminate_backend(%s, 5000)", [pid])
    for _ in range(2):  # before the driver has noticed, and after
        with pytest.raises(psycopg.OperationalError):
            connection.commit_with(Sql("select 1"))
    assert not connection.usable()


def test_the_rollback_of_a_savepoint_costs_no_batch(connection: PostgresqlConnection) -> None:
    """psycopg deallocates every prepared statement after a rollback, to a savepoint too."""
    for _ in range(8):
        connection.begin_with(Sql(NOTE, {"text": "a"}))
        with connection.driver.transaction(force_rollback=True):
            connection.driver.execute("insert into note values ('b')")
        connection.commit_with(Sql(DIVIDE, {"n": 1}))
    assert notes(connection) == ["a"] * 8


def test_the_asynchronous_connection_does_the_same(postgresql_url: str) -> None:
    async def work() -> None:
        connection = await connect_async(postgresql_url)
        await connection.execute(Sql("create temporary table note (text text)"))
        assert (await connection.begin_with(Sql(NOTE, {"text": "a"}))).rows == [("a",)]
        await connection.commit_with(Sql("select 1"))
        await connection.begin_with(Sql(NOTE, {"text": "b"}))
        with pytest.raises(psycopg.errors.DivisionByZero):
            await connection.commit_with(Sql(DIVIDE, {"n": 0}))
        await connection.rollback()
        assert (await connection.execute(Sql("select text from note"))).rows == [("a",)]
        await connection.close()

    asyncio.run(work())


def test_begin_and_commit_are_what_they_say() -> None:
    assert (BEGIN.text, COMMIT.text) == ("begin isolation level read committed", "commit")


_TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(_TEXT | st.sampled_from(["", "NULL", "{}", "\\", '"', '\\"', "a,b", " "]), max_size=8))
def test_texts_arrive_as_they_are(connection: PostgresqlConnection, values: list[str]) -> None:
    assert connection.execute(Sql("select :values::text[]", {"values": texts(values)})).rows == [(values,)]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=40), max_size=8), st.lists(st.booleans(), max_size=8))
def test_bytes_and_booleans_too(connection: PostgresqlConnection, values: list[bytes], flags: list[bool]) -> None:
    found = connection.execute(Sql(
        "select :values::bytea[], :flags::boolean[]", {"values": byteas(values), "flags": booleans(flags)}))
    assert [bytes(value) for value in found.rows[0][0]] == values
    assert found.rows[0][1] == flags


def test_nul_is_refused_by_the_driver_as_in_any_text(connection: PostgresqlConnection) -> None:
    asked = Sql("select :values::text[]", {"values": texts(["a\0b"])})
    with pytest.raises(psycopg.DataError):
        connection.execute(asked)
    with pytest.raises(psycopg.DataError):
        connection.begin_with(asked)
    connection.rollback()
    assert connection.begin_with(Sql(NOTE, {"text": "a"})).rows == [("a",)]
    connection.rollback()
