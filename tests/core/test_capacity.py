"""What backlogs and rates mean, and how long inbox rows must be kept."""

from datetime import timedelta

import pytest

from bothends.core.capacity import drain_s, rate_per_s
from bothends.core.retention import CHECK_S, Window, inbox_keep_s, retry_horizon_s
from bothends.core.retry import DELAY_MAX_S, Retry
from bothends.errors import ConfigError

DAY_S = 86_400.0


def test_the_worked_case() -> None:
    assert drain_s(100 * 3600, 100, 300) == 1800


@pytest.mark.parametrize(("waiting", "coming", "going", "left"), [
    (0, 100, 0, 0.0), (-1, 0, 0, 0.0), (10, 5, 5, None), (10, 6, 5, None), (10, 0, 0, None), (10, 0, 5, 2.0),
])
def test_edges_of_draining(waiting: int, coming: float, going: float, left: float | None) -> None:
    assert drain_s(waiting, coming, going) == left


def test_rates() -> None:
    assert rate_per_s([]) == 0
    assert rate_per_s([70, 80]) == 0
    assert rate_per_s([1, 2, 3, 70]) == pytest.approx(3 / 60)  # the window was seen whole
    assert rate_per_s([1, 2, 4]) == pytest.approx(3 / 4)  # more may lie in it: counted as far as was looked
    assert rate_per_s([1, 2], [100, 200]) == pytest.approx(150)
    assert rate_per_s([0, 0]) > 0


def test_computed_retention_outlasts_topic_segment_check_and_retries() -> None:
    retry = Retry(attempts=3, first_s=10, factor=2)
    windows = [Window("a", 7 * DAY_S, 3600), Window("b", DAY_S, 7 * DAY_S)]
    assert inbox_keep_s("c", None, windows, retry) == 8 * DAY_S + CHECK_S + 30
    assert inbox_keep_s("c", None, [*windows, Window("compacted", None)], retry) is None
    assert inbox_keep_s("c", None, [], retry) is None
    assert inbox_keep_s("c", "forever", windows, retry) is None


def test_a_declared_retention_that_is_too_short_is_refused() -> None:
    with pytest.raises(ConfigError, match="consumer c: inbox_keep=1 day"):
        inbox_keep_s("c", timedelta(days=1), [Window("a", 7 * DAY_S)], Retry())
    assert inbox_keep_s("c", timedelta(days=9), [Window("a", 7 * DAY_S)], Retry(attempts=1)) == 9 * DAY_S
    # Topics without an end: the declared time is the replay horizon.
    assert inbox_keep_s("c", timedelta(days=9), [Window("a", None)], Retry(attempts=1)) == 9 * DAY_S


@pytest.mark.parametrize(
    "retry", [Retry(attempts=None), Retry(attempts=10_000_000), Retry(attempts=2000, factor=5, cap_s=3600)])
def test_the_retry_horizon_is_bounded(retry: Retry) -> None:
    assert 0 < retry_horizon_s(retry) <= DELAY_MAX_S
