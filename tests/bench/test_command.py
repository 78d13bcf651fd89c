"""`python -m bench`: what it takes, and what it leaves behind."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from bench import __main__ as command
from bench.figures import figure, goal, report
from bench.machine import Load, describe


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[int | None, bool]]:
    """`relay` measures nothing; results go to a folder of the test."""
    calls: list[tuple[int | None, bool]] = []

    def measure(rounds: int | None, quick: bool) -> dict[str, Any]:
        calls.append((rounds, quick))
        ratio = figure([0.5], "of it", 2)
        return report("Pretended", "How.", "Not.", setting={"n": 1}, figures={"ratio": ratio},
                      goals=[goal("S1", "relay", ratio, "at least", 0.6)])

    module: Any = types.ModuleType("bench.relay")
    module.measure = measure
    monkeypatch.setitem(sys.modules, "bench.relay", module)
    monkeypatch.setattr(command, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(command, "PAGE", tmp_path / "benchmarks.md")
    return calls


@pytest.mark.needs("postgresql")
def test_a_run_leaves_its_result_the_plot_and_the_page(
    pretended: list[tuple[int | None, bool]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["relay", "--rounds", "4"]) == 0
    assert pretended == [(4, False)]
    result = json.loads((tmp_path / "results" / "relay.json").read_text())
    assert result["bench"] == "relay"
    assert set(result["load"]) == {"before", "mean", "max", "seconds"}
    assert result["machine"]["cores"] >= 1
    assert (tmp_path / "results" / "goals.svg").exists()
    assert "## Pretended" in (tmp_path / "benchmarks.md").read_text()
    assert "MISSED" in capsys.readouterr().out


@pytest.mark.needs("postgresql")
def test_quick_writes_nothing_but_the_file_asked_for(pretended: list[tuple[int | None, bool]], tmp_path: Path) -> None:
    assert command.main(["relay", "--quick", "--json", str(tmp_path / "out.json")]) == 0
    assert pretended == [(None, True)]
    (result,) = json.loads((tmp_path / "out.json").read_text())
    assert result["quick"] is True
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.json"]


@pytest.mark.needs("postgresql")
def test_page_alone_measures_nothing(pretended: list[tuple[int | None, bool]], tmp_path: Path) -> None:
    command.main(["relay"])
    (tmp_path / "benchmarks.md").unlink()
    assert command.main(["--page"]) == 0
    assert len(pretended) == 1
    assert (tmp_path / "benchmarks.md").exists()


@pytest.mark.parametrize(("arguments", "says"), [
    (["nonsense"], "no such bench: nonsense"), (["relay", "--rounds", "0"], "--rounds is 1 to 1000"),
    (["relay", "--rounds", "1001"], "--rounds is 1 to 1000"),
])
def test_wrong_use_is_said(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        command.main(arguments)
    assert left.value.code == 2
    assert says in capsys.readouterr().err


def test_a_missing_service_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from bench.places import service_url

    monkeypatch.delenv("BOTHENDS_TEST_KAFKA_URL", raising=False)
    with pytest.raises(SystemExit, match="BOTHENDS_TEST_KAFKA_URL is not set"):
        service_url("kafka")


def test_the_load_is_looked_at_all_along() -> None:
    with Load() as load:
        pass
    figures = load.figures()
    assert 0 <= figures["mean"] <= figures["max"]
    assert figures["seconds"] >= 0


@pytest.mark.needs("postgresql")
def test_the_machine_is_described() -> None:
    found = describe()
    assert found["cpu"]
    assert found["memory_gb"] > 0
    assert found["postgresql"][0].isdigit()
