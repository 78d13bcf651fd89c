"""The page and the plots are made from the results alone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bench import page
from bench.__main__ import NAMES, PAGE, RESULTS
from bench.figures import figure, goal, report

MACHINE = {
    "cpu": "Pretend 3000", "cores": 2, "memory_gb": 24.0, "kernel": "6.1", "python": "3.11.7", "postgresql": "15.18",
    "psycopg": "3.2", "confluent-kafka": "2.16", "bothends": "0.1",
}


def result(name: str, *, measured: float = 0.7, series: bool = False) -> dict[str, Any]:
    ratio = figure([measured, measured + 0.05, measured - 0.05], "of the client's rate", 3)
    points = {"columns": ["s", "events", "rss_mb"], "points": [[0, 0, 50], [1, 1000, 60]]} if series else None
    return {
        "bench": name, "quick": False, "measured_at": "2026-01-01T00:00:00Z",
        **report(f"Title of {name}", "How it was done.", "What it leaves out.", setting={"events": 1000, "body_bytes": 200},
                 figures={"ratio": ratio, "rate_per_s": figure([123456.0], "events/s")},
                 goals=[goal("S1", "relay against client", ratio, "at least", 0.6)], series=points),
        "load": {"before": 0.1, "mean": 2.5, "max": 3.0, "seconds": 61.2}, "machine": MACHINE,
    }


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "bench" / "results"
    folder.mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    return folder


def put(folder: Path, *found: dict[str, Any]) -> None:
    for each in found:
        (folder / f"{each['bench']}.json").write_text(json.dumps(each))


def test_results_come_in_the_order_of_the_names(results: Path) -> None:
    put(results, result("worker"), result("relay"))
    assert [each["bench"] for each in page.load(("relay", "latency", "worker"), results)] == ["relay", "worker"]


def test_the_page_says_what_was_measured_how_and_what_not() -> None:
    text = page.text([result("relay")], "../bench/results")
    assert "| S1 | relay against client | at least 0.6 | 0.7 (0.65 to 0.75) of the client's rate | met | – | " in text
    assert "| `make bench-relay` | 0.1 before" in text
    assert "## Title of relay\n\nHow it was done." in text
    assert "What it does not say: What it leaves out." in text
    assert "| rate_per_s | 123,456 (123,456 to 123,456) | events/s |" in text
    assert "Pretend 3000, 2 cores, 24.0 GB" in text
    assert "Setting: events 1000, body bytes 200." in text


def test_the_best_peer_stands_beside_a_goal_that_peers_have() -> None:
    def row(peer: str, drain: float, p50: float, rate: int = 1000, version: str = "1") -> dict[str, Any]:
        return {
            "peer": peer, "version": version, "settings": "", "events": 1, "rate_per_s": rate, "order": "", "durability": "",
            "missing": "", "figures": {
                "drain_per_s": figure([drain], "events/s"), "p50_ms": figure([p50], "ms"), "swapped": figure([0.0], "records")},
        }

    peers = result("peers") | {"series": None, "goals": [], "table": {"kind": "peers", "rows": [
        row("raw", 9e5, 0.1), row("ours-wal", 8e5, 1.0), row("slow", 10, 20.0), row("quick", 5000, 30.0),
        row("gentle", 20, 5.0, rate=300)]}}
    relay = result("relay")
    relay["goals"][0]["what"] = "relay against the bare client"
    latency = result("latency")
    latency["goals"] = [goal("S2", "wal: median, commit to confirmed", figure([2.0], "ms", 1), "at most", 3.0)]
    text = page.text([relay, latency, peers], "results")
    assert "| met | quick 5,000 events/s | `make bench-relay` |" in text
    assert "| met | slow 20 ms | `make bench-latency` |" in text  # not the one at a lower rate


def test_a_missed_goal_stands_out() -> None:
    assert "**missed**" in page.text([result("relay", measured=0.5)], "results")


def test_results_of_two_machines_name_both() -> None:
    other = result("worker") | {"machine": MACHINE | {"cpu": "Other 4000"}}
    text = page.text([result("relay"), other], "results")
    assert "Pretend 3000" in text
    assert "Other 4000" in text


def test_plots_are_written_and_linked_from_the_page(results: Path) -> None:
    put(results, result("relay"), result("backlog", series=True))
    target = results.parents[1] / "docs" / "benchmarks.md"
    page.write(NAMES, results, target)
    links = re.findall(r"\]\(([^)]+)\)", target.read_text())
    assert links == ["../bench/results/goals.svg", "../bench/results/backlog.svg"]
    for link in links:
        assert (target.parent / link).read_text().startswith("<?xml")


def test_the_same_results_give_the_same_bytes(results: Path) -> None:
    put(results, result("relay"), result("backlog", series=True))
    target = results.parents[1] / "docs" / "benchmarks.md"
    page.write(NAMES, results, target)
    before = {path.name: path.read_bytes() for path in [*results.glob("*.svg"), target]}
    page.write(NAMES, results, target)
    assert before == {path.name: path.read_bytes() for path in [*results.glob("*.svg"), target]}


def test_without_results_it_says_so(results: Path) -> None:
    with pytest.raises(SystemExit, match="measure first"):
        page.write(NAMES, results, results / "page.md")


def test_the_page_of_this_project_belongs_to_its_results() -> None:
    found = page.load(NAMES, RESULTS)
    assert {each["bench"] for each in found} == {path.stem for path in RESULTS.glob("*.json")} <= set(NAMES)
    assert not any(each["quick"] for each in found)
    assert PAGE.read_text() == page.text(found, "../bench/results")
