"""Numbers: what ``status`` and ``health`` read, from every database and broker that answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bothends.admin.status import consumer_status, outbox_status
from bothends.cli.desk import Desk
from bothends.core.capacity import drain_s
from bothends.errors import BothendsError, PublishError
from bothends.service import Service
from bothends.urls import mask

__all__ = ["read"]


def read(desk: Desk, service: str | None) -> dict[str, Any]:
    """``{"outboxes": [...], "consumers": [...], "problems": [...]}``. What cannot be reached is named, not fatal."""
    numbers: dict[str, Any] = {"app": desk.app.name, "outboxes": [], "consumers": [], "problems": []}
    seen: set[int] = set()
    brokers: dict[str, Any] = {}
    for one in desk.app.services if service is None else (desk.app.service(service),):
        try:
            database = desk.database(one)
            outbox = database.ask(outbox_status(database.store.admin)) if id(database) not in seen else None
            consumers = database.ask(consumer_status(database.store.admin))
        except BothendsError as error:
            numbers["outboxes"].append({"name": one.name, "error": str(error)})
            numbers["problems"].append(f"{one.name}: {error}")
            continue
        if outbox is not None:
            seen.add(id(database))
            numbers["outboxes"].append({"name": one.name, "database": mask(database.store.url), **outbox})
        settings = desk.app.settings[one.name]
        mine = [c for c in consumers if c["consumer"].startswith(f"{settings.group_prefix}{one.name}.")]
        for consumer in mine:
            _lag(desk, one, consumer, brokers, numbers["problems"])
        numbers["consumers"] += mine
    return numbers


def _lag(desk: Desk, service: Service, consumer: dict[str, Any], brokers: dict[str, Any], problems: list[str]) -> None:
    url = desk.app.settings[service.name].broker_url or ""
    if url not in brokers:
        brokers[url] = desk.broker_or_none(service)
        if brokers[url] is None:
            problems.append(f"{service.name}: the broker {mask(url) or '(none configured)'} does not answer: no lag")
    broker = brokers[url]
    topics = json.loads(consumer.pop("declared_topics"))
    consumer["topics"] = topics
    if broker is None:
        return
    try:
        partitions = broker.lag(consumer["consumer"], topics)
    except PublishError as error:
        problems.append(f"{consumer['consumer']}: no lag: {error}")
        return
    consumer["lag"] = sum(_behind(p._asdict()) for p in partitions)
    consumer["drain_s"] = drain_s(consumer["lag"], 0.0, consumer["processed_per_s"] or 0.0)


def _behind(partition: Mapping[str, Any]) -> int:
    return max(0, int(partition["high"]) - max(int(partition["position"]), int(partition["low"])))
