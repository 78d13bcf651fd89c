"""Comparing what one delivery left with what two left."""

import pytest

from bothends.testing import snapshots
from bothends.testing.databases import Database
from bothends.testing.snapshots import difference


def test_our_own_tables_are_not_compared(database: Database) -> None:
    assert database.snapshot() == {}


def test_a_table_that_stayed_the_same_makes_no_difference(database: Database) -> None:
    database.connection.execute("create table stock (sku text, units integer)")
    database.connection.execute("insert into stock values ('brie', 3), ('feta', 2)")
    before = database.snapshot()
    database.connection.execute("delete from stock where sku = 'brie'")
    database.connection.execute("insert into stock values ('brie', 3)")
    assert difference(before, database.snapshot()) == []


def test_changed_rows_are_shown_with_both_values(database: Database) -> None:
    database.connection.execute("create table stock (sku text, units integer)")
    database.connection.execute("insert into stock values ('brie', 8)")
    before = database.snapshot()
    database.connection.execute("update stock set units = 6")
    gone, come = difference(before, database.snapshot())
    assert "stock" in gone
    assert gone.endswith(": - ('brie', 8)")
    assert come.endswith(": + ('brie', 6)")


def test_equal_rows_are_counted(database: Database) -> None:
    database.connection.execute("create table mails (who text)")
    database.connection.execute("insert into mails values ('anna')")
    before = database.snapshot()
    database.connection.execute("insert into mails values ('anna')")
    (line,) = difference(before, database.snapshot())
    assert line.endswith(": + ('anna')")


def test_a_long_difference_is_cut(database: Database) -> None:
    database.connection.execute("create table mails (who text)")
    before = database.snapshot()
    for number in range(9):
        database.connection.execute(f"insert into mails values ('m{number}')")
    lines = difference(before, database.snapshot())
    assert len(lines) == 6
    assert lines[-1].endswith("+ ... and 4 more rows")


def test_strange_names_and_bytes(database: Database) -> None:
    kind = "bytea" if database.store.dialect == "postgresql" else "blob"
    database.connection.execute(f'create table "Odd ""name" (b {kind})')
    blob = "'\\x00ff'" if kind == "bytea" else "x'00ff'"
    before = database.snapshot()
    database.connection.execute(f'insert into "Odd ""name" values ({blob})')
    (line,) = difference(before, database.snapshot())
    assert line.endswith(r": + (b'\x00\xff')")


def test_a_table_that_is_too_big_is_refused(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "ROWS_MAX", 2)
    database.connection.execute("create table mails (who text)")
    database.connection.execute("insert into mails values ('a'), ('b'), ('c')")
    with pytest.raises(ValueError, match="more than 2 rows"):
        database.snapshot()
