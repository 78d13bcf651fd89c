"""Options: the arguments that many commands have in common."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["AppArgument", "AppOption", "By", "Json", "Reason", "ServiceOption", "Yes"]

AppArgument = Annotated[str | None, typer.Argument(metavar="APP", help="module or module:name; default BOTHENDS_APP.")]
AppOption = Annotated[str | None, typer.Option("--app", metavar="APP", help="module or module:name; default BOTHENDS_APP.")]
ServiceOption = Annotated[str | None, typer.Option("--service", help="Only this service.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document instead of text.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask; needed where there is no terminal.")]
By = Annotated[str | None, typer.Option("--by", help="Who acts; default: the user of the operating system.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; kept in the audit row.")]
