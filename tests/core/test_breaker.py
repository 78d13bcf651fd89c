from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bothends.core.breaker import PAUSE_MAX_S, Breaker


def test_it_opens_at_the_first_failure_and_closes_with_an_answer() -> None:
    breaker = Breaker()
    assert not breaker.open
    assert not breaker.due(100.0)
    pause = breaker.fail(10.0, 0.0, "unreachable")
    assert breaker.open
    assert breaker.reason == "unreachable"
    assert not breaker.due(10.0 + pause - 0.001)
    assert breaker.due(10.0 + pause)
    breaker.close()
    assert not breaker.open
    assert breaker.reason == ""


def test_pauses_double_up_to_the_cap() -> None:
    breaker = Breaker()
    pauses = [breaker.fail(0.0, 0.0, "") for _ in range(8)]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_after_an_answer_it_begins_anew() -> None:
    breaker = Breaker()
    for _ in range(5):
        breaker.fail(0.0, 0.0, "")
    breaker.close()
    assert breaker.fail(0.0, 0.0, "") == 0.1


@given(st.integers(1, 5000), st.floats(0, 1, exclude_max=True))
def test_no_number_of_failures_and_no_jitter_breaks_the_bounds(failures: int, jitter: float) -> None:
    breaker = Breaker(failures=failures - 1)
    pause = breaker.fail(1000.0, jitter, "")
    assert 0 < pause <= PAUSE_MAX_S
    assert breaker.probe_at == 1000.0 + pause
