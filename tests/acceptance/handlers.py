"""Handlers that break the rules, an event that is too large, a topic that is missing: each is named, and alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from bothends.brokers import open_broker
from tests.acceptance.audit import audit
from tests.acceptance.ground import Ground, ground
from tests.acceptance.load import write_one
from tests.acceptance.shop import Moved, SentElsewhere, service

LARGE = 5_000
LIMIT = 2_000


def prove(pg: int, tell: Callable[[str], None]) -> dict[str, Any]:
    rules = _rules(pg, tell)
    tell(f"rules: {rules}")
    place = _place(pg, tell)
    tell(f"place: {place}")
    return {"handlers": rules, "broker": place, "ok": rules["ok"] and place["ok"]}


def _rules(pg: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """Swallowed errors and handlers that commit, among 300 others."""
    with ground(pg, keys=64, told=tell, PROVE_ATTEMPTS="5") as here:
        here.relays(1)
        here.workers(2)
        notes = {10: "swallow", 20: "commit", 30: "commit-call", 40: "swallow"}
        with psycopg.connect(here.url) as c:
            for n in range(300):
                write_one(c, f"k{n % 64}", notes.get(n, ""), strict=False, roll_back=False, topic=here.topic)
        expected = 300 - 2
        here.until("the others are done", lambda: int(here.ask("select count(distinct event_id) from effects_log")) >= expected)
        here.until("the committers are dead", lambda: len(here.dead()) >= 2)
        here.stop(list(here.fleet.processes.values()))
        found, dead = audit(here), here.dead()
        reasons = sorted(reason for reason, _ in dead)
        named = here.ask("""select count(*) from bothends.parked p where strpos(history, 'swallowed') > 0""") or 0
        return {
            **found, "dead": [f"{reason}: {error}" for reason, error in dead], "still_parked": int(named),
            "ok": found["double_effects"] == 0 and found["lost"] == 2 and reasons == ["transaction_ended"] * 2,
        }


def _place(pg: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """One event above the broker's limit, and a topic that does not exist, among healthy ones."""
    with ground(pg, keys=64, told=tell) as here:
        _limit(here)
        here.relays(1)
        here.workers(1)
        with psycopg.connect(here.url) as c:
            for n in range(200):
                if n == 50:
                    service.outbox.add(c, Moved("large", "x" * LARGE), topic=here.topic)
                    service.outbox.add(c, Moved("large", "behind it"), topic=here.topic)
                if n % 20 == 0:
                    service.outbox.add(c, SentElsewhere(f"e{n % 40}", str(n)), topic=f"{here.topic}.elsewhere")
                write_one(c, f"k{n % 64}", "", strict=False, roll_back=False, topic=here.topic)
        healthy = here.until("the healthy ones are done", here.settled, timeout_s=60)
        here.until("the large one is dead", lambda: here.outbox_attempts()[1] == 1, timeout_s=60)
        held = here.ask("select count(*) from bothends.held where state = 'place' and attempts = 0")
        behind = here.ask("select count(*) from bothends.held where key = 'large' and state <> 'dead' and attempts = 0")
        attempts = here.ask("select attempts from bothends.held where state = 'dead'")
        broker = open_broker(here.broker)
        broker.create_topic(f"{here.topic}.elsewhere", 2)
        here.until("the held ones are published",
                   lambda: here.ask("select count(*) from bothends.held where state = 'place'") == 0, timeout_s=60)
        notes = _notes(here)
        broker.close()
        return {
            "events": int(here.ask("select count(*) from written")), "healthy_s": round(healthy, 2),
            "held_for_the_place": int(held), "attempts_of_the_large_one": int(attempts),
            "held_behind_it": int(behind), "arrived_elsewhere": len(notes),
            "ok": held == 10 and behind == 1 and attempts <= 1
            and all(ns == sorted(ns) for ns in notes.values()) and sum(map(len, notes.values())) == 10,
        }


def _limit(here: Ground) -> None:
    admin = AdminClient({"bootstrap.servers": here.broker.removeprefix("kafka://")})
    entry = ConfigEntry("max.message.bytes", str(LIMIT), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, here.topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(10)


def _notes(here: Ground) -> dict[bytes | None, list[int]]:
    """The notes in the other topic, by key, in log order."""
    import json

    broker = open_broker(here.broker)
    found: dict[bytes | None, list[int]] = {}
    for partition in range(2):
        for record in broker.read(f"{here.topic}.elsewhere", partition=partition, offset=0, max_records=100):
            assert record.value is not None
            found.setdefault(record.key, []).append(int(json.loads(record.value)["note"]))
    broker.close()
    return found
