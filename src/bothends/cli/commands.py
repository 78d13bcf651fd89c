"""Commands: one module per group of them. ``execute`` turns errors into two lines and an exit status [A20]."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

import typer

from bothends.cli.output import complain
from bothends.errors import Blame, BothendsError
from bothends.operating.standby import StandBy

__all__ = ["build", "execute"]

EXIT_FAILED, EXIT_WRONG_USE, EXIT_INTERRUPTED = 1, 2, 130

_EXTRA = re.compile(r"unexpected extra argument\S* \(([^\s)]+)")
_LOOK_AT = {Blame.BROKER: "see that the broker is up, and that `bothends config` shows the right URL"}
_COMMANDS = {
    "relay": "processes", "work": "processes", "run": "processes", "status": "status", "trace": "status",
    "config": "status", "health": "health", "init": "init", "purge": "purge", "check": "check",
}
_GROUPS = {
    "dead": "Dead letters: what was given up on.",
    "keys": "Keys that wait: retrying, or held behind a dead letter.",
    "consumers": "The consumers: which have run, pause, resume.",
    "topics": "The topics that the application uses.",
    "schema": "Our tables in the services' databases.",
}


def build(arguments: Sequence[str] = ()) -> typer.Typer:
    """The command line, of which only the command that ``arguments`` begin with is imported: a supervisor that was killed
    must be back in a moment. Everything, where they begin with none."""
    only = {*arguments[:1]} & {*_COMMANDS, *_GROUPS}
    app = typer.Typer(
        name="bothends", no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False, rich_markup_mode=None,
        help="Reliable events between services: state and event commit together, every event arrives, nothing happens "
        "twice.",
    )
    app.callback()(_options)
    for module in dict.fromkeys(module for verb, module in _COMMANDS.items() if not only or verb in only):
        importlib.import_module(f"bothends.cli.{module}").register(app)
    for name, help in _GROUPS.items():
        if not only or name in only:
            app.add_typer(importlib.import_module(f"bothends.cli.{name}").app, name=name, help=help)
    if not only and importlib.util.find_spec("bothends.cli.demo") is not None:
        app.command()(importlib.import_module("bothends.cli.demo").demo)
    return app


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"bothends {version('bothends')}")
        raise typer.Exit


def _options(
    debug: bool = typer.Option(False, "--debug", help="Show tracebacks."),
    version: bool = typer.Option(False, "--version", help="Show the version.", is_eager=True, callback=_version),
) -> None:
    """``execute`` has looked at it already: also errors of the arguments themselves can be debugged."""


def execute(arguments: list[str], early: list[StandBy]) -> int:
    """One command; the exit status. ``early``: processes that a supervisor may have as its first children."""
    debug = "--debug" in arguments or bool(os.environ.get("BOTHENDS_DEBUG"))
    try:
        status_ = build(arguments)(arguments, obj=early, standalone_mode=False)
        return status_ if isinstance(status_, int) else 0
    except typer.Exit as error:
        return error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        complain("interrupted: nothing more was done")
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except BothendsError as error:
        if debug:
            raise
        return _ours(error)
    except ImportError as error:
        if debug:
            raise
        complain(f"the application cannot be imported: {error}", "run it with --debug to see where")
        return EXIT_WRONG_USE
    except Exception as error:
        if (said := _wrong_use(error)) is not None:
            return said
        if debug:
            raise
        complain(f"{type(error).__name__}: {error}", _fix_of(error))
        return EXIT_FAILED


def _fix_of(error: Exception) -> str:
    """What to do about an error that is not ours."""
    from bothends.stores.faults import sqlstate_of

    if sqlstate_of(error) == "42501":  # insufficient privilege
        return "`bothends schema sql --grants relay=ROLE` prints the rights that a role needs; run them as the tables' owner"
    return "run it with --debug to see where"


def _wrong_use(error: Exception) -> int | None:
    """What typer says about the arguments; its classes are click's, or a copy of them, depending on its version."""
    if not any(base.__name__ == "ClickException" for base in type(error).__mro__):
        return None
    context = getattr(error, "ctx", None)
    message = error.format_message()  # type: ignore[attr-defined]
    if type(error).__name__ == "NoArgsIsHelpError":
        print(message, file=sys.stderr)
    else:
        used = f"`{context.command_path if context else 'bothends'} --help` shows how it is used"
        complain(message, _app_of(message, context) or used)
    return EXIT_WRONG_USE


def _app_of(message: str, context: Any) -> str | None:
    """An application given as an argument to a command that has other arguments, or none: it takes --app."""
    extra = _EXTRA.search(message)
    parameters = context.command.params if context else []
    has_option = any("--app" in p.opts for p in parameters)
    has_argument = any(p.param_type_name == "argument" and p.metavar == "APP" for p in parameters)
    if extra is None or not has_option or has_argument:
        return None
    return f"this command takes the application as an option: --app {extra[1]}"


def _ours(error: BothendsError) -> int:
    what, _, fix = str(error).partition("; ")
    complain(what, fix or _LOOK_AT.get(error.blame))
    return EXIT_FAILED if error.blame in (Blame.DATABASE, Blame.BROKER, Blame.PLACE) else EXIT_WRONG_USE
