"""The evidence that the explorer would find bugs of relay, worker and effects: it finds nearly all mutants of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bothends import NOT_DONE, Context, NotDone, Permanent, Retry, Service, Transient
from bothends.testing import recorded
from bothends.testing.exploring.databases import Database
from bothends.testing.exploring.judging import judge
from bothends.testing.exploring.pictures import Masks, masks_of
from bothends.testing.exploring.searching import singles
from bothends.testing.exploring.worlds import Ending, World
from tests.exploring.mutants import MUTANTS, Mutant
from tests.exploring.planted.events import ONE, TWO, Paid, StockMoved

EVENTS = (ONE, Paid("1001", 3), TWO)
EQUIVALENT = {
    "the drainer does not look whether it is done": "the key's lease is asked before the commit, and is gone",
    "a drained message is not taken out": "its inbox row says that it is done: it is dropped at the next look",
    "a failed head keeps its lease": "the lease runs out",
    "an effect's result is not kept": "the run that lost it finds out from the other side",
}
"""Mutants that no single history shows, and why."""


class Bank:
    """Knows no keys: whoever charges twice is charged twice."""

    def __init__(self) -> None:
        self.charged: list[str] = []

    def charge(self, order: str, units: int) -> str:
        self.charged.append(f"{order} {units}")
        return f"receipt for {order}"

    def find(self, order: str, units: int) -> str | None:
        return f"receipt for {order}" if f"{order} {units}" in self.charged else None


bank = recorded(Bank(), reads=["find"])
DB = Context[sqlite3.Connection]


def start(db: sqlite3.Connection) -> None:
    db.executescript("create table log (no text, units integer, nth integer); create table paid (no text, receipt text);")


def note(db: sqlite3.Connection, paid: Paid) -> None:
    """The how many-th of its key it was shows its place in the order."""
    db.execute("insert into log select ?, ?, count(*) from log where no = ?", [paid.order, paid.units, paid.order])


def plain() -> Service:
    service = Service("plain")

    @service.consumer("log").handle(Paid)
    def log(paid: Paid, ctx: DB) -> None:
        note(ctx.connection, paid)
        ctx.emit(StockMoved(paid.order, paid.units))

    return service


def effects() -> Service:
    service = Service("effects")

    @service.consumer("pay").handle(Paid, effects=True)
    def pay(paid: Paid, ctx: DB) -> None:
        def find(_: str) -> str | NotDone:
            return bank.find(paid.order, paid.units) or NOT_DONE

        receipt = ctx.once("charge", lambda _: bank.charge(paid.order, paid.units), result=str, if_unknown=find)
        ctx.begin().execute("insert into paid values (?, ?)", [paid.order, receipt])

    return service


def failing() -> Service:
    """Each message fails at first, one for ever."""
    service = Service("failing")

    @service.consumer("log", retry=Retry(attempts=4)).handle(Paid)
    def log(paid: Paid, ctx: DB) -> None:
        note(ctx.connection, paid)
        if paid.order == TWO.order:
            raise Permanent("never")
        if ctx.attempt == 1:
            raise Transient("not yet")

    return service


def forwarding() -> Service:
    service = Service("forwarding")

    @service.consumer("log", retry=Retry(attempts=4, mode="topic")).handle(Paid)
    def log(paid: Paid, ctx: DB) -> None:
        if ctx.attempt == 1 and paid.order == TWO.order:
            raise Transient("not yet")
        ctx.connection.execute("insert into log values (?, ?, 0)", [paid.order, paid.units])

    return service


SERVICES = (plain, effects, failing, forwarding)


@contextmanager
def opened(make: Callable[[], Service]) -> Iterator[World]:
    service = make()

    def prepare(db: Any, database: Database) -> None:
        start(db)
        database.publish(db, [service], EVENTS)

    with World([service], prepare, modules=[__name__]).opened() as world:
        yield world


Right = dict[str, tuple[Ending, Masks]]


@pytest.fixture(scope="session")
def right() -> Right:
    """How each service ends without a mutant."""
    found: Right = {}
    for make in SERVICES:
        with opened(make) as world:
            undisturbed = world.run({})
            found[make.__name__] = undisturbed, masks_of(undisturbed.picture, world.run({}, noise=True).picture)
    return found


def caught(make: Callable[[], Service], right: Right) -> str | None:
    """The first history that ends otherwise than it should."""
    undisturbed, masks = right[make.__name__]
    try:
        with opened(make) as world:
            ending = world.run({})
            if not judge(undisturbed, ending, masks, {}, has_invariant=False).ok:
                return "undisturbed"
            for candidate in singles(ending.tape.boundaries, set()):
                plan = {candidate.number: candidate.fault}
                if not judge(undisturbed, world.run(plan), masks, plan, has_invariant=False).ok:
                    return f"{candidate.fault.value} at {ending.tape.boundaries[candidate.number].text[:40]}"
    except Exception as error:  # a mutant that breaks down shows as well
        return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.parametrize("make", SERVICES, ids=lambda make: make.__name__)
def test_the_product_as_it_is_survives(make: Callable[[], Service], right: Right) -> None:
    assert caught(make, right) is None


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_the_mutant_is_caught(mutant: Mutant, right: Right, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutant.owner, mutant.attribute, mutant.replace(getattr(mutant.owner, mutant.attribute)))
    found = next((how for make in SERVICES if (how := caught(make, right)) is not None), None)
    assert (found is None) == (mutant.name in EQUIVALENT), found


def test_nine_in_ten_are_caught() -> None:
    assert len(MUTANTS) >= 50
    assert len(EQUIVALENT) <= len(MUTANTS) / 10
    assert {mutant.name for mutant in MUTANTS} >= EQUIVALENT.keys()
