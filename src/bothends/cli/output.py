"""Output: tables for people, JSON for programs, two lines for errors, and the question before a change.

What draws is imported by what is drawn: a supervisor that is started again never draws.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bothends.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["WrongUse", "as_json", "ask", "complain", "duration", "fields", "note", "progress", "say", "table"]


_WHOLE = ("consumer", "fingerprint")
_FOLDED_MIN = 6
_GAP = 2


class WrongUse(ConfigError):
    """The arguments of a command do not make sense together."""


def _console(error: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if error else sys.stdout
    return Console(file=stream, highlight=False, soft_wrap=not stream.isatty())


def as_json(value: object) -> None:
    """One JSON document on one line of stdout. ASCII: safe for any terminal and any key."""
    print(json.dumps(value, default=str), flush=True)


def say(text: str = "") -> None:
    """One line on stdout, as it is."""
    from rich.markup import escape

    _console().print(escape(text))


def complain(what: str, fix: str | None = None) -> None:
    """What is wrong, and below it what to do, on stderr."""
    from rich.markup import escape

    console = _console(error=True)
    console.print(f"[bold red]error:[/] {escape(what)}")
    if fix:
        console.print(f"  [bold]do:[/] {escape(fix)}")


def note(text: str) -> None:
    """What is good to know, on stderr: the command goes on without it."""
    from rich.markup import escape

    _console(error=True).print(escape(f"note: {text}"))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str = "nothing") -> None:
    """Rows for people; numbers to the right, None as an empty cell. Without a terminal: tabs, for cut and awk."""
    lines = [[("" if cell is None else str(cell)) for cell in row] for row in rows]
    if not lines:
        say(empty)
        return
    if not sys.stdout.isatty():
        for line in [list(columns), *lines]:
            print("\t".join(cell.replace("\t", " ").replace("\n", " ") for cell in line))
        return
    print_table(columns, lines)


def print_table(columns: Sequence[str], lines: Sequence[Sequence[str]], console: Console | None = None) -> None:
    """Numbers, consumers and fingerprints are never broken: they are typed again. Where they alone need more than the
    terminal's width, lines run over it."""
    from rich.markup import escape
    from rich.table import Table

    console = console or _console()
    made = Table(box=None, pad_edge=False, header_style="bold")
    least = _GAP * (len(columns) - 1)
    for n, column in enumerate(columns):
        numeric = all(line[n].replace(".", "", 1).lstrip("-").isdigit() or not line[n] for line in lines)
        longest = max(len(line[n]) for line in lines)
        whole = numeric or column in _WHOLE
        width = max(longest if whole else min(longest, _FOLDED_MIN), *map(len, column.split()))
        least += width
        header = column.replace(" ", "\n") if whole else column
        made.add_column(header, justify="right" if numeric else "left", overflow="fold", no_wrap=whole,
                        min_width=width)
    for line in lines:
        made.add_row(*(escape(cell) for cell in line))
    if least > console.width:  # closer together
        made.padding = (0, 1, 0, 0)
        least -= (_GAP - 1) * (len(columns) - 1)
    console.width = max(least, console.width)
    console.print(made, crop=False)


def fields(values: Mapping[str, Any]) -> None:
    """One thing, a line per field."""
    width = max((len(name) for name in values), default=0)
    for name, value in values.items():
        if value not in (None, "", [], {}):
            say(f"{name.replace('_', ' ').ljust(width)}  {value}")


def duration(seconds: float | None) -> str | None:
    """``1.5 s``, ``4 min``, ``3 h``, ``2 d``."""
    if seconds is None:
        return None
    for unit, length in (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def ask(question: str, yes: bool) -> None:
    """Asks on a terminal; off it, ``--yes`` must have answered. Declined: nothing is done, exit 1."""
    if yes:
        return
    import typer

    if not sys.stdin.isatty():
        raise WrongUse(f"{question} There is no terminal to ask at; give --yes")
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Any]:
    """A progress bar on stderr where that is a terminal; ``advance(n)`` moves it."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=_console(error=True), transient=True, disable=not sys.stderr.isatty(),
    )
    with bar:
        task = bar.add_task(what, total=total)
        yield lambda n=1: bar.advance(task, n)
