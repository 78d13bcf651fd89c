"""The user's runtime directory, and the locks in it that say which member of a consumer group this process is [A16]."""

from __future__ import annotations

import fcntl
import os
import re
import stat
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from bothends.errors import ConfigError

__all__ = ["MEMBERS_MAX", "Membership", "directory"]

MEMBERS_MAX = 256
"""Members of one group on one host, as far as indexes are looked for."""
KEEP_S = 1.0
EXPECTED_S = 8.0
"""How long a member that fell silent may still be expected by its group: Kafka's smallest session timeout, and the second
between two signs of life."""


def directory(given: str | None = None) -> Path:
    """The directory, made if need be (mode 0700): ``given``, else ``$XDG_RUNTIME_DIR/bothends``, else
    ``/tmp/bothends-<uid>``. Raises ConfigError where it belongs to somebody else."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if given:
        path = Path(given)
    elif base and os.access(base, os.W_OK):
        path = Path(base) / "bothends"
    else:
        path = Path("/tmp") / f"bothends-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, parents=bool(given), exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise ConfigError(f"the runtime directory {path} cannot be used ({error}); set BOTHENDS_RUNTIME_DIR") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or (not given and found.st_mode & 0o022):
        raise ConfigError(f"{path} is not a directory of this user alone; remove it or set BOTHENDS_RUNTIME_DIR")
    return path


class Membership:
    """An index that no other process of this user and host holds in any of ``groups``; held for life.

    The kernel frees the locks when the process dies, however it dies. Among free indexes those come first that were held a
    moment ago, the one that has been dead for longest before the others: its member of the group is still expected, and is
    replaced before the broker gives it up. Then the lowest.
    """

    def __init__(self, groups: Sequence[str], where: Path, *, index: int | None = None) -> None:
        self._groups = sorted(set(groups))
        self._where = where
        self._files: list[IO[bytes]] = []
        if index is not None:
            self.index = index
            return
        for candidate in self._candidates():
            if self._take(candidate):
                self.index = candidate
                self.keep()
                return
        names = ", ".join(self._groups)
        raise ConfigError(f"{MEMBERS_MAX} members of {names} run on this host; give --member N to further ones")

    def keep(self) -> None:
        """Says that this process lives."""
        for file in self._files:
            os.utime(file.fileno())

    def run(self, stop: threading.Event, ready: threading.Event) -> None:
        """Says so each second, until ``stop``."""
        ready.set()
        while not stop.wait(KEEP_S):
            self.keep()

    def _candidates(self) -> list[int]:
        now = time.time()
        recent: dict[float, int] = {}
        for index in range(MEMBERS_MAX):
            try:
                last = self._path(self._groups[0], index).stat().st_mtime
            except (OSError, IndexError):
                continue
            if abs(now - last) < EXPECTED_S:
                recent[last] = index
        first = [recent[last] for last in sorted(recent)]
        return [*first, *(index for index in range(MEMBERS_MAX) if index not in first)]

    def _path(self, group: str, index: int) -> Path:
        return self._where / f"{re.sub(r'[^A-Za-z0-9._-]', '_', group)}.{index}.member"

    def _take(self, index: int) -> bool:
        for group in self._groups:
            file = open(self._path(group, index), "ab")  # noqa: SIM115 - held for life
            self._files.append(file)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.release()
                return False
        return True

    def release(self) -> None:
        for file in self._files:
            file.close()
        self._files.clear()
