"""Lock holder: the outage of a SQLite file. Holds its write lock for some seconds, as a stuck process would.

    python -m bothends.demo.lockholder SECONDS FILE [FILE...]        one file after another; prints each when it has it
"""

from __future__ import annotations

import sqlite3
import sys
import time

__all__ = ["hold", "main"]

_PATIENCE_S = 60.0


def hold(path: str, seconds: float) -> None:
    db = sqlite3.connect(path, isolation_level=None, timeout=_PATIENCE_S)
    try:
        db.execute("begin immediate")
        print(path, flush=True)
        time.sleep(seconds)
        db.execute("rollback")
    finally:
        db.close()


def main() -> None:
    for path in sys.argv[2:]:
        hold(path, float(sys.argv[1]))


if __name__ == "__main__":
    main()
