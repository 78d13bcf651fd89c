"""The collector in a child: everything that was imported is out of its way, and an application's own setting stands."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bothends.operating.child import GC_DEFAULT, GC_THRESHOLDS


@pytest.mark.parametrize(("before", "after", "frozen"), [
    (GC_DEFAULT, GC_THRESHOLDS, True),
    ((1234, 5, 6), (1234, 5, 6), False),
    ((0, 10, 10), (0, 10, 10), False),
])
def test_thresholds(before: tuple[int, ...], after: tuple[int, ...], frozen: bool) -> None:
    script = (
        f"import gc; from bothends.operating.child import settle_memory; gc.set_threshold{before}; settle_memory(); "
        "print(gc.get_threshold(), gc.get_freeze_count() > 0)"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said.strip() == f"{after} {frozen}"
