"""Memory: what a process of the user's knows and loses when it dies, put back in place.

Noted after import: the globals of the user's modules, the attributes of their classes and objects, their containers, and what
the handlers' closures hold. What the user did not write (a driver, an engine, a library) is left alone.
"""

from __future__ import annotations

import copy
import functools
import itertools
import random
import sys
import sysconfig
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

from bothends.service import Service
from bothends.testing.exploring.outside import Recorded

__all__ = ["OBJECTS_MAX", "Memory", "modules_of"]

OBJECTS_MAX = 100_000
"""Objects that are noted; what lies further away from the modules is left as it is."""
_CONTAINERS = (dict, list, set, deque, bytearray)
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_PACKAGE = str(Path(__file__).parents[2])
_DEMO = str(Path(_PACKAGE) / "demo")


def modules_of(services: Iterable[Service], named: Iterable[str] = ()) -> list[ModuleType]:
    """The modules that are the user's: those of the handlers, those in ``named``, and every other one that was imported from
    the same folders; no library's."""
    names = [*named, *(n for s in services for n in s.include)]
    names += [h.function.__module__ for s in services for c in s.consumers.values() for h in c.handlers.values()]
    first = [sys.modules[name] for name in dict.fromkeys(names) if name in sys.modules]
    folders = {str(Path(file).parent) for module in first if (file := getattr(module, "__file__", None))}
    found = dict.fromkeys(first)
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and module not in found and str(Path(file).parent) in folders and _is_users(file):
            found[module] = None
    return list(found)


def _is_users(file: str) -> bool:
    if file.startswith(_PACKAGE):
        return file.startswith(_DEMO)
    return not file.startswith(_LIBRARIES)


class _Note:
    """One object and what it held."""

    __slots__ = ("held", "name", "owner", "put")

    def __init__(self, name: str, owner: Any, held: Any, put: Callable[[Any, Any], None]) -> None:
        self.name, self.owner, self.held, self.put = name, owner, held, put


