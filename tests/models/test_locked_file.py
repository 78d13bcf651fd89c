"""Found by the worker model: a worker that started while somebody held SQLite's file for longer than it waits was over."""

from __future__ import annotations

from tests.models.simulation import BUSY_S
from tests.models.workers import Workers


def test_a_worker_that_starts_waits_for_the_file() -> None:
    model = Workers()
    try:
        model.begin(seed=0, then="pass", mode="park", batch=100, slots=1, workers=1, if_unknown="", events=[])
        model.ground.own.begin()
        before_s = model.simulation.clock.passed_s
        while model.simulation.clock.passed_s < before_s + 3 * BUSY_S:
            model.running[0].step(10)
            assert not model.running[0].over, model.simulation.errors
        model.ground.own.rollback()
        model.send("k1", fails=0, doomed=False)
    finally:
        model.teardown()
    assert model.done
