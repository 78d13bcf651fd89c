"""``make prove CASE=... [PG=15|18]``: runs one process test and prints one JSON line. Exit status 0 only if ``ok``."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time

CASES = {
    "kills": "kills", "freezes": "freezes", "overlap": "overlap", "outage": "outage", "handlers": "handlers",
    "failing-key": "failing_key", "soak": "soak", "drop": "soak:drop", "delay": "soak:delay", "half-close": "soak:half_close",
    "stop": "soak:stop", "leader": "leader", "full-disk": "full_disk",
    "clock": "clock", "slot": "slot", "server": "server", "promote": "promote",
}
"""Where each case is: its module's ``prove``, or the function that is named behind a colon."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="make prove")
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--pg", type=int, choices=(15, 18), default=15)
    parser.add_argument("--seconds", type=float, help="length of the load, where the case has one")
    parser.add_argument("--seed", type=int, help="of a soak: which faults are drawn")
    parser.add_argument("--source", choices=("wal", "message"), help="what relays read, where the case has a choice")
    options = parser.parse_args()
    module, _, function = CASES[options.case].partition(":")
    prove = getattr(importlib.import_module(f"tests.acceptance.{module}"), function or "prove")
    began = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {line}", file=sys.stderr, flush=True)

    given = {"seconds": options.seconds, "seed": options.seed, "source": options.source}
    found = prove(options.pg, tell, **{name: value for name, value in given.items() if value is not None})
    print(json.dumps({"case": options.case, "pg": options.pg, "seconds": round(time.monotonic() - began, 1), **found}))
    return 0 if found["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
