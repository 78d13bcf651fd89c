"""The users' test kit: ``context`` for one handler, ``Harness`` for flows, ``Scenario`` for stories in rounds."""

from bothends.testing.cases import case
from bothends.testing.harness import Dead, Harness
from bothends.testing.recording import AsyncRecordingContext, RecordingContext, async_context, context
from bothends.testing.scenario import Scenario

__all__ = [
    "AsyncRecordingContext",
    "Dead",
    "Harness",
    "RecordingContext",
    "Scenario",
    "async_context",
    "case",
    "context",
]
