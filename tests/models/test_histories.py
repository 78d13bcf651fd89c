"""Histories that chance hardly finds, and that no single process shows."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import pytest

from tests.exploring.mutants import MUTANTS
from tests.models.several import KEYS, LEASE_S
from tests.models.simulation import Process
from tests.models.workers import ATTEMPTS, GROUP, PARTITIONS, Workers


def leases(model: Workers, key: str | None = None) -> list[tuple[str, int, bool, str]]:
    """(key, epoch, whether it is leased, the last drainer) of keys that wait."""
    rows = model.ground.rows("select key, epoch, lease_until is not null, drainer from bothends_blocked_keys order by key")
    return [(bytes(name).decode(), *rest) for name, *rest in rows if key is None or bytes(name).decode() == key]


def drainer_of_anothers(model: Workers) -> tuple[str, Process] | None:
    """A key that is leased by a worker that has not its partition: of new messages others hear."""
    claims = model.log.claims(GROUP)
    for key, _, leased, name in leases(model):
        if leased and claims.get(zlib.crc32(key.encode()) % PARTITIONS) != name:
            return key, model.simulation.processes[name]
    return None


def go_on(model: Workers, until: Callable[[], Any], only: Process | None = None) -> None:
    for _ in range(4_000):
        if until():
            return
        for process in [only] if only is not None else model.moving:
            process.step(1)
    raise AssertionError("it does not come to that")


def late_drainer() -> None:
    """A drainer is frozen with its key's head in hand, which others run; the key is free, waits again for another message, and
    its new lease has the old number. Only the inbox row says then that the head is done."""
    model = Workers()
    try:
        # Of the seeds 0 to 11 nine let a worker drain what came in at the other.
        model.begin(seed=1, then="pass", mode="park", batch=100, slots=1, workers=2, if_unknown="", events=[])
        for key in KEYS:
            model.send(key, fails=1, doomed=False)
        go_on(model, lambda: drainer_of_anothers(model))
        key, late = drainer_of_anothers(model) or ("", None)
        go_on(model, lambda: model.ground.rows("select 1 from bothends_runs where worker = :name", name=late.name), only=late)
        assert not late.writes
        model.frozen.add(late.name)
        model.forward(LEASE_S + 1.0)
        go_on(model, lambda: not leases(model))
        model.send(key, fails=2, doomed=False)
        go_on(model, lambda: any(epoch == 1 and not leased for _, epoch, leased, _ in leases(model, key)))
        model.frozen.discard(late.name)
        late.step(300)
    finally:
        model.teardown()


def test_the_head_runs_once() -> None:
    late_drainer()


def dead_head() -> None:
    """The head is dead and its key held; nothing runs behind it when the drainer's lease is over."""
    model = Workers()
    try:
        model.begin(seed=0, then="hold", mode="park", batch=100, slots=1, workers=1, if_unknown="", events=[])
        model.send("k1", fails=2 * ATTEMPTS, doomed=False)
        model.send("k1", fails=0, doomed=False)
        go_on(model, lambda: model.ground.rows("select 1 from bothends_dead_letters"))
        model.forward(LEASE_S + 1.0)
        model.running[0].step(400)
        model.check()
    finally:
        model.teardown()


def test_a_key_stays_held_when_the_lease_is_over() -> None:
    dead_head()


@pytest.mark.parametrize(("name", "history", "said"), [
    ("the drainer does not look whether it is done", late_drainer, "took effect twice"),
    ("a failed head keeps its lease", dead_head, "took effect before"),
])
def test_it_shows_what_no_history_of_one_does(
    name: str, history: Callable[[], None], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (mutant,) = [one for one in MUTANTS if one.name == name]
    monkeypatch.setattr(mutant.owner, mutant.attribute, mutant.replace(getattr(mutant.owner, mutant.attribute)))
    with pytest.raises(AssertionError, match=said):
        history()
