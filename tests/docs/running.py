"""Running: does what a page tells its reader to do, in the page's order, in an empty directory.

- A block whose first line names a file (``# shop.py``) is written to it.
- Other Python blocks run one after the other in one namespace; those that define tests are given to pytest.
- ``sh`` blocks run in bash; variables and the directory last to the end of the page.
- A ``text`` block is what the block above it prints, ``...`` standing for anything. Commands that only read are repeated
  until they print it, since events take their time.
- Commands that do not end (``bothends run``) run until the section ends, then SIGTERM must end them well.
- What would change the reader's machine (pip, make, docker, git) is checked, not done.
"""

from __future__ import annotations

import doctest
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.docs.pages import ROOT, Block

__all__ = ["PageError", "Reader"]

UNTIL_S = 30.0
COMMAND_S = 60.0
READING = frozenset({
    "bothends status", "bothends health", "bothends trace", "bothends config", "bothends dead list", "bothends dead show",
    "bothends keys list", "bothends keys show", "bothends schema status", "bothends check", "python show.py",
})
_READY: dict[str, tuple[str, ...]] = {
    "bothends run": ('"ready","role":"relay"', '"ready","role":"work"'),
    "bothends relay": ('"ready","role":"relay"',),
    "bothends work": ('"ready","role":"work"',),
    "uvicorn": ("Uvicorn running on",),
    "python gateway.py": ("listening",),
}
"""Commands that do not end, and what each prints when it is ready."""
_SESSION = """
import json, sys
namespace = {"__name__": "page"}
for line in sys.stdin:
    where, text = json.loads(line)
    exec(compile(text, where, "exec"), namespace)
    print("\\x00", flush=True)
"""


class PageError(AssertionError):
    """A page tells what is not so."""

    def __init__(self, block: Block, what: str, output: str = "") -> None:
        super().__init__(f"{block}: {what}\n{output[-4000:]}")


