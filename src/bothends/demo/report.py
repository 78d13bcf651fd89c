"""Report: a progress bar while a run goes on, a table at its end. With ``--json`` people's part goes to stderr."""

from __future__ import annotations

import json
import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from bothends.demo.result import Result

__all__ = ["Report"]

_ROWS = (
    ("events", "orders placed"),
    ("published", "records in the topics (more than once is allowed)"),
    ("deliveries", "deliveries, as far as workers lived to count them"),
    ("duplicates", "duplicates that inboxes dropped"),
    ("charges", "charges at the gateway"),
    ("kills", "processes killed with SIGKILL"),
    ("acks_lost", "acknowledgements lost"),
    ("outages", "outages"),
    ("lost", "lost effects"),
    ("double_effects", "double effects"),
    ("order_violations", "out of order per key"),
    ("conflicts", "conflicts"),
    ("parked", "still parked"),
    ("dead", "dead letters"),
    ("unexpected", "effects that nothing asked for"),
    ("wrong_sums", "wrong sums"),
)
_MUST_BE_ZERO = {
    "lost", "double_effects", "order_violations", "conflicts", "parked", "dead", "unexpected", "wrong_sums",
}


class Report:
    """A context manager; ``phase`` names what goes on, ``progress`` moves the bar, ``note`` adds a line above it."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._console = Console(file=sys.stderr if as_json else sys.stdout, highlight=False)
        self._bar = Progress(
            SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(),
            console=self._console, transient=True, disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("starting", total=1.0)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def phase(self, name: str) -> None:
        self._bar.update(self._task, description=name)
        if not self._console.is_terminal:
            self._console.print(f"- {name}")

    def progress(self, done: float) -> None:
        """``done`` from 0 to 1."""
        self._bar.update(self._task, completed=min(1.0, done))

    def note(self, text: str) -> None:
        self._console.print(f"  {text}", markup=False)

    def show(self, result: Result) -> None:
        """The table; with ``--json`` also the object, as the last line of stdout."""
        self._bar.stop()
        table = Table(show_header=False, title=f"bothends demo · {'ok' if result.ok else 'NOT OK'}")
        table.add_column(justify="left")
        table.add_column(justify="right")
        for name, title in _ROWS:
            value = getattr(result, name)
            style = ("bold red" if value else "green") if name in _MUST_BE_ZERO else None
            table.add_row(title, f"{value:,}", style=style)
        table.add_row("seconds", f"{result.seconds:.1f}")
        table.add_row("orders per second", f"{result.events_per_second:,.0f}")
        if result.sources.keys() - {"poll"}:
            table.add_row("relays began to read", ", ".join(f"{name} {count}" for name, count in result.sources.items()))
        self._console.print(table)
        for problem in result.problems:
            self.note(problem)
        verdict = "ok: nothing lost, nothing twice, nothing out of order, every sum right"
        self._console.print(verdict if result.ok else "not ok", style="bold green" if result.ok else "bold red")
        if self._as_json:
            print(json.dumps(result.to_json()), flush=True)
