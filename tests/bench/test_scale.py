"""What the bench `scale` counts, calculates and simulates, and the page that is made of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest

from bench import places, scale, scale_page
from bench.__main__ import RESULTS
from bench.counted import counted
from bench.lanes import history
from bench.page import OWN_PAGES
from bothends.core.relaying import fair_share
from bothends.relay.settings import RelaySettings

SETTINGS = RelaySettings()
UNITS = {
    "add_wal_bytes": 800.0, "bare_wal_bytes": 200.0, "page_of_2000_wal_bytes": 2000.0, "batch_of_100_wal_bytes": 60_000.0,
    "outbox_row_bytes": 600.0, "inbox_row_bytes": 300.0, "relay_per_s": 10_000.0, "relay_cpu_us": 20.0,
    "worker_1_per_s": 1_000.0, "add_us": 700.0, "bare_us": 400.0,
}


@pytest.mark.parametrize("lanes", [64, 1_000])
@pytest.mark.parametrize("relays", [2, 3, 40, 100])
def test_lanes_of_a_dead_relay_go_on_within_lease_and_look(relays: int, lanes: int) -> None:
    for seed in range(3):
        found = history(relays, lanes, seed)
        assert SETTINGS.lease_s - SETTINGS.renew_s <= found.takeover_s <= SETTINGS.lease_s + 2 * SETTINGS.renew_s
        assert history(relays, lanes, seed, same_host=True).takeover_s <= SETTINGS.renew_s


@pytest.mark.parametrize(("relays", "lanes", "idle"), [(2, 64, 0), (40, 64, 8), (100, 64, 36), (100, 1_000, 0)])
def test_nobody_has_more_than_a_fair_share(relays: int, lanes: int, idle: int) -> None:
    """One dies and one joins, so there are as many at the end as at the beginning."""
    found = history(relays, lanes, 1)
    assert found.most == fair_share(relays, lanes)
    assert found.idle == idle
    assert (found.least == 0) is (idle > 0)


def test_the_one_that_joins_takes_over_within_two_looks_of_each() -> None:
    found = history(4, 64, 1)
    assert 0 < found.handover_s <= SETTINGS.renew_s
    assert 0 < found.join_s <= 3 * SETTINGS.renew_s


def test_the_same_seed_is_the_same_history() -> None:
    assert history(5, 64, 7) == history(5, 64, 7)
    assert history(5, 64, 7) != history(5, 64, 8)


def test_paper_is_arithmetic() -> None:
    one, four = scale.paper(1, UNITS), scale.paper(4, UNITS)
    peak = 1e9 / 86_400 * 5
    assert one["peak_per_s"][0] == pytest.approx(peak)
    assert one["outbox_wal_mb_s"][0] == pytest.approx(peak * 601 / 1e6)
    assert one["inbox_wal_mb_s"][0] == pytest.approx(peak * 600 / 1e6)
    assert one["inbox_gb"][0] == pytest.approx(1e9 * 8 * 300 / 1e9)
    assert one["relays"][0] == pytest.approx(peak / 10_000)
    assert one["workers"][0] == pytest.approx(peak / 1_000)
    assert one["relay_cores"][0] == pytest.approx(peak * 20e-6)
    assert one["adding"][0] == pytest.approx(peak * 300e-6)
    assert one["child_s"][0] == pytest.approx(2**20 / peak)
    for name in ("peak_per_s", "wal_gb_day", "inbox_gb", "relay_cores"):
        assert four[name][0] == pytest.approx(one[name][0] / 4)
    assert four["outbox_gb"] == one["outbox_gb"]
    assert scale.paper(10_000, UNITS)["relays"][0] == 1


@pytest.mark.needs("postgresql")
def test_statements_and_round_trips_are_counted_apart() -> None:
    with places.database() as url, psycopg.connect(url, autocommit=True) as connection:
        found = counted(connection, lambda: connection.execute("select 1"))
        assert (found["F Query"] + found["F Execute"], found["B ReadyForQuery"]) == (1, 1)

        def together() -> None:
            with connection.pipeline():
                for _ in range(3):
                    connection.execute("select 1")

        found = counted(connection, together)
        assert (found["F Query"] + found["F Execute"], found["B ReadyForQuery"]) == (3, 1)


@pytest.mark.needs("postgresql")
def test_what_is_counted_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    found = scale.measure(1, True)["figures"]
    assert found["add_statements"]["median"] == found["bare_statements"]["median"] + 1
    assert found["add_trips"]["median"] == found["bare_trips"]["median"] + 1
    assert found["pipelined_add_trips"]["median"] < found["add_trips"]["median"]
    assert found["page_of_2000_trips"]["median"] == found["page_of_1_trips"]["median"] == 2
    assert found["page_of_2000_wal_bytes"]["median"] < 2_000, "a page's cursor is stored once"
    assert found["batch_of_100_trips"]["median"] < 100 * found["batch_of_1_trips"]["median"] / 2


def test_without_the_other_results_it_says_what_to_measure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(scale, "RESULTS", tmp_path)
    with pytest.raises(SystemExit, match="measure relay first"):
        scale._measured()


def test_the_page_keeps_what_is_written_by_hand(tmp_path: Path) -> None:
    result: dict[str, Any] = json.loads((RESULTS / "scale.json").read_text())
    page = tmp_path / "scale.md"
    page.write_text(f"before\n{scale_page.BEGIN}\nold\n{scale_page.END}\nafter\n")
    scale_page.write(result, page)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith(f"{scale_page.END}\nafter\n")
    assert "old" not in text
    scale_page.write(result, page)
    assert page.read_text() == text


def test_the_page_of_this_project_belongs_to_its_result() -> None:
    result: dict[str, Any] = json.loads((RESULTS / "scale.json").read_text())
    text = (RESULTS.parents[1] / "docs" / OWN_PAGES["scale"]).read_text()
    assert f"{scale_page.BEGIN}\n{scale_page.tables(result)}{scale_page.END}" in text
