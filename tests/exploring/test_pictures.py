"""Pictures: what is compared, what is masked, and how a difference is told."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import pytest

from bothends import Context, Retry, Service, Transient
from bothends.stores.sqlite.connection import SqliteConnection
from bothends.stores.steps import run
from bothends.testing import explore
from bothends.testing.exploring.boundaries import Fault, Kind, Where
from bothends.testing.exploring.causes import Cause
from bothends.testing.exploring.judging import judge
from bothends.testing.exploring.pictures import MASKED, Difference, Picture, masks_of
from bothends.testing.exploring.sqlite_pictures import tables
from bothends.testing.exploring.statements import kind_of, said, writes
from bothends.testing.exploring.stories import describe, relative
from bothends.testing.exploring.tape import Tape
from bothends.testing.exploring.worlds import Ending
from tests.exploring.planted.events import ONE, TWO, Paid


def of(**rows: Sequence[tuple[str, ...]]) -> Picture:
    picture = Picture()
    for name, found in rows.items():
        picture.put(name, [f"c{n}" for n in range(len(found[0]) if found else 1)], found)
    return picture


def test_equal_rows_in_another_order_are_no_difference() -> None:
    masks = masks_of(of(t=[("1",), ("2",)]), of(t=[("1",), ("2",)]))
    assert masks.differences(of(t=[("1",), ("2",)]), of(t=[("2",), ("1",)])) == []


def test_rows_are_counted() -> None:
    masks = masks_of(of(t=[("1",)]), of(t=[("1",)]))
    (found,) = masks.differences(of(t=[("1",)]), of(t=[("1",), ("1",)]))
    assert (found.missing, found.surplus) == ((), (("1",),))


def test_what_varies_is_masked_and_still_counted() -> None:
    masks = masks_of(of(t=[("a", "x1")]), of(t=[("a", "x2")]))
    assert masks.varying == {("t", 1)}
    assert masks.differences(of(t=[("a", "x1")]), of(t=[("a", "x9")])) == []
    (found,) = masks.differences(of(t=[("a", "x1")]), of(t=[("a", "x8"), ("a", "x9")]))
    assert found.surplus == (("a", MASKED),)


def test_no_value_is_not_just_another_one() -> None:
    masks = masks_of(of(t=[("a", "x1")]), of(t=[("a", "x2")]))
    assert masks.differences(of(t=[("a", "x1")]), of(t=[("a", "None")]))


def test_a_table_that_is_only_on_one_side() -> None:
    masks = masks_of(of(), of())
    (found,) = masks.differences(of(), of(calls=[("1",)]))
    assert (found.table, found.surplus) == ("calls", (("1",),))


def read(script: str) -> Picture:
    driver = sqlite3.connect(":memory:", isolation_level=None)
    driver.executescript(script)
    picture = Picture()
    run(tables(picture), SqliteConnection(driver))
    return picture


def test_our_own_tables_are_not_the_users() -> None:
    assert list(read("create table bothends_inbox (a); create table \"odd \"\"name\" (a); create table t (a)").rows) == [
        'odd "name', "t"]


def test_numbers_that_the_database_gives_out_are_known() -> None:
    script = """
        create table orders (id integer primary key, no text); insert into orders (no) values ('a'), ('b');
        create table lines (order_id integer references orders (id), n integer);
        insert into lines values (1, 7), (2, 8);
        create table own (id integer primary key, no text); insert into own values (536365, 'a');
        create table texts (id text primary key); insert into texts values ('1');
    """
    picture = read(script)
    assert picture.given_out == {("orders", 0), ("lines", 0)}
    masks = masks_of(picture, picture)
    swapped = read(script.replace("('a'), ('b')", "('b'), ('a')").replace("(1, 7), (2, 8)", "(2, 7), (1, 8)"))
    assert masks.differences(picture, swapped) == []
    assert masks.varying == frozenset()


def test_too_many_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="more than 10000 rows"):
        read("create table t (a); with recursive n(i) as (select 1 union all select i + 1 from n where i < 10002)"
             " insert into t select i from n;")


# In words


def test_one_changed_row_is_told_by_its_columns() -> None:
    difference = Difference("stock", ("sku", "units"), (("'brie'", "8"),), (("'brie'", "6"),))
    assert describe(difference) == ["stock (sku='brie'): units is 6 instead of 8"]


def test_missing_and_surplus_rows_are_shortened() -> None:
    difference = Difference("t", ("a",), (("1",),), tuple((str(n),) for n in range(2, 12)))
    told = describe(difference)
    assert told[:2] == ["t: missing (a=1)", "t: too much (a=2)"]
    assert told[-1] == "t: ... and 5 more rows"


def test_files_are_shown_from_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert relative(Where(str(tmp_path / "shop" / "app.py"), 3, "f")) == "shop/app.py:3"
    assert relative(Where("/elsewhere/app.py", 3, "f")) == "app.py:3"


@pytest.mark.parametrize(("text", "kind"), [
    ("BEGIN IMMEDIATE", Kind.BEGIN), ("commit;", Kind.COMMIT), ("END", Kind.COMMIT), ("rollback", Kind.ROLLBACK),
    ("ROLLBACK TO SAVEPOINT a", Kind.SQL), ("savepoint a", Kind.SQL), ("-- begin\nselect 1", Kind.SQL), ("", Kind.SQL),
    ("/* commit */ update t set a = 1", Kind.SQL),
])
def test_the_kind_of_a_statement(text: str, kind: Kind) -> None:
    assert kind_of(text) is kind


@pytest.mark.parametrize(("text", "answer"), [
    ("select 1", False), ("with n as (select 1) insert into t select * from n", True), ("UPDATE t set a = 1", True),
    ("select updated from t", False), ("pragma foreign_keys = on", False), ("create table t (a)", True),
])
def test_which_statements_write(text: str, answer: bool) -> None:
    assert writes(text) is answer


def test_statements_in_a_story() -> None:
    assert said("insert into bothends_inbox (a) values (1)", users=False) == "writes the inbox row"
    assert said("select  1\n from   t", users=True) == "select 1 from t"
    assert said("vacuum", users=False) == "keeps its books"
    assert len(said("select " + "a, " * 100 + "1", users=True)) == 100


# Judging


def ending(picture: Picture, *, violation: str | None = None) -> Ending:
    return Ending(Tape({}), picture, violation)


def test_a_message_that_waits_for_a_human_is_not_lost_but_must_not_be_done_twice() -> None:
    unknown = ("'s.pay'", "'paid'", "'outcome_unknown'", "b'1'")
    before = Picture()
    before.put("dead letters", ("consumer", "type", "reason", "key"), [])
    before.put("paid", ("no",), [("1",)])
    waiting = Picture()
    waiting.put("dead letters", ("consumer", "type", "reason", "key"), [unknown])
    waiting.put("paid", ("no",), [])
    masks = masks_of(before, before)
    assert judge(ending(before), ending(waiting), masks, {1: Fault.CRASH_AFTER}, has_invariant=False).ok
    waiting.put("paid", ("no",), [("1",), ("1",)])
    verdict = judge(ending(before), ending(waiting), masks, {1: Fault.CRASH_AFTER}, has_invariant=False)
    assert [difference.table for difference in verdict.differences] == ["paid"]


def test_a_reordering_is_judged_by_the_invariant_alone_where_there_is_one() -> None:
    before, after = of(t=[("1",)]), of(t=[("2",)])
    masks, plan = masks_of(before, before), {3: Fault.REORDER}
    assert judge(ending(before), ending(after), masks, plan, has_invariant=True).ok
    assert not judge(ending(before), ending(after), masks, plan, has_invariant=False).ok
    assert not judge(ending(before), ending(after, violation="no"), masks, plan, has_invariant=True).ok


def first_come(units: int) -> Service:
    """The last piece goes to whoever comes first; the other order is turned down."""
    service = Service("first-come", )

    @service.consumer("stock", retry=Retry(attempts=5)).handle(Paid)
    def take(paid: Paid, ctx: Context[sqlite3.Connection]) -> None:
        db = ctx.connection
        if db.execute("select units from stock").fetchone()[0] >= units:
            db.execute("update stock set units = units - ?", [units])
            db.execute("insert into sold values (?)", [paid.order])

    return service


def start(db: sqlite3.Connection) -> None:
    db.executescript("create table stock (units integer); insert into stock values (1); create table sold (no text);")


def one_is_sold(db: sqlite3.Connection) -> bool:
    return bool(db.execute("select count(*) = 1 and (select units from stock) = 0 from sold").fetchone()[0])


def test_an_invariant_says_which_results_are_right() -> None:
    assert explore(first_come(1), [ONE, TWO], start=start, invariant=one_is_sold).ok
    without = explore(first_come(1), [ONE, TWO], start=start)
    assert {finding.cause for finding in without.findings} == {Cause.ORDER}, str(without)


def test_an_invariant_that_does_not_hold_undisturbed_is_a_finding() -> None:
    def never(db: sqlite3.Connection) -> None:
        raise AssertionError("stock is never right")

    report = explore(first_come(1), [ONE], start=start, invariant=never)
    (finding,) = report.findings
    assert finding.faults == ()
    assert finding.ending == ("the invariant does not hold: stock is never right",)


def test_an_invariant_finds_what_the_comparison_finds_as_well() -> None:
    service = Service("naive")

    @service.consumer("stock", inbox=False).handle(Paid)
    def take(paid: Paid, ctx: Context[sqlite3.Connection]) -> None:
        ctx.connection.execute("update stock set units = units - 1")

    def not_below_zero(db: sqlite3.Connection) -> bool:
        return bool(db.execute("select units >= 0 from stock").fetchone()[0])

    report = explore(service, [ONE], start=start, invariant=not_below_zero)
    assert any("the invariant does not hold" in line for line in report.findings[0].ending)


def test_a_handler_that_never_succeeds_ends_as_a_note() -> None:
    service = Service("hopeless")

    @service.consumer("stock", retry=Retry(attempts=3)).handle(Paid)
    def take(paid: Paid) -> None:
        raise Transient("never")

    report = explore(service, [ONE], start=start)
    assert report.notes == ("undisturbed, 'planted.paid' ends as a dead letter of 'hopeless.stock': 'transient'",)
    assert report.ok, str(report)
