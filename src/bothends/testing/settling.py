"""Settling: the loop of a harness, until nothing moves. It decides what is done next; what is done is the product's."""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple, TypeAlias

from bothends.message import Record
from bothends.testing.intake import Intake
from bothends.testing.publishing import records_of
from bothends.testing.snapshots import Snapshot, difference
from bothends.testing.stage import Stage
from bothends.worker.acts import Acts

__all__ = ["ROUNDS_MAX", "settling"]

ROUNDS_MAX = 200
"""Rounds of publishing and delivering, in one ``settle``; a step in a chain of events, or a retry, takes one."""

Work: TypeAlias = "tuple[Intake, Acts[None]]"
Working: TypeAlias = Generator[Work, None, list[str]]
"""Gives out work, each piece of which is done when the next is asked for; returns whose moved."""
Delivered: TypeAlias = list[tuple[Intake, list[Record]]]


def settling(stage: Stage, *, deliver_twice: bool) -> Generator[Work, None, None]:
    """Gives out work until nothing moves; each piece must be done before the next is asked for. Raises AssertionError."""
    stage.refuse_open_writers()
    delivered: Delivered = []
    yield from _until_still(stage, delivered)
    if deliver_twice and delivered:
        yield from _again(stage, delivered)


def _until_still(stage: Stage, delivered: Delivered) -> Generator[Work, None, None]:
    moved: list[str] = []
    for _ in range(ROUNDS_MAX):
        moved = ["an outbox"] if stage.publish() else []
        for intake in stage.intakes:
            moved += yield from _deliver(intake, delivered)
            moved += yield from _drain(intake)
        if moved:
            continue
        wait_s = _next_retry_s(stage)
        if wait_s is None:
            return
        stage.forward(wait_s)
    names = ", ".join(dict.fromkeys(moved)) or ", ".join(_waiting(stage))
    raise AssertionError(f"this flow does not settle in {ROUNDS_MAX} rounds; at the end there still moved: {names}")


def _deliver(intake: Intake, delivered: Delivered) -> Working:
    moved: list[str] = []
    while records := intake.take():
        delivered.append((intake, records))
        for batch in intake.read(records):
            yield intake, batch.acts()
            intake.settle(batch.deliveries)
        moved.append(intake.consumer.name)
    return moved


def _drain(intake: Intake) -> Working:
    moved: list[str] = []
    for drain in intake.due():
        yield intake, drain.acts()
        moved.append(intake.consumer.name)
    return moved


def _next_retry_s(stage: Stage) -> float | None:
    waits = [intake.next_retry_s() for intake in stage.intakes]
    waits += [database.next_retry_s([]) for database in stage.databases.values()]
    return min((wait for wait in waits if wait is not None), default=None)


def _waiting(stage: Stage) -> list[str]:
    return [intake.consumer.name for intake in stage.intakes if intake.next_retry_s() is not None]


# deliver_twice


class _Left(NamedTuple):
    """What a second delivery must not change."""

    tables: list[Snapshot]
    topics: dict[str, int]
    dead: int


def _left(stage: Stage) -> _Left:
    return _Left(
        [database.snapshot() for database in stage.databases.values()],
        {topic: len(list(records_of(stage.broker, topic))) for topic in stage.topics},
        len(stage.dead()),
    )


def _again(stage: Stage, delivered: Delivered) -> Generator[Work, None, None]:
    once = _left(stage)
    for intake, records in list(delivered):
        if intake.consumer.at_most_once:
            continue  # acknowledged before it is handled: a broker never delivers it again
        for batch in intake.read(records):
            yield intake, batch.acts()
    yield from _until_still(stage, [])
    twice = _left(stage)
    lines = [line for before, after in zip(once.tables, twice.tables, strict=True) for line in difference(before, after)]
    lines += [
        f"topic {topic}: {once.topics.get(topic, 0)} records, then {count}"
        for topic, count in twice.topics.items() if once.topics.get(topic, 0) != count
    ]
    if once.dead != twice.dead:
        lines.append(f"dead letters: {once.dead}, then {twice.dead}")
    if lines:
        names = ", ".join(dict.fromkeys(intake.consumer.name for intake, _ in delivered))
        raise AssertionError(
            f"a second delivery of every record changed something, so one of {names} is not idempotent:\n" + "\n".join(lines)
        )
