"""Names: what a run is called in the systems that it shares with others."""

from __future__ import annotations

import secrets

__all__ = ["CONFIRMED", "CONSUMERS", "SERVICES", "TOPICS", "new_run", "schema_of", "topic_of"]

SERVICES = ("orders", "inventory", "payments", "analytics")
TOPICS = ("orders", "payments")
CONFIRMED = "analytics.confirmations"
CONSUMERS = {
    "inventory.stock": "orders",
    "payments.charge": "orders",
    "analytics.revenue": "orders",
    CONFIRMED: "payments",
}
"""Each consumer and the topic that it reads."""


def new_run() -> str:
    """Short enough for a prefix of consumer groups (20 characters)."""
    return f"demo-{secrets.token_hex(4)}"


def topic_of(run: str, topic: str) -> str:
    return f"{run}.{topic}"


def schema_of(run: str, service: str) -> str:
    """The service's schema on PostgreSQL."""
    return f"{run}_{service}".replace("-", "_")
