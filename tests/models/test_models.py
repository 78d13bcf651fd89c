"""The product survives its models."""

from __future__ import annotations

from hypothesis.stateful import run_state_machine_as_test

from tests.models.relays import Relays
from tests.models.running import settings_for


def test_several_relays_keep_the_promises() -> None:
    run_state_machine_as_test(Relays, settings=settings_for(60))
