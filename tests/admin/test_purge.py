"""Purge: only what is old enough, in small batches, with several at work; downtime does not eat the window."""

import threading

from bothends.admin.purge import Purged, inbox_cutoff_s, purge_history, purge_inbox
from bothends.stores import Store
from tests.admin.shelf import Shelf

DAY_S = 86_400.0


def fill(shelf: Shelf, count: int, *, age_s: float, state: str = "p", prefix: str = "old") -> None:
    """``count`` inbox rows of one age, in one statement."""
    numbers = (
        "select generate_series(1, :count) n" if shelf.store.dialect == "postgresql" else
        "with recursive g (n) as (select 1 union all select n + 1 from g where n < :count) select n from g")
    shelf.sql(
        f"insert into {{s}}.inbox (consumer, source, id, state, hash, changed_at) "
        f"select :consumer, 'orders', :prefix || n, :state, :hash, {{ago:age_s}} from ({numbers}) made",
        consumer=shelf.consumer(), count=count, prefix=prefix, state=state, hash=b"h", age_s=age_s)


def left(shelf: Shelf) -> int:
    return int(shelf.one("select count(*) from {s}.inbox"))


def purge(shelf: Shelf, keep_s: float, grace_s: float = 300) -> Purged:
    purged = Purged()
    purge_inbox(shelf.connection, shelf.admin, shelf.consumer(), "inventory.stock", keep_s, grace_s=grace_s, purged=purged)
    return purged


def test_rows_older_than_the_retention_go(shelf: Shelf) -> None:
    fill(shelf, 1000, age_s=8 * DAY_S)
    fill(shelf, 10, age_s=6 * DAY_S, prefix="young")
    fill(shelf, 1, age_s=400, prefix="busy")
    assert purge(shelf, 7 * DAY_S).rows == {"inbox inventory.stock": 1000}
    assert left(shelf) == 11


def test_parked_dead_and_discarded_messages_pin_their_rows(shelf: Shelf) -> None:
    for state in "kdx":
        fill(shelf, 5, age_s=100 * DAY_S, state=state, prefix=state)
    fill(shelf, 1, age_s=400, prefix="busy")
    purge(shelf, DAY_S)
    assert left(shelf) == 16


def test_downtime_does_not_eat_the_window(shelf: Shelf) -> None:
    """Five minutes of retention, handled ten, ten minutes away: what is redelivered at the start is still known."""
    fill(shelf, 10, age_s=600)
    assert purge(shelf, 300).rows == {"inbox inventory.stock": 0}
    fill(shelf, 3, age_s=5, prefix="after")  # it is back: the first messages do not count yet
    assert purge(shelf, 300).rows == {"inbox inventory.stock": 0}
    assert left(shelf) == 13


def test_the_window_is_counted_from_activity_before_the_grace_period(shelf: Shelf) -> None:
    fill(shelf, 1, age_s=1000)
    fill(shelf, 1, age_s=10, prefix="b")
    cutoff = shelf.run(inbox_cutoff_s(shelf.admin, shelf.consumer(), 300, 60))
    assert 1299 < cutoff < 1310
    cutoff = shelf.run(inbox_cutoff_s(shelf.admin, shelf.consumer(), 300, 5))
    assert 309 < cutoff < 320
    assert shelf.run(inbox_cutoff_s(shelf.admin, shelf.consumer(), 300, 5000)) is None


def test_several_purge_at_once(shelf: Shelf, store: Store) -> None:
    fill(shelf, 6000, age_s=8 * DAY_S)
    fill(shelf, 1, age_s=400, prefix="busy")
    consumer, results, errors = shelf.consumer(), [], []

    def one() -> None:
        mine, purged = store.connect(), Purged()
        try:
            purge_inbox(mine, store.admin, consumer, "x", DAY_S, grace_s=300, purged=purged)
            results.append(purged)
        except Exception as error:
            errors.append(error)
        finally:
            mine.close()

    threads = [threading.Thread(target=one) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    purge(shelf, DAY_S)  # what one of them had locked when another came past
    assert errors == []
    assert left(shelf) == 1
    assert max(p.longest_s for p in results) < 1.0


def test_it_stops_when_told(shelf: Shelf) -> None:
    fill(shelf, 1000, age_s=8 * DAY_S)
    fill(shelf, 1, age_s=400, prefix="busy")
    answers = iter([True, False])
    purged = Purged()
    purge_inbox(shelf.connection, shelf.admin, shelf.consumer(), "x", DAY_S, grace_s=300, purged=purged,
                keep_going=lambda: next(answers))
    assert 0 < left(shelf) < 1001


def test_closed_letters_go_with_the_rows_that_they_pinned(shelf: Shelf) -> None:
    states = {"open": "d", "redriven": "k", "done": "p", "discarded": "x"}
    for n, (state, inbox) in enumerate(states.items()):
        number = shelf.letter(f"m{n}", f"k{n}".encode(), inbox=inbox)
        shelf.sql("update {s}.dead_letters set state = :state, changed_at = {ago:age} where id = :id",
                  state=state, id=number, age=100 * DAY_S)
    purge_history(shelf.connection, shelf.admin, 90 * DAY_S, purged=Purged())
    assert {row[0] for row in shelf.sql("select state from {s}.dead_letters")} == {"open", "redriven"}
    assert shelf.inbox_state("m3") is None
    assert shelf.inbox_state("m2") == "p"


def test_an_effect_outlives_its_message(shelf: Shelf) -> None:
    shelf.inbox("m1", "p")
    for id_, state in (("m1", "completed"), ("m2", "completed"), ("m3", "unknown"), ("m4", "completed")):
        shelf.sql(
            "insert into {s}.effects (consumer, source, message_id, name, state, key, changed_at) "
            "values (:c, 'orders', :id, 'charge', :state, 'k', {ago:age})",
            c=shelf.consumer(), id=id_, state=state, age=100 * DAY_S)
    shelf.letter("m4", inbox=None)
    purge_history(shelf.connection, shelf.admin, 90 * DAY_S, purged=Purged())
    assert {row[0] for row in shelf.sql("select message_id from {s}.effects")} == {"m1", "m3", "m4"}


def test_old_audit_rows_go(shelf: Shelf) -> None:
    for age_s in (100 * DAY_S, 99 * DAY_S, 1.0):
        shelf.sql("insert into {s}.audit (by, verb, target, at) values ('anna', 'x', 'y', {ago:age})", age=age_s)
    purged = Purged()
    purge_history(shelf.connection, shelf.admin, 90 * DAY_S, purged=purged)
    assert purged.rows["audit"] == 2
    assert len(shelf.audits()) == 1
