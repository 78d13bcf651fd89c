"""Processes: how a worker names itself in the database, and whether the process behind such a name still runs.

A name is ``host:pid:started``: ``host`` with the number of its name space of process ids (containers may share a host's
name, not its processes), ``started`` the process's start in ticks since boot, since process ids come again.
"""

from __future__ import annotations

import os
import socket
import time
from functools import lru_cache
from pathlib import Path

__all__ = ["lives", "this_process"]

_HOST_MAX = 40


def this_process() -> str:
    """The name of this process; unlike that of any other that is or was on this host since boot."""
    return f"{_host()}:{os.getpid()}:{_started(os.getpid())}"


def lives(name: str) -> bool | None:
    """Whether the process of that name runs on this host; None for another host's, of which this one knows nothing."""
    host, _, rest = name.rpartition(":")[0].rpartition(":")
    if host != _host() or not rest.isdigit():
        return None
    return _started(int(rest)) == name.rpartition(":")[2]


def _host() -> str:
    return f"{socket.gethostname()[:_HOST_MAX]}/{_name_space()}"


@lru_cache(maxsize=1)
def _name_space() -> str:
    try:
        return os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:  # no /proc
        return "0"


_AT_IMPORT = str(int(time.monotonic()))


def _started(pid: int) -> str:
    """``0`` where there is no such process. Where the system has no ``/proc``: when this module was imported, for this
    process, and ``0`` for any other."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return _AT_IMPORT if pid == os.getpid() and not Path("/proc/self/stat").exists() else "0"
    return text.rpartition(")")[2].split()[19]
