"""Medians, spreads, goals."""

from __future__ import annotations

import pytest

from bench.figures import figure, goal, percentile, ratios, report


def test_a_figure_has_its_median_and_its_spread() -> None:
    made = figure([3.14159, 1.0, 2.0], "ms", 2)
    assert made == {"unit": "ms", "median": 2.0, "min": 1.0, "max": 3.14, "all": [3.14, 1.0, 2.0]}


def test_without_digits_figures_are_whole_numbers() -> None:
    assert figure([1234.6], "events/s")["all"] == [1235]


def test_ratios_compare_neighbours() -> None:
    assert ratios([50.0, 30.0], [100.0, 40.0]) == [0.5, 0.75]


def test_ratios_of_unequal_rounds_are_refused() -> None:
    with pytest.raises(ValueError):
        ratios([1.0], [1.0, 2.0])


@pytest.mark.parametrize(("percent", "value"), [(50, 50), (99, 99), (100, 100), (1, 1), (0, 1), (99.5, 100)])
def test_a_percentile_is_a_value_that_was_measured(percent: float, value: int) -> None:
    assert percentile(list(range(100, 0, -1)), percent) == value


def test_a_percentile_of_one() -> None:
    assert percentile([7.0], 99) == 7.0


@pytest.mark.parametrize(("sense", "limit", "met"), [
    ("at least", 0.6, True), ("at least", 0.61, False), ("at most", 0.6, True), ("at most", 0.59, False),
])
def test_a_goal_is_held_to_the_median(sense: str, limit: float, met: bool) -> None:
    made = goal("S1", "relay", figure([0.5, 0.6, 0.9], "of it", 2), sense, limit)  # type: ignore[arg-type]
    assert made["met"] is met
    assert (made["measured"], made["min"], made["max"], made["unit"]) == (0.6, 0.5, 0.9, "of it")


def test_texts_of_a_report_are_one_paragraph() -> None:
    made = report("T", "one\n    two", "three\n  four", setting={}, figures={})
    assert (made["how"], made["silent_on"], made["goals"], made["series"]) == ("one two", "three four", [], {})
