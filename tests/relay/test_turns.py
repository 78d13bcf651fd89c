"""Whose turn it is among held rows: kept by the table, after whatever anybody changes (ADR 18)."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from bothends.core.relaying import Hold
from bothends.stores.steps import run
from tests.relay.conftest import Rig

KEYS = (b"a", b"b", None)
STEPS = 250


def turns(rig: Rig) -> tuple[set[int], set[int]]:
    """The rows that have a time at which they are tried, and those that should have one: worked out here, from the rule."""
    rows = rig.sql(f"select seq, topic, key, state, passed, next_at is not null from {rig.table('held')} order by seq")
    heads: set[int] = set()
    seen: set[Any] = set()
    for seq, topic, key, state, passed, _ in rows:
        place = seq if key is None else (topic, bytes(key))
        if not passed and place not in seen:
            seen.add(place)
            if state in ("retrying", "behind"):
                heads.add(seq)
    return {row[0] for row in rows if row[5]}, heads


@pytest.mark.parametrize("seed", range(4))
def test_of_each_key_the_lowest_row_has_its_turn_and_no_other(rig: Rig, seed: int) -> None:
    """Random statements of a relay and of operators, rows that come back below the head, rows that were due later."""
    chance = random.Random(seed)
    steps: Any = rig.store.relay
    me = run(steps.leases.register(
        name="r", pid=1, host="h", lease_s=600.0, former=None, now=time.monotonic(), boot="b"), rig.connection)
    rig.connection.begin()
    for n in range(60):
        late = {"due_in_s": 3600.0} if n % 4 == 0 else {}
        rig.connection.execute(rig.insert("tu"[n % 2], KEYS[n % 3], b"%d" % n, **late))
    rig.connection.commit()
    seqs = [row[0] for row in rig.sql(f"select seq from {rig.table('outbox')} order by seq")]
    late_seqs = seqs[::4]
    assert run(steps.rows.settle(me, [], [], late_seqs), rig.connection)

    def some(most: int = 4, *, passed: bool = False) -> list[int]:
        """What is passed over is dead, and only operators have to do with it."""
        held = [row[0] for row in rig.sql(f"select seq from {rig.table('held')} {'' if passed else 'where not passed'}")]
        return chance.sample(held, min(len(held), chance.randint(1, most)))

    def hold() -> None:
        step = chance.sample([seq for seq in seqs if seq not in late_seqs], 3)
        rows = [Hold(seq, chance.choice(["retrying", "behind", "behind", "place", "dead", "passed"])) for seq in step]
        assert run(steps.rows.settle(me, [], rows, []), rig.connection)

    def come_due() -> None:
        rows = [(seq, chance.choice(["behind", "retrying", "place", "passed"]), "", "") for seq in chance.sample(late_seqs, 2)]
        assert run(steps.held.delayed_done(me, [], rows), rig.connection)

    def retry() -> None:
        for seq in some(1):
            delay_s = chance.choice([None, 0.0, 60.0])
            assert run(steps.held.retry(
                me, seq, attempts=1, delay_s=delay_s, passed=delay_s is None and chance.random() < 0.5, reason="", error=""),
                rig.connection)

    def grant() -> None:
        for seq in some(1, passed=True):
            assert run(steps.held.grant(me, seq, chance.choice(["retry", "skip", "discard"])), rig.connection)

    acts = [
        hold, hold, come_due, retry, grant,
        lambda: run(steps.held.release(me, some()), rig.connection),
        lambda: run(steps.held.suspect(me, some(), "r", "e"), rig.connection),
        lambda: run(steps.held.get_behind(me, some()), rig.connection),
    ]
    for number in range(STEPS):
        act = chance.choice(acts)
        act()
        has, should = turns(rig)
        assert has == should, (seed, number, act)
    run(steps.leases.leave(me), rig.connection)
