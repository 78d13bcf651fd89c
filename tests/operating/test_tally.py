"""Counts in the log: deltas, by consumer and outcome; news at once; labels without ids or keys."""

import threading

import pytest

from bothends.operating import tally as tallying
from bothends.operating.tally import Tally
from bothends.relay import events
from bothends.worker.floor import Delivered, Failed, HandlerStuck


def said(caplog: pytest.LogCaptureFixture, *names: str) -> list[tuple[object, ...]]:
    rows = [(record.getMessage(), *(getattr(record, name, None) for name in names)) for record in caplog.records]
    caplog.clear()
    return rows


@pytest.fixture(autouse=True)
def level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "bothends")


def test_counts_are_what_came_since_the_last_line(caplog: pytest.LogCaptureFixture) -> None:
    tally = Tally(60)
    for outcomes in ({"processed": 3, "duplicate": 1}, {"processed": 2}):
        tally.observe(Delivered("a.b", outcomes, 0.1))
    tally.observe(Delivered("a.c", {"dead": 1}, 0.1))
    tally.observe(events.Published(7))
    tally.flush()
    assert said(caplog, "consumer", "processed", "duplicate", "dead", "published") == [
        ("counts", None, None, None, None, 7), ("counts", "a.b", 5, 1, None, None), ("counts", "a.c", None, None, 1, None)]
    tally.flush()
    assert said(caplog) == []


def test_what_a_relay_reads_is_said_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    tally = Tally(60)
    tally.observe(events.SourceChanged(7, "wal", ""))
    tally.observe(events.SourceChanged(7, "poll", "the slot was dropped"))
    assert said(caplog, "source", "reason", "relay") == [
        ("source", "wal", None, None), ("source", "poll", "the slot was dropped", None)]


def test_news_is_logged_at_once(caplog: pytest.LogCaptureFixture) -> None:
    tally = Tally(60)
    tally.observe(events.PlaceAway("orders", "missing"))
    tally.observe(events.PlaceBack("orders"))
    tally.observe(events.BrokerPaused("unreachable", 3))
    tally.observe(HandlerStuck("a.b"))
    assert said(caplog, "topic", "reason", "consumer") == [
        ("place away", "orders", "missing", None), ("place back", "orders", None, None),
        ("broker paused", None, "unreachable", None), ("handler stuck: given up", None, None, "a.b")]


def test_a_failure_is_logged_once_and_then_counted(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("bothends.operating.tally.time.monotonic", lambda: now)
    tally = Tally(60)
    parked = Failed("a.b", "parked", "order.created", "17", 1, "handler_error", "ValueError: " + "x" * 1000, "f1")
    for _ in range(3):
        tally.observe(parked)
    tally.observe(parked._replace(outcome="dead", attempts=5))
    assert [(r.levelname, r.getMessage(), r.attempts, len(r.error)) for r in caplog.records] == [  # type: ignore[attr-defined]
        ("WARNING", "run failed, it is tried again", 1, 300), ("ERROR", "message dead", 5, 300)]
    caplog.clear()
    tally.observe(parked._replace(outcome="apart"))
    assert [r.getMessage() for r in caplog.records] == ["batch failed, its messages are run one by one"]
    caplog.clear()
    now += tallying.FAILURE_EVERY_S
    tally.observe(parked)
    assert said(caplog, "consumer", "fingerprint", "more_since") == [("run failed, it is tried again", "a.b", "f1", 2)]


def test_failures_that_are_remembered_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    tally = Tally(60)
    for n in range(3000):
        tally.observe(Failed("a.b", "dead", "t", "1", 1, "handler_error", "e", f"f{n}"))
    assert len(tally._failures) <= tallying._FAILURES_MAX


def test_it_flushes_until_it_is_stopped(caplog: pytest.LogCaptureFixture) -> None:
    tally, stop, ready = Tally(0.01), threading.Event(), threading.Event()
    thread = threading.Thread(target=tally.run, args=(stop, ready))
    thread.start()
    assert ready.wait(5)
    tally.observe(events.Published(1))
    for _ in range(500):
        if caplog.records:
            break
        stop.wait(0.01)
    stop.set()
    thread.join(5)
    assert said(caplog, "published") == [("counts", 1)]
