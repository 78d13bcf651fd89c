"""The command line. ``main`` is all that a start costs before the first child is on its way."""

from __future__ import annotations

import sys

from bothends.operating.standby import standing_by

__all__ = ["main", "run"]

_SUPERVISORS = {"relay", "work", "run"}
"""Commands with children."""
_CHILD = "bothends.operating.child"


def main(arguments: list[str] | None = None) -> None:
    """Runs one command and exits: 0 done, 1 failed or findings, 2 wrong use or wrong configuration."""
    try:
        sys.exit(run(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:  # before the commands were there to say so
        sys.exit(130)


def run(arguments: list[str]) -> int:
    """``main`` without the exit: the status."""
    supervises = bool(_SUPERVISORS.intersection(arguments[:1])) and "--help" not in arguments
    # A supervisor that was killed must be back in a moment, and to read the command line takes longer than one thinks:
    # meanwhile its first child starts.
    with standing_by([_CHILD] if supervises else []) as early:
        from bothends.cli.commands import execute

        return execute(arguments, early)
