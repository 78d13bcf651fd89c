"""Parking on SQLite: the steps of PostgreSQL's ``parking.py``, row by row, since a statement here is a function call."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from bothends.letters import Block, KeyOf, Letter
from bothends.stores.inboxes import Lease
from bothends.stores.steps import Sql, Steps

__all__ = ["NOW", "SqliteParking", "boot_s"]

NOW = "((julianday('now') - 2440587.5) * 86400.0)"

_LETTER = (
    "topic", "keyed", "key", "source", "id", "type", "hash", "record_partition", "record_offset", "timestamp_ms",
    "record_key", "body", "headers", "attempts", "crashes", "redrives", "dead_letter", "reason", "error", "fingerprint",
    "history", "position",
)
_KEY = "consumer = :consumer and topic = :topic and keyed = :keyed and key = :key"


def boot_s() -> float:
    """Seconds since boot, suspended time included where the system counts it."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _params(letter: Letter) -> dict[str, Any]:
    return dict(zip(_LETTER, (*letter.queue, *letter[1:-1]), strict=True))


def _key(key: KeyOf) -> dict[str, Any]:
    return {"topic": key.topic, "keyed": int(key.keyed), "key": key.key}


class SqliteParking:
    """Step functions; the consumer is given by its number."""

    def __init__(self, schema: str) -> None:
        self.schema = schema

    def _position(self) -> Steps[int]:
        result = yield Sql("update bothends_parked_seq set last_value = last_value + 1 returning last_value")
        return int(result.rows[0][0])

    def park(self, consumer: int, letters: Sequence[Letter], blocks: Sequence[Block]) -> Steps[None]:
        """Parks messages whose inbox rows this transaction wrote, in this order, and makes keys wait that did not."""
        for block in blocks:
            yield Sql(
                "insert into bothends_blocked_keys (consumer, topic, keyed, key, state, next_at) "
                f"values (:consumer, :topic, :keyed, :key, :state, {NOW} + :delay_s) on conflict do nothing",
                {"consumer": consumer, "state": block.state, "delay_s": block.delay_s} | _key(block.key), rows=False,
            )
        for letter in letters:
            params = {"consumer": consumer} | _params(letter)
            if letter.position is None:
                params["position"] = yield from self._position()
            yield Sql(
                f"update bothends_inbox set state = 'k', changed_at = {NOW} "
                "where consumer = :consumer and id = :id and source = :source", params, rows=False,
            )
            yield Sql(
                "insert into bothends_parked (consumer, topic, keyed, key, position, source, id, type, hash, "
                "record_partition, record_offset, timestamp_ms, record_key, body, headers, attempts, crashes, redrives, "
                "dead_letter, reason, error, history) values (:consumer, :topic, :keyed, :key, :position, :source, :id, "
                ":type, :hash, :record_partition, :record_offset, :timestamp_ms, :record_key, :body, :headers, :attempts, "
                ":crashes, :redrives, :dead_letter, :reason, :error, :history)", params, rows=False,
            )

    def bury(self, consumer: int, owner: str, letters: Sequence[Letter]) -> Steps[None]:
        """Writes dead letters. A redriven one becomes open again under its own number; one for the same copy of an
        undecodable or conflicting message is written once."""
        for letter in letters:
            params = {"consumer": consumer, "owner": owner} | _params(letter)
            if letter.id and letter.reason != "conflict":
                yield Sql(
                    f"update bothends_inbox set state = 'd', changed_at = {NOW} "
                    "where consumer = :consumer and id = :id and source = :source", params, rows=False,
                )
            if letter.dead_letter is not None:
                again = yield Sql(
                    "update bothends_dead_letters set state = 'open', reason = :reason, fingerprint = :fingerprint, "
                    "error = :error, attempts = :attempts, crashes = :crashes, redrives = :redrives, history = :history, "
                    f"changed_at = {NOW} where id = :dead_letter returning id", params,
                )
                if again.rows:
                    continue
            if letter.reason == "conflict":
                there = yield Sql(
                    "select 1 from bothends_dead_letters where consumer = :consumer and message_id = :id and "
                    "reason = 'conflict' and topic = :topic and record_partition = :record_partition and "
                    "record_offset = :record_offset", params,
                )
                if there.rows:
                    continue
            if letter.position is None:
                params["position"] = yield from self._position()
            yield Sql(
                "insert into bothends_dead_letters (consumer, owner, reason, fingerprint, error, source, message_id, type, "
                "hash, topic, record_partition, record_offset, timestamp_ms, keyed, key, record_key, position, body, "
                "headers, attempts, crashes, redrives, history) values (:consumer, :owner, :reason, :fingerprint, :error, "
                ":source, :id, :type, :hash, :topic, :record_partition, :record_offset, :timestamp_ms, :keyed, :key, "
                ":record_key, :position, :body, :headers, :attempts, :crashes, :redrives, :history) "
                "on conflict do nothing", params, rows=False,
            )

    def lease_due(self, consumer: int, drainer: str, *, lease_s: float, most: int) -> Steps[list[Lease]]:
        """Takes keys whose time has come. A lease that ends later than it could is from before a reboot: expired."""
        due = (
            f"consumer = :consumer and state <> 'held' and next_at <= {NOW} and "
            "(lease_until is null or lease_until < :boot_s or lease_until > :boot_s + 2 * :lease_s)"
        )
        params = {"consumer": consumer, "boot_s": boot_s(), "lease_s": lease_s, "most": most}
        # Looked up before it is taken: an update takes the file's write lock even where it finds nothing.
        found = yield Sql(f"select 1 from bothends_blocked_keys where {due} limit 1", params)
        if not found.rows:
            return []
        result = yield Sql(
            f"update bothends_blocked_keys set epoch = epoch + 1, drainer = :drainer, lease_until = :boot_s + :lease_s "
            f"where (consumer, topic, key, keyed) in (select consumer, topic, key, keyed from bothends_blocked_keys "
            f"where {due} order by next_at limit :most) returning topic, keyed, key, state, epoch",
            params | {"drainer": drainer},
        )
        return [Lease(KeyOf(topic, bool(keyed), key), state, epoch) for topic, keyed, key, state, epoch in result.rows]

    def renew(self, consumer: int, leases: Sequence[Lease], *, lease_s: float) -> Steps[None]:
        for lease in leases:
            yield Sql(
                f"update bothends_blocked_keys set lease_until = :until where {_KEY} and epoch = :epoch "
                "and lease_until is not null",
                {"consumer": consumer, "until": boot_s() + lease_s, "epoch": lease.epoch} | _key(lease.key), rows=False,
            )

    def give_up(self, consumer: int, lease: Lease) -> Steps[None]:
        """Ends the lease and changes nothing else: another drainer goes on at once."""
        yield Sql(
            f"update bothends_blocked_keys set lease_until = null where {_KEY} and epoch = :epoch",
            {"consumer": consumer, "epoch": lease.epoch} | _key(lease.key), rows=False,
        )

    def heads(self, consumer: int, key: KeyOf, most: int) -> Steps[list[Letter]]:
        """The first messages of a key that waits, by position."""
        result = yield Sql(
            "select topic, keyed, key, source, id, type, hash, record_partition, record_offset, timestamp_ms, record_key, "
            "body, headers, attempts, crashes, redrives, dead_letter, reason, error, '', history, position, "
            f"{NOW} - parked_at from bothends_parked where {_KEY} order by position limit :most",
            {"consumer": consumer, "most": most} | _key(key),
        )
        return [Letter(KeyOf(row[0], bool(row[1]), row[2]), *row[3:]) for row in result.rows]

    def take(self, consumer: int, names: Sequence[tuple[str, str]]) -> Steps[set[tuple[str, str]]]:
        """Inbox rows from parked to processed, in the handler's transaction; those that were parked."""
        result = yield Sql(
            f"update bothends_inbox set state = 'p', changed_at = {NOW} where consumer = :consumer and state = 'k' and "
            "(id, source) in (select value ->> 1, value ->> 0 from json_each(:names)) returning source, id",
            {"consumer": consumer, "names": json.dumps(list(names))},
        )
        return {(source, id) for source, id in result.rows}

    def hold(self, consumer: int, lease: Lease) -> Steps[bool]:
        """False where the lease is another's by now, and nothing may be committed for the key."""
        result = yield Sql(
            f"select 1 from bothends_blocked_keys where {_KEY} and epoch = :epoch",
            {"consumer": consumer, "epoch": lease.epoch} | _key(lease.key),
        )
        return bool(result.rows)

    def remove(self, consumer: int, key: KeyOf, positions: Sequence[int], *, succeeded: Sequence[int]) -> Steps[None]:
        """Takes messages out of the queue; dead letters that ``succeeded`` were redrives of are done."""
        params = {"consumer": consumer, "positions": json.dumps(list(positions)), "succeeded": json.dumps(list(succeeded))}
        if succeeded:
            yield Sql(
                f"update bothends_dead_letters set state = 'done', changed_at = {NOW} where id in ("
                f"select dead_letter from bothends_parked where {_KEY} "
                "and position in (select value from json_each(:succeeded)))", params | _key(key), rows=False,
            )
        yield Sql(
            f"delete from bothends_parked where {_KEY} and position in (select value from json_each(:positions))",
            params | _key(key), rows=False,
        )

    def free(self, consumer: int, key: KeyOf) -> Steps[bool]:
        """Lets the key flow again if nothing is parked."""
        result = yield Sql(
            f"delete from bothends_blocked_keys where {_KEY} and not exists "
            f"(select 1 from bothends_parked where {_KEY}) returning 1", {"consumer": consumer} | _key(key),
        )
        return bool(result.rows)

    def postpone(self, consumer: int, letter: Letter) -> Steps[None]:
        """Writes down a failed run of the queue's head."""
        yield Sql(
            "update bothends_parked set attempts = :attempts, crashes = :crashes, reason = :reason, error = :error, "
            f"history = :history where {_KEY} and position = :position",
            {"consumer": consumer} | _params(letter), rows=False,
        )

    def reset(self, consumer: int, lease: Lease, *, state: str, delay_s: float) -> Steps[None]:
        """Ends the lease: the key's state, and when its head is tried next."""
        yield Sql(
            f"update bothends_blocked_keys set state = :state, lease_until = null, next_at = {NOW} + :delay_s "
            f"where {_KEY} and epoch = :epoch",
            {"consumer": consumer, "epoch": lease.epoch, "state": state, "delay_s": delay_s} | _key(lease.key), rows=False,
        )

    def wake_schema(self, consumer: int) -> Steps[None]:
        """A worker has started: it may know the versions that keys wait for."""
        yield Sql(
            f"update bothends_blocked_keys set state = 'retrying', next_at = {NOW} "
            "where consumer = :consumer and state = 'schema'", {"consumer": consumer}, rows=False,
        )

    def blocking(self, consumer: int) -> Steps[list[tuple[str, int]]]:
        """Partitions that wait for a parked message (``mode="block"``)."""
        result = yield Sql(
            "select distinct p.topic, p.record_partition from bothends_parked p join bothends_blocked_keys b "
            "on b.consumer = p.consumer and b.topic = p.topic and b.keyed = p.keyed and b.key = p.key "
            "where p.consumer = :consumer and b.state <> 'held' limit 10000", {"consumer": consumer},
        )
        return [(topic, partition) for topic, partition in result.rows]
