"""The same seed gives the same story, and nothing of an exploration is left behind in the process."""

from __future__ import annotations

import datetime
import os
import random
import sqlite3
import time
import uuid
from typing import Any

import pytest

from bothends import Context, Retry, Service, Transient
from bothends.testing import explore
from bothends.testing.exploring.boundaries import Fault
from bothends.testing.exploring.databases import Database
from bothends.testing.exploring.worlds import World
from tests.exploring.planted import identities, marks, outside
from tests.exploring.planted.events import ONE, TWO, Paid

PLANTS = [marks.PLANTS[0], outside.PLANTS[1], identities.PLANTS[0], identities.PLANTS[4]]


@pytest.mark.parametrize("plant", PLANTS, ids=str)
def test_the_same_seed_gives_the_same_story(plant: Any) -> None:
    first, second = (explore(plant.make(True), plant.events, start=plant.start, seed=7) for _ in range(2))
    assert str(first) == str(second)
    assert first.findings


def test_another_seed_finds_the_same_with_other_dice() -> None:
    plant = identities.PLANTS[0]
    reports = [explore(plant.make(True), plant.events, start=plant.start, seed=seed) for seed in (1, 2)]
    assert reports[0].findings[0].cause is reports[1].findings[0].cause
    assert (reports[0].seed, reports[1].seed) == (1, 2)


def _asked() -> tuple[Any, ...]:
    """What an exploration replaces."""
    return time.time, time.monotonic, time.sleep, os.urandom, sqlite3.connect, vars(identities)["datetime"]


def test_the_process_has_its_own_clocks_and_dice_back() -> None:
    before = _asked()
    state = random.getstate()
    explore(marks.PLANTS[0].make(True), [ONE], start=marks.start)
    assert _asked() == before
    assert random.getstate() == state
    assert vars(identities)["datetime"] is datetime.datetime


def test_two_explorations_at_once_are_refused() -> None:
    service = Service("nested")

    @service.consumer("once", retry=Retry(attempts=1)).handle(Paid)
    def again(paid: Paid) -> None:
        explore(marks.PLANTS[0].make(True), [ONE], start=marks.start)

    report = explore(service, [ONE])
    assert report.notes == ("undisturbed, 'planted.paid' ends as a dead letter of 'nested.once': 'handler_error'",)


class Clockwork:
    """A service that writes down what it sees of time and chance."""

    def __init__(self) -> None:
        self.service = Service("clockwork")
        consumer = self.service.consumer("note")

        @consumer.handle(Paid)
        def note(paid: Paid, ctx: Context[sqlite3.Connection]) -> None:
            began = time.monotonic()
            time.sleep(3600)
            ctx.connection.execute(
                "insert into noted values (?, ?, ?, ?, ?, current_timestamp, datetime('now'), strftime('%Y', 'now'))",
                [paid.order, str(uuid.uuid4()), random.random(), time.monotonic() - began,
                 vars(identities)["datetime"].now().isoformat()],
            )

    def world(self) -> World:
        def prepare(db: Any, database: Database) -> None:
            db.execute("create table noted (no text, id text, dice real, slept real, at text, stamp text, now text, year text)")
            database.publish(db, [self.service], [ONE, TWO])

        return World([self.service], prepare, modules=[identities.__name__])


def test_a_run_is_the_same_every_time_and_sleeps_no_real_time() -> None:
    began = time.perf_counter()
    with Clockwork().world().opened() as world:
        rows = [world.run({}).picture.rows["noted"] for _ in range(3)]
        noise = world.run({}, noise=True).picture.rows["noted"]
    assert time.perf_counter() - began < 20
    assert rows[0] == rows[1] == rows[2]
    assert len(rows[0]) == 2
    assert rows[0][0][5].startswith("'2030-01-01 ")
    assert rows[0][0][7] == "'2030'"
    assert float(rows[0][0][3]) == pytest.approx(3600, abs=1)
    for column in (1, 2, 4, 5, 6):
        assert rows[0][0][column] != noise[0][column]


def test_a_replay_passes_the_same_boundaries_up_to_its_fault() -> None:
    with Clockwork().world().opened() as world:
        undisturbed = world.run({}).tape.boundaries
        for number in (5, 20, 36):
            replayed = world.run({number: Fault.CRASH_AFTER}).tape.boundaries
            assert [(b.kind, b.text) for b in replayed[:number]] == [(b.kind, b.text) for b in undisturbed[:number]]
            assert [b.number for b in replayed] == list(range(len(replayed)))


def test_what_does_not_repeat_is_said() -> None:
    service = Service("unsteady")
    real = iter(range(1_000))

    class Outside:
        turns = real  # an iterator that the explorer cannot put back

    kept = Outside.turns

    @service.consumer("note").handle(Paid)
    def note(paid: Paid, ctx: Context[sqlite3.Connection]) -> None:
        for _ in range(next(kept) % 3):
            ctx.connection.execute("select 1")

    report = explore(service, [ONE])
    assert "do not pass the same boundaries" in report.notes[0]
    assert explore(marks.PLANTS[1].make(False), [ONE], start=marks.start).notes == ()


def test_runs_that_begin_behind_the_relay_pass_the_same_boundaries() -> None:
    """Runs that are disturbed late begin where the first events are out; nothing of theirs differs."""
    service = Service("retrying")

    @service.consumer("note", retry=Retry(attempts=4)).handle(Paid)
    def note(paid: Paid) -> None:
        raise Transient("not yet")

    def prepare(db: Any, database: Database) -> None:
        database.publish(db, [service], [ONE, TWO])

    with World([service], prepare).opened() as world:
        world.run({})
        whole = world.run({}).tape.boundaries
        late = world.run({len(whole) + 100: Fault.FAILS}).tape.boundaries
    assert [(b.kind, b.process, b.message, b.text) for b in whole] == [(b.kind, b.process, b.message, b.text) for b in late]
