"""The sceptic's test: each planted bug is found within the default budget, and its twin is left in peace."""

from __future__ import annotations

from pathlib import Path

import pytest

from bothends.testing import explore
from bothends.testing.exploring.reports import Report
from tests.exploring.planted import Plant, identities, marks, orders, outside

PLANTS = [*marks.PLANTS, *outside.PLANTS, *identities.PLANTS, *orders.PLANTS]


def explored(plant: Plant, wrong: bool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Report:
    database = None
    if plant.own_connections:
        file = folder / "planted.db"
        monkeypatch.setenv("PLANTED_DATABASE", str(file))
        database = f"sqlite:///{file}"
    return explore(plant.make(wrong), plant.events, start=plant.start, database=database)


@pytest.mark.parametrize("plant", PLANTS, ids=str)
def test_the_bug_is_found_and_explained(plant: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = explored(plant, True, tmp_path, monkeypatch)
    assert report.findings, report
    assert {finding.cause for finding in report.findings} <= set(plant.causes), str(report)
    for finding in report.findings:
        assert finding.where is not None, str(report)
        assert "planted" in finding.where.file
        assert finding.ending


@pytest.mark.parametrize("plant", PLANTS, ids=str)
def test_its_twin_is_left_in_peace(plant: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = explored(plant, False, tmp_path, monkeypatch)
    assert report.ok, str(report)
    assert report.complete
