"""A crew: ready when all are, stopped together, and honest about what broke."""

import threading

import pytest

from bothends.errors import ConfigError, PositionLost
from bothends.operating.crew import Crew, Member


def works(name: str = "w", *, helps: bool = False) -> Member:
    def run(stop: threading.Event, ready: threading.Event) -> None:
        ready.set()
        stop.wait(30)

    return Member(name, run, helps=helps)


def fails(error: BaseException, name: str = "f") -> Member:
    def run(stop: threading.Event, ready: threading.Event) -> None:
        raise error

    return Member(name, run)


def started(*members: Member) -> Crew:
    settled = threading.Event()

    def changed() -> None:
        if crew.is_ready():
            settled.set()

    crew = Crew(members, changed)
    crew.start()
    assert settled.wait(10)
    return crew


def test_ready_then_drained() -> None:
    crew = started(works("a"), works("b"))
    assert crew.problems() == []
    assert crew.is_alive()
    assert crew.stop(10)
    assert crew.first_error() is None
    assert not crew.has_work()


def test_what_broke_makes_it_not_alive() -> None:
    crew = started(works("a"), fails(RuntimeError("boom"), "b"))
    assert not crew.is_alive()
    assert crew.problems() == ["b: RuntimeError: boom"]
    assert crew.stop(10)


@pytest.mark.parametrize("error", [ConfigError("wrong"), PositionLost("t", 0, position=1, low=5, high=9)])
def test_what_an_operator_must_mend_does_not_take_others_along(error: Exception) -> None:
    crew = started(works("a"), fails(error, "b"))
    assert crew.is_alive()
    assert crew.has_work()
    assert crew.first_error() is error
    assert crew.stop(10)


def test_a_configuration_error_is_named_first() -> None:
    wrong = ConfigError("wrong")
    crew = started(fails(RuntimeError("x"), "a"), fails(wrong, "b"))
    assert crew.first_error() is wrong
    assert not crew.has_work()


def test_a_helper_is_no_reason_to_go_on() -> None:
    crew = started(fails(ConfigError("wrong")), works("tally", helps=True))
    assert not crew.has_work()
    assert crew.stop(10)


def test_one_that_ends_unasked_is_a_problem() -> None:
    member = Member("ends", lambda stop, ready: ready.set())
    crew = started(member, works())
    assert member.thread is not None
    member.thread.join(10)
    assert crew.problems() == ["ends has ended"]
    assert not crew.is_alive()
    crew.stop(10)


def test_a_stop_has_a_bound() -> None:
    let_go = threading.Event()

    def run(stop: threading.Event, ready: threading.Event) -> None:
        ready.set()
        let_go.wait(30)

    crew = started(Member("stuck", run))
    assert crew.stop(0.05) is False
    let_go.set()
    assert crew.stop(10)
