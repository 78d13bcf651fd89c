"""The users' test kit: ``context`` for one handler, ``Harness`` for flows, ``Scenario`` for stories in rounds, ``explore`` for
everything that can go wrong."""

from bothends.testing.cases import case
from bothends.testing.exploring.exploration import explore
from bothends.testing.exploring.http import answering
from bothends.testing.exploring.outside import recorded
from bothends.testing.exploring.reports import Finding, Report
from bothends.testing.harness import Dead, Harness
from bothends.testing.recording import (
    AsyncRecordingBatchContext,
    AsyncRecordingContext,
    RecordingBatchContext,
    RecordingContext,
    async_batch_context,
    async_context,
    batch_context,
    context,
)
from bothends.testing.scenario import Scenario

__all__ = [
    "AsyncRecordingBatchContext",
    "AsyncRecordingContext",
    "Dead",
    "Finding",
    "Harness",
    "RecordingBatchContext",
    "RecordingContext",
    "Report",
    "Scenario",
    "answering",
    "async_batch_context",
    "async_context",
    "batch_context",
    "case",
    "context",
    "explore",
    "recorded",
]
