"""docs/reference/command-line.md, made from the commands themselves: ``python -m tests.docs.command_line``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

import typer

from bothends.cli.commands import build

__all__ = ["commands", "options_of", "reference"]

_HEAD = """\
# The command line

<!-- made by `python -m tests.docs.command_line`; a test compares -->

**APP** names the module that declares the services: `module` (all its Service objects) or `module:name` (that one). The
working directory is importable. Without it, `BOTHENDS_APP` counts, then `app` in `[tool.bothends]` of `pyproject.toml`.

**Reading** commands exit 0 whatever they show; `health`, `topics check` and `schema status` exit 1 for findings. What fails
exits 1, wrong use and wrong configuration exit 2, Ctrl-C 130. An error is two lines on stderr: what is wrong, what to do.

**Changing** commands never guess among services. They ask on a terminal, and need `--yes` off it. They take `--by`
(default: the user of the operating system) and `--reason`, and leave an audit row. Doing one twice does it once.
`schema apply` asks only before a downgrade, with the numbers of what would be lost.

**Output** is a table on a terminal, tab-separated columns elsewhere, and one JSON document with `--json`. Keys that are
not UTF-8 are written `base64:...`. `bothends --debug COMMAND` shows tracebacks; `bothends --version` says which one it is.

`relay`, `work` and `run` are a supervisor and its children. They log a line with the event `ready` when work begins.
SIGTERM and Ctrl-C drain within `--stop-timeout`; a second signal ends them at once.
"""


def commands() -> Iterator[tuple[str, Any]]:
    """Each command with its full name, in the order of the help; groups themselves left out."""
    yield from _walk(typer.main.get_command(build()), "bothends")


def _walk(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    below = getattr(command, "commands", None)
    if below is None:
        yield name, command
        return
    for each in below.values():
        yield from _walk(each, f"{name} {each.name}")


def options_of(command: Any) -> set[str]:
    """Every option of a command, ``--no-...`` and ``--help`` included."""
    found = {"--help"}
    for parameter in command.params:
        if parameter.param_type_name == "option":
            found.update(parameter.opts, parameter.secondary_opts)
    return found


def reference() -> str:
    """The page."""
    lines = [_HEAD]
    group = ""
    for name, command in commands():
        words = name.split()
        if len(words) > 2 and words[1] != group:
            group = words[1]
            lines.append(f"## `bothends {group}`\n")
        elif len(words) == 2:
            group = ""
        lines += _command(name, command, "###" if group else "##")
    return "\n".join(lines)


def _command(name: str, command: Any, level: str) -> list[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    shown = " ".join(_argument(p) for p in arguments)
    help_ = " ".join((command.help or "").split())
    kinds = get_type_hints(command.callback)
    lines = [f"{level} `{name}{' ' + shown if shown else ''}`\n", f"{help_}\n"]
    if options:
        lines += ["| Option | Meaning |", "| --- | --- |"]
        lines += [f"| {_option(p, kinds[p.name])} | {_cell(p.help or '')} |" for p in options]
        lines.append("")
    return lines


def _argument(parameter: Any) -> str:
    name = parameter.metavar or parameter.name.upper()
    return name if parameter.required or name.startswith("[") else f"[{name}]"


def _option(parameter: Any, kind: Any) -> str:
    names = [*parameter.opts, *parameter.secondary_opts]
    if getattr(parameter, "is_flag", False):
        value = ""
    elif get_origin(kind) is Literal:
        value = " " + "|".join(map(str, get_args(kind)))
    else:
        value = " " + (parameter.metavar or parameter.name.strip("_").upper())
    return ", ".join(f"`{_cell(name + value)}`" for name in names)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


if __name__ == "__main__":
    print(reference(), end="")
