"""The evidence that the models can fail: each mutant is caught within the examples that CI runs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis.stateful import run_state_machine_as_test

from tests.exploring.mutants import Mutant
from tests.models.mutants import OF_RELAYS, OF_WORKERS
from tests.models.relays import Relays
from tests.models.running import settings_for
from tests.models.workers import Workers


@pytest.mark.parametrize(
    ("machine", "mutant"), [(Relays, mutant) for mutant in OF_RELAYS] + [(Workers, mutant) for mutant in OF_WORKERS],
    ids=lambda value: str(value) if isinstance(value, Mutant) else value.__name__,
)
def test_the_mutant_is_caught(machine: Any, mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = getattr(mutant.owner, mutant.attribute, None)
    monkeypatch.setattr(mutant.owner, mutant.attribute, mutant.replace(plain), raising=False)
    with pytest.raises((AssertionError, LookupError)):
        run_state_machine_as_test(machine, settings=settings_for(150))
