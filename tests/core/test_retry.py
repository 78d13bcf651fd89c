import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothends import Retry
from bothends.core.retry import DELAY_MAX_S


def test_defaults_are_those_of_the_documentation() -> None:
    retry = Retry()
    assert (retry.attempts, retry.first_s, retry.factor, retry.cap_s) == (5, 1.0, 2.0, 300.0)
    assert (retry.mode, retry.then, retry.crashes) == ("park", "pass", 2)


def test_delays_double_up_to_the_cap() -> None:
    delays = [Retry(cap_s=20).delay_s(n, 0.0) for n in range(1, 8)]
    assert delays == [1, 2, 4, 8, 16, 20, 20]


def test_backoff_arithmetic_overflows() -> None:
    """field-problems: backoff-arithmetic-overflows."""
    hour = Retry(None, cap_s=3600)
    steep = Retry(None, factor=5, cap_s=DELAY_MAX_S)
    for failures in range(1, 2_001):
        for retry in (hour, steep):
            for jitter in (0.0, 0.5, 0.999_999):
                assert 0 <= retry.delay_s(failures, jitter) <= retry.cap_s
    assert hour.delay_s(2_000, 0.0) == 3600
    assert steep.delay_s(17, 0.0) == DELAY_MAX_S
    assert Retry(None, first_s=0).delay_s(1_999, 0.0) == 0
    assert not hour.exhausted(10**9)


@given(
    first=st.floats(0, 1e300), factor=st.floats(1, 1e300), cap=st.floats(0, DELAY_MAX_S),
    failures=st.integers(1, 10**6), jitter=st.floats(0, 1, exclude_max=True),
)
def test_no_delay_leaves_its_range(first: float, factor: float, cap: float, failures: int, jitter: float) -> None:
    assert 0 <= Retry(first_s=first, factor=factor, cap_s=cap).delay_s(failures, jitter) <= cap


def test_jitter_takes_at_most_a_quarter() -> None:
    retry = Retry(first_s=8)
    assert retry.delay_s(1, 0.0) == 8
    assert 6 <= retry.delay_s(1, 0.999) < 6.01


def test_attempts_count_runs_in_all() -> None:
    assert Retry(1).exhausted(1)
    assert not Retry(3).exhausted(2)
    assert Retry(3).exhausted(3)
    assert not Retry(None).exhausted(10**6)


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts": 0}, {"attempts": -1}, {"attempts": True}, {"crashes": 0}, {"first_s": -1}, {"factor": 0.5},
        {"cap_s": -1}, {"cap_s": DELAY_MAX_S + 1}, {"mode": "later"}, {"then": "wait"},
        {"first_s": float("nan")}, {"factor": float("nan")}, {"cap_s": float("nan")},
    ],
)
def test_a_policy_that_means_nothing_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Retry(**wrong)  # type: ignore[arg-type]


def test_is_a_value() -> None:
    assert Retry(permanent=[KeyError]) == Retry(permanent=(KeyError,))
    assert hash(Retry()) == hash(Retry())
    with pytest.raises(AttributeError):
        Retry().attempts = 3  # type: ignore[misc]
