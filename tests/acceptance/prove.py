"""``make prove CASE=... [PG=15|18]``: runs one process test and prints one JSON line. Exit status 0 only if ``ok``."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time

CASES = ("kills", "freezes", "overlap", "outage", "handlers", "failing-key")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make prove")
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--pg", type=int, choices=(15, 18), default=15)
    parser.add_argument("--seconds", type=float, help="length of the load, where the case has one")
    options = parser.parse_args()
    case = importlib.import_module(f"tests.acceptance.{options.case.replace('-', '_')}")
    began = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {line}", file=sys.stderr, flush=True)

    arguments = {} if options.seconds is None else {"seconds": options.seconds}
    found = case.prove(options.pg, tell, **arguments)
    print(json.dumps({"case": options.case, "pg": options.pg, "seconds": round(time.monotonic() - began, 1), **found}))
    return 0 if found["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
