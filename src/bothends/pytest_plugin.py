"""The plug-in for pytest: the fixture ``survives_every_crash`` and the marker ``explore``.

``pytest_plugins = ["bothends.pytest_plugin"]`` in ``conftest.py`` loads it; nothing else is imported until the fixture is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

if TYPE_CHECKING:
    from bothends.service import Service
    from bothends.testing.exploring.reports import Report

__all__ = ["Survives", "survives_every_crash"]

Survives: TypeAlias = "Callable[..., Report]"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "explore(depth=1, budget=2000, seed=0): how survives_every_crash explores in this test",
    )


@pytest.fixture
def survives_every_crash(request: pytest.FixtureRequest) -> Survives:
    """``survives_every_crash(service, events, start=..., invariant=...)`` explores, and fails the test with the story of
    what was found. It takes what ``bothends.testing.explore`` takes, with the marker's options before them, and returns the
    report."""
    marker = request.node.get_closest_marker("explore")
    marked = dict(marker.kwargs) if marker is not None else {}

    def survives(service: Service | Sequence[Service], events: Sequence[object] = (), **options: Any) -> Report:
        from bothends.testing import explore

        report = explore(service, events, **{"name": request.node.name, **marked, **options})
        if not report.ok:
            pytest.fail(str(report), pytrace=False)
        return report

    return survives
