"""Checking: the cases of an application, explored one after another."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Literal

from bothends.errors import ConfigError
from bothends.service import Service
from bothends.testing.cases import Case, cases_in
from bothends.testing.exploring.exploration import BUDGET, explore
from bothends.testing.exploring.reports import Report

__all__ = ["check", "cases_of"]


def cases_of(app: str, services: Sequence[Service]) -> list[Case]:
    """The cases in the module of ``app``, in those that its services include, and in ``<app>.cases`` where the app is a
    package. Raises ConfigError where there is none."""
    name = app.partition(":")[0]
    modules: list[ModuleType] = [sys.modules[name]]
    modules += [importlib.import_module(included) for service in services for included in service.include]
    if hasattr(sys.modules[name], "__path__") and importlib.util.find_spec(f"{name}.cases") is not None:
        modules.append(importlib.import_module(f"{name}.cases"))
    found = cases_in(modules)
    if not found:
        raise ConfigError(
            f"{app} has no case to check; write a function that is given a session for the start state and returns the "
            f"events, under @bothends.testing.case, in {name} or in a module of its include"
        )
    return found


def check(
    app: str, services: Sequence[Service], cases: Sequence[Case], *, depth: Literal[1, 2] = 1, budget: int = BUDGET,
    seed: int = 0, database: str | None = None,
) -> Iterator[Report]:
    """Explores each case; a report each, named after it."""
    for one in cases:
        yield explore(
            services, start=one.function, invariant=one.invariant, depth=depth, budget=budget, seed=seed,
            database=database, name=one.name, modules=[app.partition(":")[0], one.module],
        )
