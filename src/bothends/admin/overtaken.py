"""Overtaken: which dead letters had later messages of their key processed meanwhile.

A key that is held still waits behind its dead letter. For any other the broker's log knows: it is read from the letter
on to the group's position, once per partition and within a bound; what lies beyond counts as overtaken, to be safe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bothends.admin.dead import Letter
from bothends.ports import Broker
from bothends.stores.connection import Connection
from bothends.stores.postgresql.admin import PostgresqlAdmin
from bothends.stores.steps import Steps, run

__all__ = ["READ_MAX", "Sorted", "sort"]

READ_MAX = 100_000
"""Records that are read per partition, at most."""
_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class Sorted:
    """``unsure``: those of ``overtaken`` that were not looked at to the end."""

    ready: list[Letter]
    overtaken: list[Letter]
    unsure: int = 0


def sort(
    connection: Connection, admin: PostgresqlAdmin, broker: Broker | None, letters: Sequence[Letter], *,
    read_max: int = READ_MAX,
) -> Sorted:
    """Parts ``letters``. Without a broker every letter of a key that is not held is unsure."""
    free: list[Letter] = []
    passed: dict[int, bool] = {}
    for letter in letters:
        if letter.keyed and letter.key is not None and not run(_held(admin, letter), connection):
            free.append(letter)
    unsure: set[int] = set()
    partitions: dict[tuple[str, str, int], list[Letter]] = {}
    for letter in free:
        partitions.setdefault((letter.consumer, letter.topic, letter.partition), []).append(letter)
    for (consumer, topic, partition), group in partitions.items():
        if broker is None:
            unsure.update(letter.id for letter in group)
        else:
            _read(connection, admin, broker, consumer, topic, partition, group, read_max, passed, unsure)
    overtaken = [x for x in letters if passed.get(x.id) or x.id in unsure]
    gone = {x.id for x in overtaken}
    return Sorted([x for x in letters if x.id not in gone], overtaken, len(unsure))


def _held(admin: PostgresqlAdmin, letter: Letter) -> Steps[bool]:
    found = yield admin.sql(
        "select state from {s}.blocked_keys where consumer = :consumer and topic = :topic and keyed = :keyed "
        "and key = :key", consumer=letter.consumer_id, topic=letter.topic, keyed=letter.keyed, key=letter.key)
    return bool(found.rows) and found.rows[0][0] == "held"


def _read(
    connection: Connection, admin: PostgresqlAdmin, broker: Broker, consumer: str, topic: str, partition: int,
    group: list[Letter], read_max: int, passed: dict[int, bool], unsure: set[int],
) -> None:
    position = next((x.position for x in broker.lag(consumer, [topic]) if x.partition == partition), -1)
    by_key: dict[bytes | None, list[Letter]] = {}
    for letter in group:
        by_key.setdefault(letter.record_key, []).append(letter)
    start = offset = min(letter.offset for letter in group) + 1
    while offset < position and offset - start < read_max:
        records = broker.read(topic, partition=partition, offset=offset, max_records=_PAGE)
        if not records:
            return
        for record in records:
            for letter in by_key.get(record.key, ()):
                if letter.offset < record.origin.offset < position and not passed.get(letter.id):
                    passed[letter.id] = _was_processed(connection, admin, letter.consumer_id, record.headers)
        offset = records[-1].origin.offset + 1
    if offset < position:
        unsure.update(letter.id for letter in group if not passed.get(letter.id))


def _was_processed(
    connection: Connection, admin: PostgresqlAdmin, consumer: int, headers: Sequence[tuple[str, bytes]]
) -> bool:
    names = {name.lower(): value for name, value in headers}
    id_, source = names.get("ce_id"), names.get("ce_source")
    if id_ is None or source is None:
        return True  # a foreign format: settled, as the group's position is past it
    found = run(_state(admin, consumer, id_.decode(errors="replace"), source.decode(errors="replace")), connection)
    return found in (None, "p")  # none: ignored, or purged since


def _state(admin: PostgresqlAdmin, consumer: int, id_: str, source: str) -> Steps[str | None]:
    found = yield admin.sql(
        "select state from {s}.inbox where consumer = :consumer and id = :id and source = :source",
        consumer=consumer, id=id_, source=source)
    return found.rows[0][0] if found.rows else None
