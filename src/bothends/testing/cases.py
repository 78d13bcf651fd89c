"""Cases: what the crash explorer is given to work with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, overload

from typing_extensions import TypeVar

from bothends.errors import ConfigError

__all__ = ["CASE_MARK", "Case", "case", "cases_in"]

C = TypeVar("C", bound=Callable[..., Sequence[object]])

CASE_MARK = "__bothends_case__"
"""The attribute that ``case`` sets on a function."""


@dataclass(frozen=True, slots=True)
class Case:
    """A marked function, and what was said about it."""

    name: str
    function: Callable[..., Sequence[object]]
    invariant: Callable[[Any], object] | None
    module: str


@overload
def case(fn: C, /) -> C: ...
@overload
def case(*, invariant: Callable[[Any], object] | None = None) -> Callable[[C], C]: ...
def case(fn: Any = None, /, *, invariant: Callable[[Any], object] | None = None) -> Any:
    """Marks a function that is given a session for the start state and returns the events of one story, in order of
    publication. The function stays as it is.

    The session is a SQLAlchemy session where a service has a ``session_factory``, else the driver's connection.
    ``invariant`` is given one on the final state of every run; False or AssertionError is a violation.

    Raises ConfigError for something that cannot be called.
    """
    if fn is None:
        return lambda marked: _mark(marked, invariant)
    return _mark(fn, invariant)


def _mark(fn: Any, invariant: Callable[[Any], object] | None) -> Any:
    if not callable(fn):
        raise ConfigError(f"@case stands above a function that returns events, not {fn!r}")
    name = getattr(fn, "__name__", type(fn).__name__)
    setattr(fn, CASE_MARK, Case(name, fn, invariant, getattr(fn, "__module__", "")))
    return fn


def cases_in(modules: Iterable[ModuleType]) -> list[Case]:
    """The cases in these modules, in order of definition; one that several modules name is found once."""
    found: dict[int, Case] = {}
    for module in modules:
        for value in vars(module).values():
            marked = getattr(value, "__dict__", {}).get(CASE_MARK) if callable(value) else None
            if isinstance(marked, Case):
                found[id(value)] = marked
    return list(found.values())
