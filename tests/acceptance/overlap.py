"""Overlapping transactions on one key [P4]: the consumer sees the versions of each key in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.acceptance.audit import audit, clean
from tests.acceptance.ground import Ground, ground

KEYS, WRITERS, TRANSACTIONS = 10, 8, 20_000


def prove(pg: int, tell: Callable[[str], None], transactions: int = TRANSACTIONS) -> dict[str, Any]:
    """State first and then ``add``; then ``add`` first, with ``strict=True``."""
    found: dict[str, Any] = {}
    ok = True
    for name, options in (("state_first", {}), ("add_first_strict", {"strict": True})):
        with ground(pg, keys=KEYS, told=tell) as here:
            one = _run(here, transactions, options)
        tell(f"{name}: {one}")
        found[name] = one
        ok = ok and clean(one) and one["events"] > 0.9 * transactions
    return {**found, "ok": ok}


def _run(here: Ground, transactions: int, options: dict[str, Any]) -> dict[str, Any]:
    here.relays(2)
    here.workers(2)
    writers = here.writers(WRITERS, keys=KEYS, count=transactions // WRITERS, linger=0.05, **options)
    here.until(
        "writers are done",
        lambda: all(w.running is not None and w.running.poll() == 0 for w in writers), timeout_s=600, tend=False,
    )
    here.until("everything has settled", here.settled)
    return audit(here)
