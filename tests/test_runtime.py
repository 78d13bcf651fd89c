"""The runtime directory is the user's alone; an index of a group is held by one process at a time."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bothends.errors import ConfigError
from bothends.runtime import Membership, directory

HOLD = """
import sys
from pathlib import Path
from bothends.runtime import Membership
membership = Membership(sys.argv[2:], Path(sys.argv[1]))
print(membership.index, flush=True)
sys.stdin.read()
"""


def test_it_is_made_for_the_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    found = directory()
    assert found == tmp_path / "bothends"
    assert found.stat().st_mode & 0o777 == 0o700
    assert directory(str(tmp_path / "a" / "b")).is_dir()


def test_one_that_others_can_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "bothends").mkdir()
    (tmp_path / "bothends").chmod(0o777)
    with pytest.raises(ConfigError, match="this user alone"):
        directory()
    (tmp_path / "bothends").rmdir()
    (tmp_path / "elsewhere").mkdir()
    os.symlink(tmp_path / "elsewhere", tmp_path / "bothends")
    with pytest.raises(ConfigError, match="this user alone"):
        directory()
    with pytest.raises(ConfigError, match="BOTHENDS_RUNTIME_DIR"):
        directory("/proc/nothing/can/be/made/here")


def test_the_lowest_free_index_of_all_groups(tmp_path: Path) -> None:
    first = Membership(["a", "b"], tmp_path)
    second = Membership(["b", "c"], tmp_path)
    third = Membership(["c"], tmp_path)
    assert (first.index, second.index, third.index) == (0, 1, 0)
    first.release()
    again = Membership(["a", "b"], tmp_path)
    assert again.index == 0
    given = Membership(["a"], tmp_path, index=7)
    assert given.index == 7
    for one in (second, third, again, given):
        one.release()


def test_a_dead_process_frees_its_index_at_once(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path), "group"], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "0\n"
        mine = Membership(["group"], tmp_path)
        assert mine.index == 1
        holder.kill()
        holder.wait(10)
    after = Membership(["group"], tmp_path)
    assert after.index == 0
    mine.release()
    after.release()


def test_strange_group_names_make_no_paths(tmp_path: Path) -> None:
    one = Membership(["../../etc/x"], tmp_path)
    assert [path.parent for path in tmp_path.iterdir()] == [tmp_path]
    one.release()


def test_a_member_that_died_a_moment_ago_is_replaced_first(tmp_path: Path) -> None:
    """Its group still expects it; the one that is dead for longest is given up soonest."""
    held = [Membership(["a"], tmp_path) for _ in range(4)]
    for index, silent_s in ((1, 3.0), (2, 1.0), (3, 600.0)):
        held[index].release()
        at = time.time() - silent_s
        os.utime(tmp_path / f"a.{index}.member", (at, at))
    again = [Membership(["a"], tmp_path) for _ in range(3)]
    assert [one.index for one in again] == [1, 2, 3]
    silent = tmp_path / "a.0.member"
    held[0].release()
    os.utime(silent, (time.time() - 600, time.time() - 600))
    again[2].release()
    expected = Membership(["a"], tmp_path)
    assert expected.index == 3, "the lowest has long been given up"
    again[2] = expected
    for one in [held[0], *again]:
        one.release()


def test_a_member_says_that_it_lives(tmp_path: Path) -> None:
    member = Membership(["a"], tmp_path)
    os.utime(tmp_path / "a.0.member", (0, 0))
    member.keep()
    assert time.time() - (tmp_path / "a.0.member").stat().st_mtime < 60
    member.release()
