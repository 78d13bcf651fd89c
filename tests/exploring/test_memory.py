"""Memory: what a process of the user's knows, and forgets when it dies."""

from __future__ import annotations

import functools
import itertools
import random
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from bothends import Service
from bothends.testing import recorded
from bothends.testing.exploring.memory import Memory, modules_of
from tests.exploring.planted import marks
from tests.exploring.planted.events import Paid

SOURCE = """
import functools, itertools, random
from collections import Counter, OrderedDict, defaultdict, deque

count = 0
names = ["a"]
seen = {"x"}
table = {"a": [1]}
totals = Counter(a=1)
lists = defaultdict(list)
order = OrderedDict(a=1)
queue = deque([1], maxlen=3)
raw = bytearray(b"ab")
numbers = itertools.count(5)
dice = random.Random(3)

class Shelf:
    made = 0
    def __init__(self):
        self.units = 10
        self.deep = {"inner": [1, 2]}
        Shelf.made += 1

shelf = Shelf()

@functools.lru_cache
def square(n):
    return n * n

def closing_over():
    hidden, number = [], 0
    def add():
        nonlocal number
        number += 1
        hidden.append(number)
        return number, list(hidden)
    return add

add = closing_over()

def default(into=[]):
    into.append(1)
    return len(into)
"""


@pytest.fixture
def module() -> Iterator[ModuleType]:
    made = ModuleType("memory_under_test")
    sys.modules[made.__name__] = made
    exec(compile(SOURCE, "memory_under_test.py", "exec"), vars(made))
    for value in list(vars(made).values()):
        if isinstance(value, type) and value.__module__ == "builtins" and value.__name__ == "Shelf":
            value.__module__ = made.__name__
    yield made
    del sys.modules[made.__name__]


def disturb(m: Any) -> None:
    m.count += 1
    m.fresh = "new"
    m.names.append("b")
    m.seen.add("y")
    m.table["a"].append(2)
    m.table["b"] = []
    m.totals["b"] += 3
    m.lists["k"].append(1)
    m.order["b"] = 2
    m.queue.extend([2, 3, 4])
    m.raw += b"c"
    next(m.numbers)
    m.dice.random()
    m.shelf.units -= 1
    m.shelf.extra = True
    m.shelf.deep["inner"].clear()
    m.Shelf.made += 1
    m.square(3)
    m.add()
    m.default()


def test_a_death_forgets_everything_in_place(module: Any) -> None:
    kept = {name: vars(module)[name] for name in ("names", "seen", "table", "totals", "queue", "raw", "shelf")}
    first = random.Random(3).random()
    memory = Memory([module], [])
    disturb(module)
    memory.forget()
    assert all(vars(module)[name] is value for name, value in kept.items())
    assert (module.count, module.names, module.seen) == (0, ["a"], {"x"})
    assert module.table == {"a": [1]}
    assert module.totals == Counter(a=1)
    assert isinstance(module.lists, defaultdict)
    assert not module.lists
    assert module.order == OrderedDict(a=1)
    assert module.queue == deque([1], maxlen=3)
    assert module.raw == bytearray(b"ab")
    assert next(module.numbers) == 5
    assert module.dice.random() == first
    assert (module.shelf.units, module.shelf.deep, hasattr(module.shelf, "extra")) == (10, {"inner": [1, 2]}, False)
    assert not hasattr(module, "fresh")
    assert module.square.cache_info().currsize == 0
    assert module.add() == (1, [1])
    assert module.default() == 1


def test_it_can_forget_again_and_again(module: Any) -> None:
    memory = Memory([module], [])
    for _ in range(3):
        disturb(module)
        memory.forget()
        assert next(module.numbers) == 5
        assert module.table == {"a": [1]}


def test_what_has_changed_has_a_name(module: Any) -> None:
    memory = Memory([module], [])
    assert memory.changed() == []
    module.seen.add("y")
    module.shelf.units = 3
    assert "memory_under_test.seen" in memory.changed()
    assert any("shelf" in name for name in memory.changed())
    memory.forget()
    assert memory.changed() == []


def test_what_a_port_holds_is_not_the_process_s(module: Any) -> None:
    letters: list[str] = []
    module.letters = letters
    module.port = recorded(letters)
    memory = Memory([module], [])
    assert memory.ports == [module.port]
    letters.append("sent")
    memory.forget()
    assert letters == ["sent"]
    assert memory.changed() == []


def test_handlers_that_are_closures_are_found() -> None:
    service = Service("closing")
    done: list[str] = []

    def decorated(function: Callable[[Paid], None]) -> Callable[[Paid], None]:
        @functools.wraps(function)
        def inner(paid: Paid) -> None:
            function(paid)

        return inner

    @service.consumer("c").handle(Paid)
    @decorated
    def handle(paid: Paid) -> None:
        done.append(paid.order)

    memory = Memory([], [service])
    handle(Paid("1"))
    assert done == ["1"]
    memory.forget()
    assert done == []


def test_a_ring_of_objects_ends(module: Any) -> None:
    module.ring = [[]]
    module.ring[0].append(module.ring)
    memory = Memory([module], [])
    module.ring.append(1)
    memory.forget()
    assert len(module.ring) == 1


def test_what_the_user_did_not_write_is_left_alone(module: Any) -> None:
    module.library = sys
    module.counter = itertools.count()
    marker = object()
    memory = Memory([module], [])
    sys.explored_marker = marker  # type: ignore[attr-defined]
    memory.forget()
    assert vars(sys).pop("explored_marker") is marker


# Whose modules


def test_the_users_modules_are_those_of_the_handlers_and_their_folder() -> None:
    names = {module.__name__ for module in modules_of([marks.remembers(True)])}
    assert {"tests.exploring.planted.marks", "tests.exploring.planted.events"} <= names
    assert not any(name.startswith(("bothends.", "_pytest", "sqlite3")) for name in names)


def test_further_modules_may_be_named() -> None:
    names = {module.__name__ for module in modules_of([Service("empty")], ["bothends.demo.cases", "not.there"])}
    assert "not.there" not in names
    if "bothends.demo.cases" in sys.modules:
        assert "bothends.demo.app" in names
