"""What a pipeline settles in one step, with a store that notes what it is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from bothends.core.relaying import BLOCKED, Hold
from bothends.relay.batches import Batch
from bothends.relay.pipeline import Pipeline
from bothends.relay.settings import RelaySettings
from bothends.stores.steps import Steps


def pipeline() -> tuple[Pipeline, list[list[Hold]]]:
    settled: list[list[Hold]] = []

    def settle(me: int, segments: Any, holds: list[Hold], delays: Any) -> Steps[bool]:
        settled.append(holds)
        yield from ()
        return True

    steps: Any = SimpleNamespace(rows=SimpleNamespace(settle=settle))
    nothing: Any = SimpleNamespace(execute=None)
    return Pipeline(1, steps, nothing, nothing, RelaySettings(), "p"), settled


def row(seq: int, key: bytes, flag: int = 0) -> tuple[Any, ...]:
    return (1, seq, flag, b"id", "source", "type", "t", key, b"", None, b"", 1, None, None)


def test_batches_are_settled_together() -> None:
    pipe, settled = pipeline()
    for seq in range(5):
        batch = Batch("stream", [row(seq, b"%d" % seq, BLOCKED if seq in (2, 3) else 0)])
        batch.segments = [(1, seq, "1:1:")]
        pipe._deal(batch)
        batch.done = True
        pipe.window.append(batch)
    while pipe.collect(0):
        pass
    assert [[hold.seq for hold in holds] for holds in settled] == [[2, 3]]
