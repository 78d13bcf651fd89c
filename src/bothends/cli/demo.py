"""``bothends demo``: real orders through outbox, relay, broker and inbox while processes are killed, then an audit."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

__all__ = ["demo", "register"]

EVENTS = 1_000
"""Orders that are made without a file: enough for some seconds of work."""


def demo(
    more: Annotated[list[Path] | None, typer.Argument(metavar="[FILE]...", help="More files of orders.")] = None,
    orders: Annotated[
        Path | None, typer.Option(help="A CSV file, or the gzip of one, in the columns of UCI's Online Retail.")
    ] = None,
    events: Annotated[
        int | None, typer.Option(min=1, max=10_000_000, help=f"Orders to make without a file.  [default: {EVENTS}]")
    ] = None,
    faults: Annotated[
        Literal["none", "crash", "acks", "outage", "all"],
        typer.Option(help="Kills; forgotten acknowledgements; a broker and a database that are away; or all of it."),
    ] = "crash",
    database: Annotated[
        str | None, typer.Option(metavar="URL", help="A PostgreSQL server.  [default: SQLite files]")
    ] = None,
    broker: Annotated[str | None, typer.Option(metavar="URL", help="A Kafka broker.  [default: a log file]")] = None,
    source: Annotated[
        Literal["auto", "poll", "wal", "message"],
        typer.Option(help="Where relays read: `poll` the table, `wal` the log, `message` what is stored nowhere else."),
    ] = "auto",
    export: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write product,units,revenue as the consumers hold them.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides made orders and the moments of faults.")] = 1,
    keep: Annotated[bool, typer.Option("--keep", help="Leave files, schemas and topics in place.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The result as the last line of stdout.")] = False,
) -> None:
    """Run a shop on this package, kill its processes, and audit that nothing was lost, doubled or reordered.

    Exit status 0 only if the audit finds nothing.
    """
    from bothends.demo.orders import InvalidOrders
    from bothends.demo.producer import Source
    from bothends.demo.report import Report
    from bothends.demo.run import Options, run_demo
    from bothends.errors import BothendsError

    files = [*([orders] if orders else []), *(more or [])]
    if source in ("wal", "message") and database is None:
        raise typer.BadParameter(
            f"only PostgreSQL has a log that relays can read; give --database postgresql://... for {source}",
            param_hint="--source")
    if files and events is not None:
        raise typer.BadParameter("the files say how many orders there are", param_hint="--events")
    if more and not orders:
        raise typer.BadParameter("give the first file as --orders FILE", param_hint="FILE")
    database, broker = _checked(database, "--database", "postgresql"), _checked(broker, "--broker", "kafka")
    options = Options(
        Source([str(file.resolve()) for file in files], seed, events or EVENTS), faults, database, broker,
        export.resolve() if export else None, keep, source,
    )
    # SIGTERM ends like Ctrl-C: processes are stopped, schemas and topics removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with Report(as_json=as_json) as report:
        try:
            result = run_demo(options, report)
        except InvalidOrders as error:
            raise typer.BadParameter(str(error), param_hint="--orders") from error
        except (BothendsError, OSError, RuntimeError, ValueError) as error:
            report.note(f"the demo could not be run: {error}")
            raise typer.Exit(1) from error
        report.show(result)
    raise typer.Exit(0 if result.ok else 1)


def _checked(url: str | None, option: str, scheme: str) -> str | None:
    """The URL with a plain scheme; wrong use for another system's."""
    from bothends.errors import ConfigError
    from bothends.urls import normal_broker, normal_database

    if url is None:
        return None
    try:
        normal = normal_database(url) if option == "--database" else normal_broker(url)
    except ConfigError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
    if not normal.startswith(f"{scheme}://"):
        raise typer.BadParameter(f"{scheme}://... or nothing (files of its own)", param_hint=option)
    return normal


def register(app: typer.Typer) -> None:
    app.command()(demo)
