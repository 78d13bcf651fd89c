"""Health: what needs somebody's attention now, each finding with its fix [M8]. Judges what ``status`` read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bothends.admin.amounts import amount, size
from bothends.core.sources import ON_THE_WAY

__all__ = ["Finding", "of_consumer", "of_outbox"]

WAITING_S = 60.0
"""An event that waits longer than this is a finding."""
RETAINED_BYTES = 16 * 1024 * 1024
"""What a slot of rows may hold back with no relay alive before it is a finding: one segment of the log."""

ALLOWS = (
    ("wal_level", "set wal_level = logical on the server and restart it"),
    ("no REPLICATION attribute", "let a superuser run `alter role ... replication` for the relay's role"),
    ("max_replication_slots", "raise max_replication_slots and restart the server, or drop slots that nobody reads"),
    ("max_wal_senders", "raise max_wal_senders and restart the server"),
    ("told to read elsewhere", "give all relays of this outbox the same relay_source"),
    ("is a stand-by", "give relays the URL of the primary"),
    ("older than PostgreSQL", "upgrade the server, or set relay_source = poll"),
    ("pg_hba.conf", "let the relay's role in with a line in pg_hba.conf, and reload the server"),
    ("somebody is making the slot", "end the transactions that it waits for, or wait"),
    ("waits for open transactions", "end long transactions (pg_stat_activity), or wait"),
    ("WAL budget", "see that the broker takes events as fast as they come, or raise wal_budget_mb"),
)
"""What to do about the reasons for which a relay polls, by a part of them."""


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
        if relay["wants"] in ("wal", "message") and relay["source"] == "poll":
            found += _polls(name, relay)
    for slot in status["slots"]:
        found += _slot(name, slot, status["relays"])
    for lost in status["slots_lost"]:
        found.append(Finding(
            name, f"slot {lost['slot']} was lost ({lost['why']}): messages that were added between {lost['after']} and "
            f"{lost['until']} in the log, before {lost['at']}, may not have been published",
            "add what is missing again, from the business rows; this stays for seven days"))
    for topic in status["topics"]:
        if topic.get("place_away"):
            found.append(Finding(name, f"topic {topic['topic']} is missing, denied or without a leader",
                                 "`bothends topics check` says which; `bothends topics create` makes it"))
        if topic["dead"]:
            found.append(Finding(name, f"{amount(topic['dead'], 'dead event')} of topic {topic['topic']}",
                                 "`bothends dead list --outbox`"))
    return found


def _polls(name: str, relay: Mapping[str, Any]) -> list[Finding]:
    """A relay that was told to read the log, and does not. While another one reads, did a moment ago, or is to blame, it is
    none: who is to read says what is wrong."""
    reason = relay["reason"]
    if reason in ON_THE_WAY:
        return []
    waits = "; what is added waits in the log" if relay["wants"] == "message" else ""
    fix = next((fix for part, fix in ALLOWS if part in reason),
               "see to what it says: the server must allow reading the log (wal_level = logical, a role with REPLICATION, a "
               "free slot and WAL sender, a line in pg_hba.conf)")
    return [Finding(name, f"relay {relay['name']} polls, though relay_source is {relay['wants']}: {reason}{waits}",
                    f"{fix}; the relay tries again by itself")]


def _slot(name: str, slot: Mapping[str, Any], relays: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """What is wrong with a slot: the server lets go of it, or it holds back what nobody reads. ``relays``: those that live."""
    which, retained = slot["slot"], slot["retained_bytes"] or 0
    if slot["wal_status"] == "missing" or slot["temporary"]:
        return []  # what is not there holds nothing back; a temporary one goes with the relay that reads it
    messages = slot["carries"] == "messages"
    if slot["wal_status"] == "unreserved":
        return [Finding(
            name, f"slot {which} is unreserved: it holds back more than max_slot_wal_keep_size; the server lets go of it at "
            "its next checkpoint", "see that a relay reads it: what it has read by then is not lost")]
    if slot["wal_status"] == "lost":
        return [Finding(
            name, f"slot {which} is lost: it held back more than max_slot_wal_keep_size"
            + (", and the messages that were not read are gone" if messages else ""),
            "see that a relay is alive: it makes a new slot, and what is in the table it finds there")]
    drop = f"select pg_drop_replication_slot('{which}')" + (" (what was not read is lost then)" if messages else "")
    if not relays:
        return [] if retained < RETAINED_BYTES and not messages else [Finding(
            name, f"no relay is alive, and slot {which} holds back {size(retained)} of the write-ahead log"
            + (", with the messages in it" if messages else ""),
            f"start `bothends relay`; if none is to run any more: {drop}")]
    # However little it is: it only grows.
    if ("message" if messages else "wal") not in [relay["wants"] for relay in relays]:
        drops = "relay " + " or ".join(str(relay["name"]) for relay in relays[:3]) + " drops it"
        goes = ("start a relay with relay_source = message; what is added as a message waits until then" if messages
                else f"the table has everything, and {drops} when it holds back more than wal_budget_mb")
        return [Finding(
            name, f"no live relay reads slot {which}, which has {slot['carries']} and holds back {size(retained)} of the log",
            f"{goes}; if none is to read it any more: {drop}")]
    return []


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
