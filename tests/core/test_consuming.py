"""Decisions about failed runs."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothends import Permanent, Retry, RetryAfter, Transient
from bothends.core.consuming import (
    ERROR_MAX,
    HISTORY_MAX,
    REASON_MAX,
    TRACEBACK_MAX,
    HandlerTimeout,
    OutcomeUnknown,
    SwallowedError,
    describe_error,
    fingerprint,
    history_with,
    judge,
    judge_crash,
    plain,
)
from bothends.core.retry import DELAY_MAX_S
from bothends.errors import HandlerEndedTransaction, Undecodable


class CityNotServed(Exception):
    pass


class Overloaded(CityNotServed):
    pass


@pytest.mark.parametrize(("error", "fate", "reason"), [
    (ValueError("x"), "retry", "handler_error"),
    (Permanent("no"), "dead", "permanent"),
    (Permanent("no", reason="out_of_stock"), "dead", "out_of_stock"),
    (Transient("wait"), "retry", "transient"),
    (RetryAfter(7), "retry", "transient"),
    (HandlerEndedTransaction("commit"), "dead", "transaction_ended"),
    (Undecodable("bytes", reason="schema"), "dead", "schema"),
    (HandlerTimeout("slow"), "retry", "handler_timeout"),
    (SwallowedError("went on"), "retry", "swallowed_error"),
    (OutcomeUnknown("who knows"), "dead", "outcome_unknown"),
    (TimeoutError(), "retry", "handler_error"),
    (RecursionError(), "retry", "handler_error"),
    (MemoryError(), "retry", "handler_error"),
    (SystemExit(1), "retry", "handler_error"),
    (KeyboardInterrupt(), "retry", "handler_error"),
    (CityNotServed("Berga"), "dead", "permanent"),
    (Overloaded("Berga"), "retry", "handler_error"),
])
def test_what_an_exception_means(error: BaseException, fate: str, reason: str) -> None:
    retry = Retry(permanent=[CityNotServed], transient=[Overloaded])
    failure = judge(retry, error, attempts=0)
    assert (failure.fate, failure.reason, failure.attempts) == (fate, reason, 1)


@pytest.mark.parametrize(("attempts", "runs"), [(1, 1), (2, 2), (5, 5), (None, None)])
def test_attempts_are_runs_in_all(attempts: int | None, runs: int | None) -> None:
    retry = Retry(attempts)
    fates = [judge(retry, ValueError(), attempts=n).fate for n in range(10)]
    assert fates == (["retry"] * 10 if runs is None else ["retry"] * (runs - 1) + ["dead"] * (11 - runs))


def test_delays_grow_are_capped_and_follow_retry_after() -> None:
    retry = Retry(None)
    assert [judge(retry, ValueError(), attempts=n).delay_s for n in range(5)] == [1, 2, 4, 8, 16]
    assert judge(retry, ValueError(), attempts=0, jitter=0.999).delay_s == pytest.approx(0.75, abs=0.01)
    assert judge(retry, ValueError(), attempts=5_000).delay_s == 300
    assert judge(retry, RetryAfter(90), attempts=0).delay_s == 90
    for strange in (float("inf"), 1e300):
        assert judge(retry, RetryAfter(strange), attempts=0).delay_s == DELAY_MAX_S
    for strange in (-5, float("nan"), "soon"):
        assert judge(retry, RetryAfter(strange), attempts=0).delay_s == 0  # type: ignore[arg-type]


def test_hold_is_a_matter_of_the_policy_and_of_unknown_outcomes() -> None:
    assert judge(Retry(then="hold"), Permanent("no"), attempts=0).hold
    assert not judge(Retry(then="hold"), ValueError(), attempts=0).hold
    assert not judge(Retry(), Permanent("no"), attempts=0).hold
    assert judge(Retry(), OutcomeUnknown("?"), attempts=0).hold


def test_crashes_have_a_limit_of_their_own() -> None:
    assert judge_crash(Retry(crashes=2), attempts=0, crashes=1) is None
    assert judge_crash(Retry(crashes=None), attempts=0, crashes=1_000) is None
    dead = judge_crash(Retry(crashes=2, then="hold"), attempts=3, crashes=2)
    assert dead is not None
    assert (dead.fate, dead.reason, dead.attempts, dead.crashes, dead.hold) == ("dead", "worker_lost", 3, 2, True)


def test_history_keeps_the_first_and_the_latest() -> None:
    history = "[]"
    for n in range(1, 40):
        history = history_with(history, at=f"t{n}", attempt=n, error="e", trace="")
    entries = json.loads(history)
    assert [e["attempt"] for e in entries] == [1, *range(31, 40)]
    assert len(entries) == HISTORY_MAX
    assert json.loads(history_with("no json", at="t", attempt=1, error="e", trace="x"))[0]["traceback"] == "x"


def test_what_is_written_down_is_bounded_whatever_the_error() -> None:
    def deep(n: int) -> None:
        if n:
            deep(n - 1)
        raise ValueError("x" * 100_000)

    with pytest.raises(ValueError) as caught:
        deep(200)
    history = "[]"
    for n in range(60):
        failure = judge(Retry(None), caught.value, attempts=n, history=history)
        history = failure.history
    assert len(failure.error) <= ERROR_MAX
    assert len(history) < HISTORY_MAX * (ERROR_MAX + TRACEBACK_MAX + 200) * 2
    assert len(judge(Retry(), Permanent("x", reason="r" * 500), attempts=0).reason) == REASON_MAX


def test_an_error_that_cannot_be_printed_is_still_an_error() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    failure = judge(Retry(), Broken(), attempts=0)
    assert failure.error.startswith("Broken: (its text cannot be had")
    assert describe_error(KeyError()) == "KeyError"


@given(st.text(st.characters(codec=None, categories=None), max_size=200))
def test_text_is_what_every_database_takes(text: str) -> None:
    assert "\0" not in plain(text)
    plain(text).encode()
    describe_error(ValueError(text)).encode()


def failing(message: str, how: type[Exception] = ValueError) -> Exception:
    try:
        raise how(message)
    except Exception as error:
        return error


def other_place(message: str) -> Exception:
    try:
        raise ValueError(message)
    except Exception as error:
        return error


def test_a_fingerprint_groups_by_kind_and_place_not_by_text() -> None:
    one = fingerprint(failing("order 1"), "handler_error")
    assert one == fingerprint(failing("order 2"), "handler_error")
    assert one != fingerprint(other_place("order 1"), "handler_error")
    assert one != fingerprint(failing("order 1", KeyError), "handler_error")
    assert one != fingerprint(failing("order 1"), "other_reason")
    assert len(one) == 16


def test_a_fingerprint_does_not_depend_on_the_depth_of_a_recursion() -> None:
    def down(n: int) -> None:
        if n:
            down(n - 1)
        raise ValueError

    found = set()
    for depth in (10, 50):
        with pytest.raises(ValueError) as caught:
            down(depth)
        found.add(fingerprint(caught.value, "r"))
    assert len(found) == 1
