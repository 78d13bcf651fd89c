"""Bugs planted in the product itself: the explorer runs what runs in production, so it finds them there as well."""

from __future__ import annotations

from typing import Any

import pytest

from bothends.brokers.logs.broker import LogBroker
from bothends.relay import pipeline
from bothends.stores.sqlite.inbox import SqliteInbox
from bothends.stores.steps import Sql
from bothends.testing import explore
from bothends.testing.exploring.causes import Cause
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
    plain = SqliteInbox.admit

    def admit(self: SqliteInbox, *arguments: Any, **options: Any) -> Any:
        admitted = yield from plain(self, *arguments, **options)
        yield Sql("commit")
        yield Sql("begin immediate")
        return admitted

    monkeypatch.setattr(SqliteInbox, "admit", admit)
    report = explored()
    assert any("stock: units is 10 instead of 8" in finding.ending for finding in report.findings), str(report)


def test_as_it_is_shipped_it_has_none_of_them() -> None:
    assert explored().ok
