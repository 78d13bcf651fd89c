"""Audit: what was written against what took effect. Pure SQL over the finished world, of PostgreSQL or SQLite."""

from __future__ import annotations

from typing import Any, Protocol


class Asked(Protocol):
    def ask(self, text: str) -> Any:
        """The first value of the first row."""

_LOST = """select count(*) from written w where not exists (select 1 from effects_log e where e.event_id = w.event_id)"""
_DOUBLE = "select coalesce(sum(n - 1), 0) from (select count(*) n from effects_log group by event_id) c"
_UNKNOWN = "select count(*) from effects_log e where not exists (select 1 from written w where w.event_id = e.event_id)"
_ORDER = """
    select count(*) from (
        select w.version, max(w.version) over (
            partition by w.key order by e.seq rows between unbounded preceding and 1 preceding) before
        from (select event_id, min(seq) seq from effects_log group by event_id) e join written w using (event_id)
    ) o where version < before"""


def audit(ground: Asked) -> dict[str, Any]:
    """``order_violations``: first effects of a key whose version is lower than one that took effect before."""
    return {
        "events": int(ground.ask("select count(*) from written")),
        "effects": int(ground.ask("select count(*) from effects_log")),
        "lost": int(ground.ask(_LOST)),
        "double_effects": int(ground.ask(_DOUBLE)),
        "never_written": int(ground.ask(_UNKNOWN)),
        "order_violations": int(ground.ask(_ORDER)),
    }


def clean(found: dict[str, Any]) -> bool:
    return all(found[name] == 0 for name in ("lost", "double_effects", "never_written", "order_violations"))