class Memory:
    """Notes at once what the user's modules hold. ``forget`` puts it back; ``changed`` names what is not as it was."""

    def __init__(self, modules: Iterable[ModuleType], services: Iterable[Service]) -> None:
        self._notes: list[_Note] = []
        self._caches: list[Any] = []
        self.ports: list[Recorded] = []
        """Recorded ports that were met: they are the outside world."""
        self._seen: set[int] = set()
        self._keep: list[Any] = []
        self._roots = {module.__name__ for module in modules}
        waiting: deque[tuple[str, Any]] = deque()
        for module in modules:
            waiting.append((module.__name__, module))
        for service in services:
            waiting.extend((service.name, part) for part in (service.lifespan, *service.middleware) if part is not None)
            for consumer in service.consumers.values():
                for handler in consumer.handlers.values():
                    waiting.append((handler.function.__qualname__, handler.function))
        while waiting and len(self._seen) < OBJECTS_MAX:
            name, value = waiting.popleft()
            if id(value) not in self._seen:
                self._seen.add(id(value))
                self._keep.append(value)
                waiting.extend(self._note(name, value))

        outside = {id(held) for port in self.ports if (held := port.held()) is not None}
        self._notes = [note for note in self._notes if id(note.owner) not in outside]

    def forget(self) -> None:
        """The process has died: everything is again what it was after import."""
        for note in self._notes:
            note.put(note.owner, note.held)
        for cache in self._caches:
            cache.cache_clear()

    def changed(self) -> list[str]:
        """Names of globals, attributes and containers that hold something else than after import."""
        return [note.name for note in self._notes if _differs(note)]

    # Taking notes

    def _note(self, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, Recorded):
            self.ports.append(value)
        elif isinstance(value, ModuleType):
            if value.__name__ in self._roots:
                yield from self._names(name, value, _put_names)
        elif isinstance(value, type):
            if value.__module__ in self._roots:
                yield from self._names(value.__qualname__, value, _put_attributes)
        elif isinstance(value, _CONTAINERS):
            yield from self._container(name, value)
        elif isinstance(value, FunctionType):
            yield from self._function(value)
        elif isinstance(value, MethodType):
            yield name, value.__self__
            yield name, value.__func__
        elif isinstance(value, functools.partial):
            yield name, value.func
            yield from ((name, part) for part in (*value.args, *value.keywords.values()))
        elif isinstance(value, random.Random):
            self._notes.append(_Note(name, value, value.getstate(), random.Random.setstate))
        elif hasattr(value, "cache_clear") and hasattr(value, "__wrapped__"):
            self._caches.append(value)
            yield name, value.__wrapped__
        elif isinstance(value, tuple | frozenset):
            yield from ((name, part) for part in value)
        elif type(value).__module__ in self._roots:
            yield from self._object(name, value)

    def _names(self, name: str, owner: Any, put: Callable[[Any, Any], None]) -> Iterator[tuple[str, Any]]:
        held = {
            key: _kept(part) for key, part in vars(owner).items()
            if not key.startswith("__") and not isinstance(part, property | staticmethod | classmethod)
        }
        self._notes.append(_Note(name, owner, held, put))
        for key, part in held.items():
            yield f"{name}.{key}", part

    def _container(self, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, dict):
            self._notes.append(_Note(name, value, dict(value), _put_dict))
            yield from ((name, part) for part in value.values())
        else:
            self._notes.append(_Note(name, value, copy.copy(value), _PUTTING[_base(value)]))
            if not isinstance(value, bytearray):
                yield from ((name, part) for part in value)

    def _function(self, value: FunctionType) -> Iterator[tuple[str, Any]]:
        for cell, cell_name in zip(value.__closure__ or (), value.__code__.co_freevars, strict=False):
            yield from self._cell(f"{value.__qualname__}: {cell_name}", cell)
        for part in (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()):
            yield f"{value.__qualname__}: a default", part
        wrapped = getattr(value, "__wrapped__", None)
        if wrapped is not None:
            yield value.__qualname__, wrapped

    def _cell(self, name: str, cell: CellType) -> Iterator[tuple[str, Any]]:
        if id(cell) in self._seen:
            return
        self._seen.add(id(cell))
        try:
            held = cell.cell_contents
        except ValueError:  # not filled yet
            return
        self._notes.append(_Note(name, cell, held, _put_cell))
        yield name, held

    def _object(self, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        yield name, type(value)
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            self._notes.append(_Note(name, attributes, {k: _kept(v) for k, v in attributes.items()}, _put_dict))
            yield from ((f"{name}.{key}", part) for key, part in attributes.items())


def _kept(value: Any) -> Any:
    """What is put back: a counter is kept at its place, anything else is itself."""
    return copy.copy(value) if isinstance(value, itertools.count) else value


def _base(value: Any) -> type[Any]:
    return next(kind for kind in _CONTAINERS if isinstance(value, kind))


def _differs(note: _Note) -> bool:
    owner, held = note.owner, note.held
    if isinstance(owner, random.Random):
        return bool(owner.getstate() != held)
    if isinstance(owner, CellType):
        return owner.cell_contents is not held
    if isinstance(owner, ModuleType | type):
        return any(not _same(vars(owner).get(key), value) for key, value in held.items())
    if isinstance(owner, dict):
        return owner.keys() != held.keys() or any(not _same(owner[key], value) for key, value in held.items())
    return len(owner) != len(held) or any(not _same(a, b) for a, b in zip(sorted_ids(owner), sorted_ids(held), strict=True))


def sorted_ids(values: Any) -> Iterable[Any]:
    """The members, in an order that a set has as well."""
    return sorted(map(id, values)) if isinstance(values, set) else list(values)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, itertools.count):
        return repr(a) == repr(b)
    return a is b or (isinstance(a, int | float | str | bytes) and a == b)


# Putting back


def _put_names(module: ModuleType, held: dict[str, Any]) -> None:
    for key, value in held.items():
        vars(module)[key] = _kept(value)
    for key in [key for key in vars(module) if key not in held and not key.startswith("__")]:
        del vars(module)[key]


def _put_attributes(owner: type[Any], held: dict[str, Any]) -> None:
    for key, value in held.items():
        if vars(owner).get(key) is not value:
            setattr(owner, key, _kept(value))


def _put_dict(owner: dict[Any, Any], held: dict[Any, Any]) -> None:
    if owner.keys() != held.keys() or any(owner[key] is not value for key, value in held.items()):
        owner.clear()
        owner.update({key: _kept(value) for key, value in held.items()})


def _put_list(owner: Any, held: Any) -> None:
    owner[:] = held


def _put_set(owner: set[Any], held: set[Any]) -> None:
    owner.clear()
    owner.update(held)


def _put_deque(owner: deque[Any], held: deque[Any]) -> None:
    owner.clear()
    owner.extend(held)


def _put_cell(cell: CellType, held: Any) -> None:
    cell.cell_contents = held


_PUTTING: dict[type[Any], Callable[[Any, Any], None]] = {
    list: _put_list, set: _put_set, deque: _put_deque, bytearray: _put_list,
}
