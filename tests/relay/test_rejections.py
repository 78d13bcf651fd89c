"""Rejected events: only a rejection alone is blamed, only its key waits, and what waits keeps its order."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from bothends.core.relaying import EVERY_LANE, Hold
from bothends.core.retry import Retry
from bothends.errors import Blame, PublishError
from bothends.ports import Outgoing
from bothends.relay.events import Dead, Published, Rejected
from bothends.stores.steps import run
from tests.relay.conftest import Rig
from tests.relay.unruly import refuse

BAD = b"bad"


def bad_only(record: Outgoing) -> PublishError | None:
    return refuse(Blame.EVENT, "policy") if record.value == BAD else None


def too_large(record: Outgoing) -> PublishError | None:
    return refuse(Blame.EVENT, "too_large") if len(record.value or b"") > 2000 else None


def test_one_oversized_event_among_ten_takes_nobody_along(rig: Rig) -> None:
    rig.broker.create_topic("t", 4)
    rig.broker.judge = too_large
    rig.add("t", b"A", b"a1")
    rig.add("t", b"B", b"x" * 5000, b"b2")
    for n in range(7):
        rig.add("t", b"C%d" % n, b"c%d" % n)
    relay = rig.start()
    rig.until(lambda: relay.saw(Dead))
    rig.until(lambda: len(rig.records("t")) == 8)
    rig.until(lambda: len(rig.held()) == 2)
    assert [(state, attempts, reason) for _, state, attempts, reason in rig.held()] == [
        ("dead", 1, "too_large"), ("behind", 0, "")]
    assert relay.saw(Rejected) == [Rejected("t", "too_large", 1)]
    assert relay.saw(Dead) == [Dead("t", "too_large", True)]


def test_with_pass_the_key_goes_on_after_a_dead_event(rig: Rig) -> None:
    rig.broker.create_topic("t", 1)
    rig.broker.judge = bad_only
    rig.add("t", b"k", b"1", BAD, b"3", b"4")
    relay = rig.start(publish=Retry(attempts=3, first_s=0.01, factor=1.0, then="pass"))
    rig.until(lambda: rig.bodies("t") == [b"1", b"3", b"4"])
    rig.until(lambda: rig.held() == [(BAD, "dead", 3, "policy")])
    assert [r.attempts for r in relay.saw(Rejected)] == [1, 2, 3]
    assert relay.saw(Dead) == [Dead("t", "policy", False)]
    rig.add("t", b"k", b"5")
    rig.until(lambda: rig.bodies("t") == [b"1", b"3", b"4", b"5"])


@pytest.mark.parametrize("fails", [1, 2])
def test_a_key_keeps_its_order_over_retries_and_others_do_not_wait(rig: Rig, fails: int) -> None:
    rig.broker.create_topic("t", 3)
    tries = 0

    def judge(record: Outgoing) -> PublishError | None:
        nonlocal tries
        if record.value != b"K1":
            return None
        tries += 1
        return refuse(Blame.EVENT, "policy") if tries <= fails + 1 else None  # once in company, then alone

    rig.broker.judge = judge
    rig.add("t", b"K", b"K1", b"K2", b"K3")
    rig.add("t", b"L", b"L4", b"L5")
    relay = rig.start(publish=Retry(attempts=5, first_s=0.02, factor=1.0, then="hold"))
    rig.add("t", b"K", b"K6")
    rig.until(rig.drained)
    assert rig.bodies("t", b"K") == [b"K1", b"K2", b"K3", b"K6"]
    assert rig.bodies("t", b"L") == [b"L4", b"L5"]
    assert [r.attempts for r in relay.saw(Rejected)] == list(range(1, fails + 1))


def test_attempts_count_runs_alone_and_the_last_one_is_still_a_run(rig: Rig) -> None:
    rig.broker.create_topic("t", 1)
    rig.broker.judge = bad_only
    rig.add("t", b"k", BAD)
    rig.add("t", None, BAD)
    relay = rig.start(publish=Retry(attempts=2, first_s=0.01, factor=1.0, then="hold"))
    rig.until(lambda: len(relay.saw(Dead)) == 2)
    assert sorted(row[1:] for row in rig.held()) == [("dead", 2, "policy")] * 2
    assert len(relay.saw(Rejected)) == 4


def test_events_without_a_key_never_wait_for_each_other(rig: Rig) -> None:
    rig.broker.create_topic("t", 1)
    rig.broker.judge = bad_only
    rig.add("t", None, b"1", BAD, b"3")
    rig.start()
    rig.until(lambda: [row[1] for row in rig.held()] == ["dead"])
    rig.add("t", None, b"4")
    rig.until(lambda: sorted(b or b"" for b in rig.bodies("t")) == [b"1", b"3", b"4"])


def test_attempts_and_order_survive_a_restart(rig: Rig) -> None:
    rig.broker.create_topic("t", 2)
    rig.broker.judge = bad_only
    rig.add("t", b"k", BAD, b"2")
    first = rig.start(publish=Retry(attempts=5, first_s=0.01, factor=1.0, then="hold"))
    rig.until(lambda: len(first.saw(Rejected)) >= 2)
    first.stop()
    spent = rig.held()[0][2]
    assert rig.held()[0][:2] == (BAD, "retrying")
    rig.add("t", b"k", b"3")
    second = rig.start(publish=Retry(attempts=5, first_s=0.01, factor=1.0, then="hold"))
    rig.until(lambda: second.saw(Dead))
    assert [r.attempts for r in second.saw(Rejected)] == list(range(spent + 1, 6))
    rig.until(lambda: [row[:2] for row in rig.held()] == [(BAD, "dead"), (b"2", "behind"), (b"3", "behind")])
    assert rig.bodies("t") == []


def _ask(rig: Rig, request: str) -> None:
    rig.sql(f"update {rig.table('held')} set owner_request = :request where state = 'dead' returning seq", request=request)


@pytest.mark.parametrize(
    ("request_", "left"), [("retry", []), ("skip", [(BAD, "dead", 3, "policy")]), ("discard", [])])
def test_operators_requests_are_carried_out_by_the_owner(
    rig: Rig, request_: str, left: list[tuple[bytes, str, int, str]]
) -> None:
    rig.broker.create_topic("t", 1)
    rig.broker.judge = bad_only
    rig.add("t", b"k", BAD, b"2", b"3")
    relay = rig.start()
    rig.until(lambda: relay.saw(Dead))
    rig.broker.judge = lambda record: None
    _ask(rig, request_)
    published = [b"2", b"3"] if request_ != "retry" else [BAD, b"2", b"3"]
    rig.until(lambda: rig.bodies("t") == published)
    rig.until(lambda: rig.held() == left)
    rig.add("t", b"k", b"4")
    rig.until(lambda: rig.bodies("t") == [*published, b"4"])
    asked = rig.sql(f"select count(*) from {rig.table('held')} where owner_request is not null")
    assert asked == [(0,)]


def test_a_failing_key_costs_the_others_nothing_but_its_lane(rig: Rig) -> None:
    rig.broker.create_topic("t", 4)
    rig.broker.judge = bad_only
    rig.add("t", b"bad", BAD)
    for n in range(40):
        rig.add("t", b"k%d" % (n % 8), *(b"%d" % (n * 25 + m) for m in range(25)))
        rig.add("t", b"bad", b"after")
    relay = rig.start(publish=Retry(attempts=4, first_s=0.05, factor=1.0, then="hold"))
    rig.until(lambda: relay.saw(Dead))
    rig.until(lambda: len(rig.records("t")) == 1000)
    for n in range(8):
        bodies = [int(b or b"0") for b in rig.bodies("t", b"k%d" % n)]
        assert bodies == sorted(bodies)
    rig.until(lambda: len(rig.held()) == 41)
    assert {row[1] for row in rig.held()[1:]} == {"behind"}


def test_a_large_held_backlog_is_released_in_order_while_more_comes(rig: Rig) -> None:
    rig.broker.create_topic("t", 1)
    rig.broker.judge = bad_only
    rig.add("t", b"k", BAD, *(b"%d" % n for n in range(700)))
    relay = rig.start()
    rig.until(lambda: relay.saw(Dead))
    rig.until(lambda: len(rig.held()) == 701)
    rig.broker.judge = lambda record: None
    _ask(rig, "retry")
    for n in range(700, 1000, 10):
        rig.add("t", b"k", *(b"%d" % m for m in range(n, n + 10)))
    rig.until(rig.drained)
    assert rig.bodies("t") == [BAD, *(b"%d" % n for n in range(1000))]
    rig.until(lambda: sum(p.records for p in relay.saw(Published)) == 1001)


def test_a_whole_batch_of_suspects_is_cleared_one_by_one(rig: Rig) -> None:
    """A broker that rejects a batch for one big record names all of them."""
    rig.broker.create_topic("t", 4)
    lied = False

    def judge(record: Outgoing) -> PublishError | None:
        nonlocal lied
        if len(rig.broker.sent[-1]) > 1 and not lied:
            lied = record.value == b"59"
            return refuse(Blame.EVENT, "too_large")
        return refuse(Blame.EVENT, "too_large") if record.value == BAD else None

    rig.broker.judge = judge
    rig.connection.begin()
    for n in range(60):
        rig.connection.execute(rig.insert("t", b"k%d" % (n % 20), BAD if n == 30 else b"%d" % n))
    rig.connection.commit()
    relay = rig.start()
    rig.until(lambda: relay.saw(Dead))
    rig.until(lambda: len(rig.records("t")) == 57)  # 30 is dead, 50 waits behind it
    for n in range(20):
        bodies = [int(b or b"0") for b in rig.bodies("t", b"k%d" % n)]
        assert bodies == sorted(bodies)
    rig.until(lambda: [row[:2] for row in rig.held()] == [(BAD, "dead"), (b"50", "retrying")])


@pytest.mark.parametrize("due_in_s", [None, 0.05])
def test_a_row_too_long_to_wait_is_dead_and_keeps_nobody(rig: Rig, due_in_s: float | None) -> None:
    """Somebody else wrote it: ``add`` takes 1,000 bytes of a key. An index that refuses it must not end the relay."""
    columns = {} if due_in_s is None else {"due_in_s": due_in_s}
    key = random.Random(1).randbytes(6_000)
    rig.broker.create_topic("t", 1)
    rig.broker.away.add("t")
    rig.add("t", key, b"long", **columns)
    rig.add("t", b"k", b"short")
    rig.add("u" * 2_000, b"k", b"nowhere", **columns)
    rig.start()
    rig.until(lambda: sorted(row[:2] for row in rig.held()) == [(b"long", "dead"), (b"nowhere", "dead"), (b"short", "place")])
    assert {(row[3], row[2]) for row in rig.held() if row[1] == "dead"} == {("invalid", 0)}
    error = rig.sql(f"select error from {rig.table('held')} where length(key) = 6000")[0][0]
    assert "its key has 6,000 bytes" in error
    rig.broker.away.clear()
    rig.until(lambda: rig.bodies("t") == [b"short"])


def test_what_follows_an_unreadable_event_of_its_key_waits_for_it(rig: Rig) -> None:
    """In one page, so that nothing was held when it was read."""
    rig.broker.create_topic("t", 1)
    rig.connection.begin()
    for body, columns in ((b"before", {}), (b"odd", {"attributes": "garbage{"}), (b"after", {})):
        rig.connection.execute(rig.insert("t", b"k", body, **columns))
    rig.connection.execute(rig.insert("t", b"other", b"other"))
    rig.connection.commit()
    rig.start(publish=Retry(attempts=3, first_s=0.01, then="hold"))
    rig.until(lambda: [row[:2] for row in rig.held()] == [(b"odd", "dead"), (b"after", "behind")])
    rig.until(lambda: rig.bodies("t", b"other") == [b"other"])
    assert rig.bodies("t", b"k") == [b"before"]
    rig.sql(f"update {rig.table('held')} set owner_request = 'discard' where state = 'dead' returning seq")
    rig.until(rig.drained)
    assert rig.bodies("t", b"k") == [b"before", b"after"]


def test_what_follows_an_unreadable_event_waits_where_it_lies(rig: Rig) -> None:
    """Rows in ``held``, and delayed ones."""
    rig.broker.create_topic("t", 1)
    rig.broker.judge = bad_only
    rig.add("t", b"k", BAD)
    rig.start(publish=Retry(attempts=1, then="hold"))
    rig.until(lambda: [row[1] for row in rig.held()] == ["dead"])
    rig.add("t", b"k", b"odd", attributes="garbage{")
    rig.add("t", b"k", b"after")
    rig.until(lambda: len(rig.held()) == 3)
    rig.sql(f"update {rig.table('held')} set owner_request = 'discard' where state = 'dead' returning seq")
    rig.until(lambda: [row[:2] for row in rig.held()] == [(b"odd", "dead"), (b"after", "behind")])
    rig.connection.begin()
    rig.connection.execute(rig.insert("t", b"d", b"odd-d", attributes="garbage{", due_in_s=0.3))
    rig.connection.execute(rig.insert("t", b"d", b"after-d", due_in_s=0.3))
    rig.connection.commit()
    rig.until(lambda: [row[:2] for row in rig.held()][2:] == [(b"odd-d", "dead"), (b"after-d", "behind")])
    assert rig.bodies("t") == []


def test_an_operators_retry_waits_for_what_is_before_it(rig: Rig) -> None:
    refused = {b"1", b"2"}
    rig.broker.judge = lambda record: refuse(Blame.EVENT, "policy") if record.value in refused else None
    rig.broker.create_topic("t", 1)
    rig.add("t", b"k", b"1", b"2", b"3")
    rig.start(publish=Retry(attempts=None, first_s=0.2, factor=1.0, then="hold"))
    rig.until(lambda: [row[1] for row in rig.held()] == ["retrying", "retrying", "behind"])
    refused.discard(b"2")
    rig.sql(f"update {rig.table('held')} set owner_request = 'retry' where seq = (select max(seq) from {rig.table('held')} "
            "where state = 'retrying') returning seq")
    tries = rig.held()[0][2]
    rig.until(lambda: rig.held()[0][2] > tries + 3)
    assert rig.bodies("t") == []
    refused.clear()
    rig.until(rig.drained)
    assert rig.bodies("t") == [b"1", b"2", b"3"]


def test_a_passed_event_that_is_to_go_again_holds_its_key_at_once(rig: Rig) -> None:
    rig.broker.create_topic("t", 1)
    rig.broker.judge = bad_only
    rig.add("t", b"k", BAD, b"1")
    rig.start(publish=Retry(attempts=2, first_s=600.0, factor=1.0, then="pass"))  # once it is refused again, long
    rig.until(lambda: [row[1] for row in rig.held()] == ["retrying", "behind"])
    rig.sql(f"update {rig.table('held')} set owner_request = 'skip' where state = 'retrying' returning seq")
    rig.until(lambda: rig.bodies("t") == [b"1"])
    rig.sql(f"update {rig.table('held')} set owner_request = 'retry' where state = 'dead' returning seq")
    rig.until(lambda: [row[1] for row in rig.held()] == ["retrying"])  # granted just now
    rig.add("t", b"k", b"2")
    rig.until(lambda: [row[:2] for row in rig.held()] == [(BAD, "retrying"), (b"2", "behind")])
    assert rig.bodies("t") == [b"1"]


def test_with_pass_what_follows_an_unreadable_event_that_was_due_later_goes_on(rig: Rig) -> None:
    rig.broker.create_topic("t", 1)
    rig.start(publish=Retry(attempts=3, first_s=0.01, then="pass"))
    rig.connection.begin()
    rig.connection.execute(rig.insert("t", b"k", b"odd", attributes="garbage{", due_in_s=0.2))
    rig.connection.execute(rig.insert("t", b"k", b"after", due_in_s=0.2))
    rig.connection.commit()
    rig.until(lambda: rig.bodies("t") == [b"after"])
    rig.until(lambda: [row[:2] for row in rig.held()] == [(b"odd", "dead")])
    assert [bool(row[0]) for row in rig.sql(f"select passed from {rig.table('held')}")] == [True]


def test_a_row_that_is_held_before_the_head_of_its_key_is_its_head(rig: Rig) -> None:
    """Read again after its release, when the stream went back to the stored cursor: with nobody to wake it, its key waited
    for ever once the old head was to wait for it."""
    rig.add("t", b"k", b"1", b"2")
    steps: Any = rig.store.relay
    me = run(steps.leases.register(
        name="r", pid=1, host="h", lease_s=60.0, former=None, now=time.monotonic(), boot="b"), rig.connection)
    one, two = (row[0] for row in rig.sql(f"select seq from {rig.table('outbox')} order by seq"))
    assert run(steps.rows.settle(me, [], [Hold(two, "behind")], []), rig.connection)
    assert run(steps.rows.settle(me, [], [Hold(one, "behind")], []), rig.connection)
    assert one in [row[1] for row in run(steps.held.due(EVERY_LANE, [], 10), rig.connection)]
    run(steps.leases.leave(me), rig.connection)
