"""A consumer whose name changes: what aliases take over, and what is refused."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from bothends import ConfigError, Service
from bothends.brokers.memory import MemoryBroker
from bothends.errors import Blame, PublishError
from bothends.ports import Broker
from tests.worker.conftest import TOPIC, Desk, Placed
from tests.worker.working import Run, lag, publish, until, working


@pytest.fixture
def broker() -> Iterator[Broker]:
    broker = MemoryBroker(f"memory://{uuid.uuid4().hex}")
    broker.create_topic(TOPIC, 4)
    yield broker
    broker.close()


def run_with_prefix(desk: Desk, broker: Broker, prefix: str, *, aliases: Sequence[str] = (), more: str = "") -> list[str]:
    """One run of the consumer under a prefix, until its group has settled all that is there; the effects so far."""
    desk.declare(lambda event, ctx: desk.note(ctx), aliases=aliases)
    if more:
        publish(broker, desk, [(more, "k")])
    group = prefix + desk.consumer.name
    run = Run(desk, broker, prefix=prefix)
    until(lambda: run.failed() or all(row.high == max(row.position, row.low) for row in broker.lag(group, [TOPIC])))
    run.stop()
    return desk.effects()


@pytest.mark.parametrize(("before", "after"), [("", "h1_"), ("h1_", ""), ("h1_", "h2_")])
def test_another_prefix_is_refused_and_what_the_refusal_recommends_works(
    desk: Desk, broker: Broker, before: str, after: str
) -> None:
    """Under a name that the database has never seen every effect would happen again, in silence."""
    assert run_with_prefix(desk, broker, before, more="1") == ["1"]
    name = desk.consumer.name
    with pytest.raises(ConfigError) as refused:
        run_with_prefix(desk, broker, after)
    assert f"consumer {after}{name} has never run on this database, which knows it as {before}{name}:" in str(refused.value)
    assert f"group_prefix was changed from '{before}' to '{after}'" in str(refused.value)
    assert f"back to '{before}', or give consumer('stock', ...) aliases=['{before}{name}']" in str(refused.value)
    assert run_with_prefix(desk, broker, before, more="2") == ["1", "2"]  # set back
    assert run_with_prefix(desk, broker, after, aliases=[f"{before}{name}"], more="3") == ["1", "2", "3"]
    positions = [row.position for row in broker.lag(after + name, [TOPIC]) if row.high > row.low]
    assert positions == [3]  # taken over, not read again from the beginning
    assert run_with_prefix(desk, broker, after, more="4") == ["1", "2", "3", "4"]  # the alias has done its work
    with pytest.raises(ConfigError, match=f"knows it as {after}{name}"):
        run_with_prefix(desk, broker, before)


def test_a_new_consumer_beside_others_is_not_refused(desk: Desk, broker: Broker) -> None:
    """One whose name ends like another's, of this service or of another one, is another consumer."""
    run_with_prefix(desk, broker, "", more="1")
    other = Service(f"re{desk.service.name}")
    register = desk.store.inbox.register
    desk.run(register(name=f"{other.name}.stock", service=other.name, owner="", start_at="earliest", topics=[TOPIC]))
    desk.consumer = desk.service.consumer("restock")
    desk.consumer.handle(Placed)(lambda event, ctx: None)
    with working(desk, broker):
        until(lambda: lag(desk, broker) == 0)


def test_a_broker_that_is_away_while_an_alias_is_taken_over_costs_no_position(
    desk: Desk, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_with_prefix(desk, broker, "h1_", more="1") == ["1"]
    asked = []
    there = broker.lag

    def lag_once_away(group: str, topics: Sequence[str]) -> Any:
        asked.append(group)
        if len(asked) <= 2:
            raise PublishError("no broker answers", blame=Blame.BROKER, reason="unreachable")
        return there(group, topics)

    monkeypatch.setattr(broker, "lag", lag_once_away)
    assert run_with_prefix(desk, broker, "", aliases=[f"h1_{desk.consumer.name}"]) == ["1"]
