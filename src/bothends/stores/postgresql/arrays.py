"""Arrays as PostgreSQL writes them. The driver's own lists cost more than the statement that they are sent with: a batch
of a hundred messages has six hundred elements.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["booleans", "byteas", "texts"]


def texts(values: Iterable[str]) -> str:
    """For a parameter that is cast: ``:names::text[]``."""
    return "{" + ",".join([f'"{_escaped(value)}"' for value in values]) + "}"


def byteas(values: Iterable[bytes]) -> str:
    """For ``:hashes::bytea[]``."""
    return "{" + ",".join([f'"\\\\x{value.hex()}"' for value in values]) + "}"


def booleans(values: Iterable[bool]) -> str:
    """For ``:flags::boolean[]``."""
    return "{" + ",".join(["t" if value else "f" for value in values]) + "}"


def _escaped(value: str) -> str:
    if "\\" in value or '"' in value:
        return value.replace("\\", "\\\\").replace('"', '\\"')
    return value
