"""Fetching: each peer's own Python environment or folder of jars, made once per machine and pin."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import zipfile
from collections.abc import Sequence
from pathlib import Path

from bench.peers.peer import PROGRAMS, Unavailable

__all__ = ["from_jar", "jars", "python_with", "requirement"]

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bothends" / "peers"
PYTHONS = ("3.13", "3.14")
"""What runs the peers from PyPI: walbox wants 3.13 at least."""
_FETCH_S = 900
_TAIL = 5


def _run(command: Sequence[str | Path]) -> None:
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_FETCH_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"`{words[0]}` did not run: {error}") from error
    if done.returncode:
        raise Unavailable(f"`{words[0]}` failed: " + " / ".join(done.stdout.splitlines()[-_TAIL:])[-600:])


def _place(name: str, *sources: Path) -> tuple[Path, bool]:
    """A folder named by what it is made from, and whether it is complete."""
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    folder = CACHE / name / digest
    done = (folder / "complete").exists()
    if not done:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    return folder, done


def _interpreter() -> Path:
    home = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for version in PYTHONS:
        for found in (shutil.which(f"python{version}"), *sorted(home.glob(f"versions/{version}*/bin/python"))):
            if found and subprocess.run([found, "-c", ""], capture_output=True).returncode == 0:
                return Path(found)
    raise Unavailable(f"there is no Python {' or '.join(PYTHONS)} on this machine")


def requirement(name: str, package: str) -> str:
    """The pinned version of ``package`` in ``programs/NAME.txt``."""
    pins = dict(line.split("==") for line in (PROGRAMS / f"{name}.txt").read_text().splitlines() if "==" in line)
    return pins[package]


def python_with(name: str) -> Path:
    """The interpreter of an environment with what ``programs/NAME.txt`` pins."""
    pins = PROGRAMS / f"{name}.txt"
    folder, done = _place(name, pins)
    python = folder / "bin" / "python"
    if not done:
        _run([_interpreter(), "-m", "venv", folder])
        _run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "-r", pins])
        (folder / "complete").touch()
    return python


def jars(name: str, *sources: str) -> Path:
    """The folder with the jars of ``programs/NAME.xml``, and with ``sources`` compiled against them in ``classes``."""
    pom, code = PROGRAMS / f"{name}.xml", [PROGRAMS / source for source in sources]
    folder, done = _place(name, pom, *code)
    if not done:
        for program in ("java", "mvn", *(["javac"] if code else [])):
            if not shutil.which(program):
                raise Unavailable(f"`{program}` is not installed (Java 17 and Maven are needed)")
        _run(["mvn", "-q", "-B", "-f", pom, "org.apache.maven.plugins:maven-dependency-plugin:copy-dependencies",
              "-DincludeScope=runtime", f"-DoutputDirectory={folder / 'libs'}"])
        if code:
            _run(["javac", "-parameters", "-cp", f"{folder / 'libs'}/*", "-d", folder / "classes", *code])
        (folder / "complete").touch()
    return folder


def from_jar(jar: Path, name: str) -> bytes:
    """A file that a product ships in its jar."""
    with zipfile.ZipFile(jar) as opened:
        return opened.read(name)
