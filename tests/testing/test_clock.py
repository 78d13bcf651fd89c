"""The virtual clock moves stored times, on every store alike."""

import pytest

from bothends.stores.steps import Sql, run
from bothends.testing.clock import retry_now, table
from bothends.testing.databases import Database


def block(database: Database, key: bytes, state: str, in_s: float) -> None:
    """A blocked key whose next attempt is due ``in_s`` seconds from now."""
    name = table(database.store, "blocked_keys")
    due = (
        "clock_timestamp() + make_interval(secs => :in_s)" if database.store.dialect == "postgresql"
        else "(julianday('now') - 2440587.5) * 86400.0 + :in_s"
    )
    statement = Sql(
        f"insert into {name} (consumer, topic, keyed, key, state, next_at)"
        f" values (1, 't', :keyed, :key, :state, {due})",
        {"keyed": True, "key": key, "state": state, "in_s": in_s},
    )

    def steps():  # type: ignore[no-untyped-def]
        yield statement

    connection = database.store.connect()
    try:
        run(steps(), connection)
    finally:
        connection.close()


def test_nothing_waits_in_an_empty_database(database: Database) -> None:
    assert database.next_retry_s([1]) is None


def test_the_next_retry_is_the_earliest(database: Database) -> None:
    block(database, b"a", "retrying", 60.0)
    block(database, b"b", "retrying", 30.0)
    assert database.next_retry_s([1]) == pytest.approx(30.0, abs=2.0)


@pytest.mark.parametrize("state", ["held", "schema"])
def test_keys_that_wait_for_somebody_are_no_retries(database: Database, state: str) -> None:
    block(database, b"a", state, 30.0)
    assert database.next_retry_s([1]) is None


def test_a_retry_of_somebody_else_does_not_count(database: Database) -> None:
    block(database, b"a", "retrying", 30.0)
    assert database.next_retry_s([2, 3]) is None
    assert database.next_retry_s([]) is None


def test_a_retry_can_be_made_due_without_moving_the_clock(database: Database) -> None:
    block(database, b"a", "retrying", 600.0)
    block(database, b"b", "held", 600.0)
    database.run(retry_now(database.store, 2))
    assert database.next_retry_s([1]) == pytest.approx(600.0, abs=2.0)
    database.run(retry_now(database.store, 1))
    assert database.next_retry_s([1]) == pytest.approx(0.0, abs=0.1)


def test_moving_the_clock_brings_a_retry_closer(database: Database) -> None:
    block(database, b"a", "retrying", 60.0)
    database.forward(45.0)
    assert database.next_retry_s([1]) == pytest.approx(15.0, abs=2.0)


def test_what_is_overdue_is_due_now(database: Database) -> None:
    block(database, b"a", "retrying", 60.0)
    database.forward(7200.0)
    due = database.next_retry_s([1])
    assert due is not None
    assert 0.0 <= due <= 0.1


def test_a_harness_that_is_not_open_says_so() -> None:
    with pytest.raises(RuntimeError, match="with Harness"):
        Database("sqlite://", "bothends").next_retry_s([1])


def test_an_open_write_transaction_is_named_before_anybody_waits_for_it(database: Database) -> None:
    if database.store.dialect == "postgresql":
        database.refuse_open_writers()  # PostgreSQL has many writers: nothing to refuse
        return
    other = database.store.connect()
    other.begin()
    with pytest.raises(AssertionError, match="commit"):
        database.refuse_open_writers()
    other.rollback()
    database.refuse_open_writers()
    other.close()
