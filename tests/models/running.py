"""How long models run: a few examples, always the same, in CI; many new ones with ``HYPOTHESIS_PROFILE=long``."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
LONGER = int(os.environ.get("MODELS_LONGER", "50"))
"""By how much more examples the long profile has."""


def settings_for(examples: int, *, steps: int = 40) -> settings:
    phases = [Phase.generate, Phase.shrink] if LONG else [Phase.generate]  # to shrink a history takes minutes
    return settings(
        max_examples=examples * LONGER if LONG else examples, stateful_step_count=steps, derandomize=not LONG, deadline=None,
        database=None, phases=phases, suppress_health_check=list(HealthCheck), print_blob=False,
    )
