"""Result: what a run has shown, as it is printed and judged."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from bothends.demo.audit import Findings

__all__ = ["Result"]


@dataclass
class Result:
    """The keys of ``--json``. ``deliveries``, ``duplicates`` and ``conflicts`` are sums over what the workers said of
    themselves: lower bounds, for a killed worker says no more."""

    events: int = 0
    """Orders placed."""
    published: int = 0
    """Records in the topics."""
    deliveries: int = 0
    duplicates: int = 0
    conflicts: int = 0
    parked: int = 0
    dead: int = 0
    lost: int = 0
    double_effects: int = 0
    order_violations: int = 0
    kills: int = 0
    acks_lost: int = 0
    outages: int = 0
    seconds: float = 0.0
    events_per_second: float = 0.0
    ok: bool = False
    unexpected: int = 0
    wrong_sums: int = 0
    charges: int = 0
    run: str = ""
    seed: int = 0
    sources: dict[str, int] = field(default_factory=dict)
    """How often a relay has begun to read where, as far as they said so: ``poll``, ``wal``, ``message``, ``standby``."""
    problems: list[str] = field(default_factory=list)
    """Why it is not ok, and what was not done, in words."""

    def take(self, findings: Findings) -> None:
        for name in ("lost", "double_effects", "order_violations", "unexpected", "wrong_sums"):
            setattr(self, name, getattr(findings, name))
        self.problems += findings.examples

    def judge(self, *, settled: bool) -> None:
        """``ok`` only where everything settled and nothing of these is left."""
        wrong = (
            self.lost, self.double_effects, self.order_violations, self.conflicts, self.parked, self.dead,
            self.unexpected, self.wrong_sums,
        )
        self.ok = settled and not any(wrong)

    def to_json(self) -> dict[str, object]:
        return asdict(self)
