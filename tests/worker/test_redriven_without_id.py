"""A message that was given up on because it had no id, redriven when the rule that finds it was mended: it is handled, once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bothends import Context, ForeignJson, Service, event
from bothends.admin.acts import Act
from bothends.admin.redrive import redrive
from bothends.ports import Outgoing
from bothends.stores import open_store
from bothends.stores.steps import Sql, run
from bothends.testing import Harness
from bothends.testing.clock import table

TOPIC = "foreign.things"


@event("thing", key="no", topic=TOPIC)
@dataclass(frozen=True)
class Thing:
    no: str


def reading(id: str, done: list[str], *, effects: bool = False) -> Service:
    service = Service("foreign")

    @service.consumer("things", format=ForeignJson(id=id, type="thing")).handle(Thing, effects=effects)
    def handle(thing: Thing, ctx: Context[Any]) -> None:
        if effects:
            ctx.begin()
        done.append(thing.no)

    return service


def publish(h: Harness, *bodies: dict[str, str]) -> None:
    publisher = h.broker.publisher("foreign")
    publisher.send(1, [Outgoing(TOPIC, b"7", json.dumps(body).encode(), []) for body in bodies])
    assert publisher.poll(1)[0].failures == {}
    publisher.close(1)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("pg_database"))
    return f"sqlite:///{tmp_path / 'foreign.db'}"


def redrive_all(url: str) -> list[str]:
    store = open_store(url)
    connection = store.connect(name="operator")
    connection.begin()
    try:
        letters = connection.execute(Sql(f"select id from {table(store, 'dead_letters')} order by id")).rows
        outcomes = [run(redrive(store.admin, letter, Act("operator")), connection) for (letter,) in letters]
        connection.commit()
        return [str(outcome) for outcome in outcomes]
    finally:
        connection.close()


def states(url: str) -> list[str]:
    store = open_store(url)
    connection = store.connect(name="operator")
    try:
        return [row[0] for row in connection.execute(Sql(f"select state from {table(store, 'dead_letters')} order by id")).rows]
    finally:
        connection.close()


@pytest.mark.parametrize("effects", [False, True], ids=["ordinary", "effects"])
def test_it_is_handled_once(url: str, effects: bool) -> None:
    done: list[str] = []
    with Harness(reading("number", done, effects=effects), database=url) as h:
        publish(h, {"no": "1", "nr": "a"}, {"no": "2", "nr": "b"}, {"no": "1", "nr": "a"})
        h.settle()
        assert [dead.reason for dead in h.dead] == ["no_id"] * 3
    assert redrive_all(url) == ["redriven"] * 3
    with Harness(reading("nr", done, effects=effects), database=url) as h:
        h.settle()
        assert not h.dead
    assert sorted(done) == ["1", "2"]  # the third is a copy of the first
    assert states(url) == ["done"] * 3


def test_one_that_has_none_still_is_dead_again(url: str) -> None:
    done: list[str] = []
    with Harness(reading("number", done), database=url) as h:
        publish(h, {"no": "1"})
        h.settle()
    assert redrive_all(url) == ["redriven"]
    with Harness(reading("other", done), database=url) as h:
        h.settle()
        assert [dead.reason for dead in h.dead] == ["no_id"]
    assert done == []
