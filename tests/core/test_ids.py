import os
import threading
import time
import uuid

import pytest

from bothends import ids


def test_is_a_uuid_of_version_7_with_the_time_in_front() -> None:
    before_ms = time.time_ns() // 1_000_000
    made = uuid.UUID(ids.uuid7())
    after_ms = time.time_ns() // 1_000_000
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert before_ms <= made.int >> 80 <= after_ms + 1


def test_each_is_greater_than_the_one_before() -> None:
    made = [ids.uuid7() for _ in range(20_000)]
    assert made == sorted(set(made))


def test_a_clock_that_steps_back_does_not_step_the_ids_back(monkeypatch: pytest.MonkeyPatch) -> None:
    first = ids.uuid7()
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    assert first < ids.uuid7() < ids.uuid7()


def test_a_full_counter_borrows_the_next_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "_clock", ids._Clock())
    monkeypatch.setattr(time, "time_ns", lambda: 5_000_000)
    first = uuid.UUID(ids.uuid7())
    ids._clock.counter = 2**ids._COUNTER_BITS - 1
    second = uuid.UUID(ids.uuid7())
    assert (first.int >> 80, second.int >> 80) == (5, 6)
    assert second.version == 7


def test_threads_never_make_the_same_id() -> None:
    made: list[list[str]] = [[] for _ in range(8)]

    def work(mine: list[str]) -> None:
        mine.extend(ids.uuid7() for _ in range(2_000))

    threads = [threading.Thread(target=work, args=(mine,)) for mine in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({one for mine in made for one in mine}) == 16_000
    assert all(mine == sorted(mine) for mine in made)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_makes_ids_of_its_own_even_when_the_lock_was_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 10**18)
    monkeypatch.setattr(ids, "_clock", ids._Clock())
    ids.uuid7()
    reading, writing = os.pipe()
    with ids._clock.lock:  # as if another thread were making an id right now
        child = os.fork()
        if child == 0:
            os.write(writing, "".join(ids.uuid7() for _ in range(50)).encode())
            os._exit(0)
    mine = {ids.uuid7() for _ in range(50)}
    text = os.read(reading, 50 * 36).decode()
    os.waitpid(child, 0)
    os.close(reading)
    os.close(writing)
    theirs = {text[i : i + 36] for i in range(0, len(text), 36)}
    assert len(theirs) == 50
    assert not mine & theirs


def test_a_derived_id_is_the_same_every_time_and_for_nobody_else() -> None:
    made = ids.derived_id("orders", "1", "inventory.stock", 0)
    assert made == ids.derived_id("orders", "1", "inventory.stock", 0)
    assert uuid.UUID(made).version == 5
    others = {
        ids.derived_id("order", "s1", "inventory.stock", 0),
        ids.derived_id("orders", "1", "inventory.stock", 1),
        ids.derived_id("orders", "1", "inventory.stoc", 0),
        ids.derived_id("orders", '1","inventory', "stock", 0),
        ids.derived_id("ørders", "1", "inventory.stock", 0),
    }
    assert len(others) == 5
    assert made not in others


def test_derived_ids_never_change_between_releases() -> None:
    # Redeliveries across an upgrade derive the same ids; a new value here breaks that promise [O6].
    assert ids.derived_id("orders", "1", "inventory.stock", 0) == "f3ce6429-c1fc-55da-a573-9caee6d7c355"
