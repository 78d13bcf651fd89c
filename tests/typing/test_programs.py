"""mypy and pyright, both strict, over the programs of users: right ones pass, wrong ones are refused where they say."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "programs"
WRONG = "must_not_type_check.py"
WRONG_BATCHES = "wrong_batches.py"
USERS = [
    "drivers.py", "events.py", "fastapi_orders.py", "import_with_savepoints.py", "inventory.py", "models.py", "payments.py",
    "test_inventory.py", "two_consumers.py", WRONG, WRONG_BATCHES,
]
Problems = dict[str, dict[int, str]]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The programs as they lie in a user's folder."""
    for name in USERS:
        shutil.copy(PROGRAMS / name, tmp_path / name)
    shutil.copy(Path(__file__).with_name("right.py"), tmp_path / "right.py")
    return tmp_path


def mypy(project: Path) -> Problems:
    found = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent", "--no-error-summary",
         "--cache-dir", str(ROOT / ".mypy_cache" / "programs"), "."],
        cwd=project, env={**os.environ, "MYPYPATH": str(ROOT / "src")}, capture_output=True, text=True, timeout=300,
    )
    assert found.returncode in (0, 1), found.stderr
    problems: Problems = {}
    for line in found.stdout.splitlines():
        matched = re.fullmatch(r"(.+?):(\d+): error: (.*)", line)
        if matched is not None:
            problems.setdefault(matched[1], {}).setdefault(int(matched[2]), matched[3])
        else:
            assert ": note: " in line, line
    return problems


def pyright(project: Path) -> Problems:
    (project / "pyrightconfig.json").write_text(json.dumps({
        "typeCheckingMode": "strict", "extraPaths": [str(ROOT / "src")], "pythonVersion": "3.11",
    }))
    found = subprocess.run(
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", "-p", str(project)],
        cwd=project, capture_output=True, text=True, timeout=300,
    )
    assert found.returncode in (0, 1), found.stdout + found.stderr
    problems: Problems = {}
    for entry in json.loads(found.stdout)["generalDiagnostics"]:
        lines = problems.setdefault(Path(entry["file"]).name, {})
        lines.setdefault(entry["range"]["start"]["line"] + 1, entry["message"])
    return problems


@pytest.fixture(params=[mypy, pyright])
def checked(request: pytest.FixtureRequest, project: Path) -> Problems:
    check: Callable[[Path], Problems] = request.param
    return check(project)


def refused_by_its_comments(lines: list[str]) -> set[int]:
    return {number for number, line in enumerate(lines, 1) if re.search(r"# \d ", line)}


def below_its_decorator(number: int, lines: list[str]) -> int:
    """A decorator's complaint about its function counts as the function's."""
    while lines[number - 1].startswith("@"):
        number += 1
    return number


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_right_programs_pass_and_wrong_ones_are_refused_where_they_say(checked: Problems) -> None:
    for name, count in ((WRONG, 5), (WRONG_BATCHES, 7)):
        lines = (PROGRAMS / name).read_text().splitlines()
        refused = checked.pop(name, {})
        assert {below_its_decorator(number, lines) for number in refused} == refused_by_its_comments(lines)
        assert len(refused_by_its_comments(lines)) == count
    assert checked == {}