class _Running:
    """A command that does not end."""

    def __init__(self, block: Block, command: str, directory: Path, environment: Mapping[str, str]) -> None:
        self.block, self.command = block, command
        self.lines: list[str] = []
        self._more = threading.Condition()
        self.process = subprocess.Popen(
            shlex.split(command), cwd=directory, env=dict(environment), text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._more:
                self.lines.append(line)
                self._more.notify_all()
        with self._more:
            self._more.notify_all()

    def wait_for(self, marks: Sequence[str]) -> None:
        def ready() -> bool:
            return not self._reader.is_alive() or all(any(mark in line for line in self.lines) for mark in marks)

        with self._more:
            self._more.wait_for(ready, COMMAND_S)
            missing = [mark for mark in marks if not any(mark in line for line in self.lines)]
        if missing:
            self.kill()
            raise PageError(self.block, f"`{self.command}` was not ready: {missing} missing", "".join(self.lines))

    def stop(self) -> None:
        self.process.terminate()
        try:
            status = self.process.wait(COMMAND_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise PageError(self.block, f"`{self.command}` did not end on SIGTERM", "".join(self.lines)) from None
        self._reader.join(5)
        ours = self.command.startswith("bothends")
        if status != 0 and (ours or status not in (-signal.SIGTERM, 128 + signal.SIGTERM)):
            raise PageError(self.block, f"`{self.command}` ended with {status}", "".join(self.lines))

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._reader.join(5)


class Reader:
    """Follows one page. ``replace`` maps what the page writes (URLs, topics) to what is there; ``hide`` is taken out of
    what commands print, before it is compared."""

    def __init__(
        self, directory: Path, *, replace: Mapping[str, str] | None = None, hide: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self._replace = {**(replace or {}), "8000": str(_free_port()), "8001": str(_free_port())}
        self._hide = [*hide]
        own = {k: v for k, v in os.environ.items() if not k.startswith("BOTHENDS_")}
        self._runtime = tempfile.TemporaryDirectory(prefix="bothends-")  # sockets lie there: pytest's paths are too long
        path = f"{Path(sys.executable).parent}:{own['PATH']}"
        self._environment = {
            **own, "PATH": path, "PYTHONPATH": "", "PYTHONUNBUFFERED": "1", "COLUMNS": "200", "NO_COLOR": "1",
            "BOTHENDS_RUNTIME_DIR": self._runtime.name, **(environment or {}),
        }
        self._cwd = directory
        self._running: list[_Running] = []
        self._session: subprocess.Popen[str] | None = None
        self._tests = 0

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._running:
            one.kill()
        if self._session is not None:
            self._session.kill()
            self._session.communicate()
        self._runtime.cleanup()

    def read(self, page: Sequence[Block]) -> None:
        """Follows the page to its end. Raises PageError at the first thing that is not as it says."""
        section = 0
        for n, block in enumerate(page):
            if block.section != section:
                self._stop_all()
                section = block.section
            shown = page[n + 1] if n + 1 < len(page) and page[n + 1].language == "text" else None
            if shown is not None and shown.section != section:
                shown = None
            if block.language == "text":
                continue
            self._follow(block, shown)
        self._stop_all()

    def _follow(self, block: Block, shown: Block | None) -> None:
        text = self._there(block.text)
        if block.file is not None:
            path = self._cwd / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        elif block.language == "sh":
            self._shell(block, text, shown)
        elif block.language == "python":
            self._check(block, shown, self._python(block, text))
        else:
            raise PageError(block, f"nobody knows how to run {block.language!r}: use python, sh or text, or name a file")

    def _there(self, text: str) -> str:
        for written, there in self._replace.items():
            text = re.sub(rf"(?<![\w.-]){re.escape(written)}(?![\w-])", there.replace("\\", r"\\"), text)
        return text

    # Shell

    def _shell(self, block: Block, text: str, shown: Block | None) -> None:
        lines = [line for line in text.splitlines() if not _only_checked(block, line)]
        commands = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
        if not commands:
            return
        if len(commands) == 1 and (marks := _never_ends(commands[0])) is not None:
            command = re.sub(r"\s+#.*$", "", commands[0]).strip().removesuffix("&").strip()
            started = _Running(block, command, self._cwd, self._environment)
            self._running.append(started)
            started.wait_for(marks)
            return
        for command in commands:
            if _never_ends(command) is not None:
                raise PageError(block, f"`{command}` does not end: give it a block of its own")
        reading = all(_starts(command, READING) for command in commands)
        script = "\n".join(lines)
        if shown is None or not reading:
            self._check(block, shown, self._bash(block, script))
            return
        deadline = time.monotonic() + UNTIL_S
        while True:
            output = self._bash(block, script, may_find=True)
            if self._matches(shown, output):
                return
            if time.monotonic() > deadline:
                self._check(block, shown, output)
            time.sleep(0.1)  # polls what other processes do; nothing signals a reader of the page either

    def _bash(self, block: Block, script: str, *, may_find: bool = False) -> str:
        """Runs it; exports and the directory are kept. ``may_find``: findings (exit 1) are no failure."""
        after = self.directory / ".after"
        done = subprocess.run(
            ["bash", "-eu", "-o", "pipefail", "-c", f"{script}\nenv -0 > {after}; pwd > {after}.pwd"], cwd=self._cwd,
            env=self._environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=COMMAND_S, check=False,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode == 1 and may_find:
            return done.stdout
        if done.returncode:
            raise PageError(block, f"exit status {done.returncode}", done.stdout)
        pairs = (pair.split("=", 1) for pair in after.read_text("utf-8").split("\0") if "=" in pair)
        self._environment = dict(pair for pair in pairs if pair[0] != "_")
        self._cwd = Path(after.with_name(".after.pwd").read_text("utf-8").strip())
        return done.stdout

    # Python

    def _python(self, block: Block, text: str) -> str:
        if re.search(r"^(async )?def test_", text, re.MULTILINE):
            return self._pytest(block, text)
        if self._session is None:
            self._session = subprocess.Popen(
                [sys.executable, "-c", _SESSION], cwd=self._cwd, env=self._environment, text=True, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )
        return self._exec(block, text)

    def _exec(self, block: Block, text: str) -> str:
        session = self._session
        assert session is not None
        assert session.stdin is not None
        assert session.stdout is not None
        session.stdin.write(json.dumps([str(block), text]) + "\n")
        session.stdin.flush()
        lines: list[str] = []
        for line in session.stdout:
            if line == "\0\n":
                return "".join(lines)
            lines.append(line)
        self._session = None
        raise PageError(block, "the block raises", "".join(lines))

    def _pytest(self, block: Block, text: str) -> str:
        self._tests += 1
        file = self._cwd / f"test_block_{self._tests}.py"
        file.write_text(text, "utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto", file.name],
            cwd=self._cwd, env=self._environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=COMMAND_S, check=False,
        )
        if done.returncode:
            raise PageError(block, "its tests fail", done.stdout)
        return done.stdout

    # Output

    def _matches(self, shown: Block, output: str) -> bool:
        for secret in self._hide:
            output = output.replace(secret, "")
        for written, there in self._replace.items():
            output = output.replace(there, written)
        options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        return doctest.OutputChecker().check_output(shown.text.strip() + "\n", output.strip() + "\n", options)

    def _check(self, block: Block, shown: Block | None, output: str) -> None:
        if shown is not None and not self._matches(shown, output):
            raise PageError(shown, f"this is not what {block} prints, which is:", output)

    def _stop_all(self) -> None:
        running, self._running = self._running, []
        try:
            while running:
                running.pop().stop()
        finally:
            for one in running:
                one.kill()


def _starts(command: str, beginnings: frozenset[str] | Mapping[str, object]) -> str | None:
    words = command.split()
    for n in (3, 2, 1):
        if (beginning := " ".join(words[:n])) in beginnings:
            return beginning
    return None


def _never_ends(command: str) -> tuple[str, ...] | None:
    found = _starts(command, _READY)
    return _READY[found] if found is not None else None


def _only_checked(block: Block, line: str) -> bool:
    """Whether the line is checked instead of run. Raises PageError where it cannot work."""
    check = _CHECKS.get(line.split(maxsplit=1)[0]) if line.strip() else None
    if check is not None and (wrong := check(shlex.split(line, comments=True))) is not None:
        raise PageError(block, f"`{line}`: {wrong}")
    return check is not None


def _check_pip(words: list[str]) -> str | None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for word in words[2:]:
        found = re.fullmatch(r"bothends(?:\[([a-z,]+)\])?", word)
        for extra in (found.group(1) or "").split(",") if found else ():
            if extra and extra not in project["optional-dependencies"]:
                return f"there is no extra {extra!r}"
    return None


def _check_make(words: list[str]) -> str | None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    wrong = [word for word in words[1:] if "=" not in word and word not in targets]
    return f"no such task: {wrong[0]}" if wrong else None


def _check_docker(words: list[str]) -> str | None:
    return None if words[1] == "compose" and (ROOT / "compose.yaml").exists() else "only docker compose is used"


def _check_nothing(words: list[str]) -> str | None:
    return None


_CHECKS: dict[str, Callable[[list[str]], str | None]] = {
    "pip": _check_pip, "make": _check_make, "docker": _check_docker, "git": _check_nothing, "createdb": _check_nothing,
}


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
