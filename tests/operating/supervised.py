"""What the supervisor's tests run as children: small, quick to start, with the failings that a task names.

``python -m tests.operating.supervised FD``; the task's ``log`` file gets a line per start: the process id.
"""

import os
import signal
import sys
import threading
import time
from typing import Any

from bothends.operating.beats import Link


def main() -> int:
    link = Link(int(sys.argv[1]))
    task: dict[str, Any] = link.task()
    if task.get("stand_by"):
        task = link.task(wait=True)
    with open(task["log"], "a", encoding="ascii") as log:
        log.write(f"{os.getpid()}\n")
    stop = threading.Event()
    if task["does"] != "ignores":
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
    else:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    alive = threading.Event()
    alive.set()
    link.beat(0.05, alive.is_set)
    match task["does"]:
        case "exits":
            return int(task["status"])
        case "dies_ready":
            link.ready()
            time.sleep(0.2)  # long enough for the word to be heard before the death
            os._exit(3)
        case "stalls":
            link.ready()
            alive.clear()
    link.ready()
    stop.wait(60)
    return 0


if __name__ == "__main__":
    sys.exit(main())
