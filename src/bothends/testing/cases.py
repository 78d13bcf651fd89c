"""Cases: what the crash explorer is given to work with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from typing_extensions import TypeVar

from bothends.errors import ConfigError

__all__ = ["CASE_MARK", "case"]

C = TypeVar("C", bound=Callable[..., Sequence[object]])

CASE_MARK = "__bothends_case__"
"""The attribute that ``case`` sets on a function."""


def case(fn: C, /) -> C:
    """Marks a function that returns the events of one story, in order of publication. The function stays as it is.

    Raises ConfigError for something that cannot be called.
    """
    marked: Any = fn
    if not callable(marked):
        raise ConfigError(f"@case stands above a function that returns events, not {fn!r}")
    setattr(marked, CASE_MARK, True)
    return fn
