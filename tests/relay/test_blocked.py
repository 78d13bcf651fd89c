"""What is asked about keys of lanes that have held ones: each key once, until something may have been held."""

from __future__ import annotations

from typing import Any

from bothends.core.lanes import lane
from bothends.core.relaying import BLOCKED, DELAYED, UNREADABLE
from bothends.relay import blocked as module
from bothends.relay.blocked import Blocked
from bothends.relay.records import FLAG, KEY, Row

EVERY = (1 << 64) - 1


class Database:
    """Has held keys, and counts what it is asked."""

    def __init__(self, *held: bytes) -> None:
        self.keys = {("t", key) for key in held}
        self.asked: list[list[bytes]] = []
        self.held = self

    def blocked(self, keys: list[tuple[int, str, bytes]]) -> Any:
        assert all(number == lane(key) for number, _, key in keys)
        self.asked.append([key for _, _, key in keys])
        return self.keys & {(topic, key) for _, topic, key in keys}

    def ask(self, lanes: int = EVERY) -> Blocked:
        blocked = Blocked(self, lambda steps: steps)
        blocked.lanes = lanes
        return blocked


def rows(*keys: bytes | None, flag: int = 0) -> list[Row]:
    return [(1, n, flag, b"id", "source", "type", "t", key, b"", None, b"", 1, None, None, None) for n, key in enumerate(keys)]


def flags(found: list[Row]) -> list[tuple[bytes | None, int]]:
    return [(row[KEY], row[FLAG]) for row in found]


def test_a_key_that_is_free_is_asked_for_once() -> None:
    database = Database(b"b")
    blocked = database.ask()
    assert flags(blocked.mark(rows(b"a", b"b", b"a", None))) == [(b"a", 0), (b"b", BLOCKED), (b"a", 0), (None, 0)]
    assert flags(blocked.mark(rows(b"a"))) == [(b"a", 0)]
    assert flags(blocked.mark(rows(b"a", b"b"))) == [(b"a", 0), (b"b", BLOCKED)]
    assert [sorted(keys) for keys in database.asked] == [[b"a", b"b"], [b"b"]], "one that waits is asked for at each page"
    database.keys.clear()
    assert flags(blocked.mark(rows(b"b"))) == [(b"b", 0)], "it was released"


def test_what_may_have_been_held_is_asked_for_again() -> None:
    database = Database()
    blocked = database.ask()
    blocked.mark(rows(b"a"))
    database.keys.add(("t", b"a"))
    blocked.forget()
    assert flags(blocked.mark(rows(b"a"))) == [(b"a", BLOCKED)]


def test_other_lanes_ask_nothing() -> None:
    database = Database(b"a")
    assert flags(database.ask(0).mark(rows(b"a"))) == [(b"a", 0)]
    assert flags(database.ask(EVERY & ~(1 << lane(b"a"))).mark(rows(b"a", None))) == [(b"a", 0), (None, 0)]
    assert database.asked == []


def test_a_flag_is_kept() -> None:
    """An event that is due later must not become one that waits for its key: that one goes when the key is free."""
    for flag in (DELAYED, UNREADABLE):
        assert flags(Database(b"a").ask().mark(rows(b"a", flag=flag))) == [(b"a", flag)]


def test_memory_is_bounded(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "FREE_MAX", 10)
    database = Database(b"19")
    blocked = database.ask()
    for n in range(100):
        assert flags(blocked.mark(rows(b"%d" % n)))[0][1] == (BLOCKED if n == 19 else 0)
        assert len(blocked._free) <= 10


def test_a_page_is_not_changed() -> None:
    """The log's page goes out again as it was, where it failed."""
    page = rows(b"a")
    for database in (Database(b"a"), Database()):
        marked = database.ask().mark(page)
        assert marked is not page
        assert page[0][FLAG] == 0
    assert database.ask(0).mark(page) is not page
