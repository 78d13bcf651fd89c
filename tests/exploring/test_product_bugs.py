"""Bugs planted in the product itself: the explorer runs what runs in production, so it finds them there as well."""

from __future__ import annotations

from typing import Any

import pytest

from bothends.brokers.logs.broker import LogBroker
from bothends.relay import pipeline
from bothends.testing import explore
from bothends.testing.exploring.causes import Cause
from bothends.worker.inbox import Batch
from tests.exploring.planted import Plant, marks

RIGHT = marks.PLANTS[1]


def explored(plant: Plant = RIGHT) -> Any:
    return explore(plant.make(False), plant.events, start=plant.start)


def test_a_relay_that_marks_before_the_confirmation(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = pipeline.Pipeline.send

    def send(self: pipeline.Pipeline, batch: Any) -> bool:
        self._settle_streams([batch])
        return plain(self, batch)

    monkeypatch.setattr(pipeline.Pipeline, "send", send)
    report = explored()
    assert {finding.cause for finding in report.findings} == {Cause.MARKED_FIRST}, str(report)
    assert "stock: units is 10 instead of 8" in report.findings[0].ending


def test_an_offset_that_is_committed_before_the_inbox_row(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = LogBroker.subscribe

    def subscribe(self: LogBroker, *arguments: Any, **options: Any) -> Any:
        return plain(self, *arguments, **options | {"at_most_once": True})

    monkeypatch.setattr(LogBroker, "subscribe", subscribe)
    report = explored()
    assert {finding.cause for finding in report.findings} == {Cause.ACKNOWLEDGED_FIRST}, str(report)


def test_an_inbox_row_in_a_transaction_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Batch._one

    def one(self: Batch, *arguments: Any) -> Any:
        from bothends.worker.acts import Do

        yield Do.COMMIT
        yield Do.BEGIN
        yield from plain(self, *arguments)

    monkeypatch.setattr(Batch, "_one", one)
    report = explored()
    assert report.findings, str(report)
    assert any("stock: units is 10 instead of 8" in finding.ending for finding in report.findings)


def test_as_it_is_shipped_it_has_none_of_them() -> None:
    assert explored().ok
