"""The machine: processes, ports, folders, and what is said to whoever waits."""

import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parents[1]
HOST = "127.0.0.1"
STATE = Path(os.environ.get("BOTHENDS_SERVICES_DIR") or f"/var/tmp/bothends-{os.getuid()}")
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bothends"
START_S = 90
STOP_S = 30
ANSWER_S = 2.0


class Unavailable(Exception):
    """The service cannot be started here; the text says what to do."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run(command: list[str | Path], **options: Any) -> None:
    """Run to the end, quietly; on failure show the last lines of its output."""
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
    )
    if done.returncode:
        tail = "\n".join((done.stdout or "").splitlines()[-20:])
        raise Unavailable(f"`{shlex.join(map(str, command))}` failed with status {done.returncode}:\n{tail}")


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def ask(port: int, request: bytes, length: int) -> bytes:
    """Send one request and return the first `length` bytes of the answer; fewer when nobody is there."""
    try:
        with socket.create_connection((HOST, port), ANSWER_S) as connection:
            connection.sendall(request)
            answer = b""
            while len(answer) < length and (chunk := connection.recv(length - len(answer))):
                answer += chunk
            return answer
    except OSError:
        return b""


def port_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(ANSWER_S)
        return probe.connect_ex((HOST, port)) == 0


def alive(pid: int | None, mark: str) -> bool:
    """Whether the process runs and is the one meant: its command line contains `mark` (process ids are reused)."""
    if pid is None:
        return False
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z" and mark.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, IndexError):
        return False


def read_pid(path: Path) -> int | None:
    try:
        return int(path.read_text().split("\n", 1)[0])
    except (OSError, ValueError):
        return None
