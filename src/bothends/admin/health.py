"""Health: what needs somebody's attention now, each finding with its fix [M8]. Judges what ``status`` read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bothends.admin.amounts import amount

__all__ = ["Finding", "of_consumer", "of_outbox"]

WAITING_S = 60.0
"""An event that waits longer than this is a finding."""


class Finding(NamedTuple):
    where: str
    what: str
    fix: str


def of_outbox(name: str, status: Mapping[str, Any]) -> list[Finding]:
    """What is wrong with one outbox."""
    found = []
    oldest = status["oldest_age_s"] or 0.0
    if status["waiting"] and not status["relays"]:
        found.append(Finding(name, f"{amount(status['waiting'], 'event waits', 'events wait')} and no relay is alive",
                             "start `bothends relay`"))
    elif oldest > WAITING_S:
        found.append(Finding(name, f"the oldest event has waited {oldest:.0f} s", "`bothends status` shows the topic"))
    for relay in status["relays"]:
        if relay["state"] != "ok":
            found.append(Finding(name, f"relay {relay['name']} is {relay['state']}: {relay['detail']}",
                                 "see that the broker is up and reachable; nothing is lost meanwhile"))
    for topic in status["topics"]:
        if topic.get("place_away"):
            found.append(Finding(name, f"topic {topic['topic']} is missing, denied or without a leader",
                                 "`bothends topics check` says which; `bothends topics create` makes it"))
        if topic["dead"]:
            found.append(Finding(name, f"{amount(topic['dead'], 'dead event')} of topic {topic['topic']}",
                                 "`bothends dead list --outbox`"))
    return found


def of_consumer(status: Mapping[str, Any]) -> list[Finding]:
    """What is wrong with one consumer."""
    name, owner = status["consumer"], status["owner"] or "nobody: give owner= to the consumer"
    found = []
    if status["dead"]:
        found.append(Finding(
            name, f"{amount(status['dead'], 'dead letter')} of {amount(status['fingerprints'], 'kind')}, the oldest "
            f"{status['oldest_dead_age_s'] or 0:.0f} s old (owner: {owner})",
            f"`bothends dead list --group fingerprint --consumer {name}`"))
    if status["held_keys"]:
        found.append(Finding(name, f"{amount(status['held_keys'], 'key is', 'keys are')} held behind a dead letter",
                             f"`bothends keys list --consumer {name}`"))
    if status["schema_keys"]:
        waits = amount(status["schema_keys"], "key waits", "keys wait")
        found.append(Finding(name, f"{waits} for a worker that knows a newer event version", "deploy the newer worker"))
    if status["paused"]:
        found.append(Finding(name, "the consumer is paused", f"`bothends consumers resume {name}`"))
    return found


def as_json(findings: Sequence[Finding]) -> list[dict[str, str]]:
    return [finding._asdict() for finding in findings]
