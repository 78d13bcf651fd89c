"""Parking on PostgreSQL: keys that wait, the messages behind them, and dead letters.

A drainer holds a lease with an epoch on a key, never a lock across a handler. At the end of its transaction it locks the
key's row, checks the epoch, and removes the row only if nothing is parked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bothends.letters import Block, KeyOf, Letter
from bothends.stores.inboxes import Lease
from bothends.stores.postgresql.arrays import texts
from bothends.stores.schema import quoted_schema
from bothends.stores.steps import Sql, Steps

__all__ = ["PostgresqlParking"]

_LETTER = (
    ("topic", "text"), ("keyed", "boolean"), ("key", "bytea"), ("source", "text"), ("id", "text"), ("type", "text"),
    ("hash", "bytea"), ("record_partition", "int"), ("record_offset", "bigint"), ("timestamp_ms", "bigint"),
    ("record_key", "bytea"), ("body", "bytea"), ("headers", "bytea"), ("attempts", "int"), ("crashes", "int"),
    ("redrives", "int"), ("dead_letter", "bigint"), ("reason", "text"), ("error", "text"), ("fingerprint", "text"),
    ("history", "text"), ("position", "bigint"),
)
_ROWS = ", ".join(f":{name}::{kind}[]" for name, kind in _LETTER)
_NAMES = ", ".join(name for name, _ in _LETTER)
_KEY = "consumer = :consumer and topic = :topic and keyed = :keyed and key = :key"


def _columns(letters: Sequence[Letter]) -> dict[str, Any]:
    rows = [(*letter.queue, *letter[1:-1]) for letter in letters]
    return {name: list(column) for (name, _), column in zip(_LETTER, zip(*rows, strict=True), strict=True)}


def _key(key: KeyOf) -> dict[str, Any]:
    return {"topic": key.topic, "keyed": key.keyed, "key": key.key}


class PostgresqlParking:
    """Step functions; the consumer is given by its number."""

    def __init__(self, schema: str) -> None:
        s = quoted_schema(schema)
        self._texts_of_parking(s)
        self._texts_of_draining(s)

    def _texts_of_parking(self, s: str) -> None:
        self._blocked = f"""
            select topic, keyed, key, state from {s}.blocked_keys where consumer = :consumer
            and (topic, keyed, key) in (select * from unnest(:topics::text[], :keyed::boolean[], :keys::bytea[]))
            order by topic, key, keyed for update"""
        self._park = f"""
            with given as (select * from unnest({_ROWS}) with ordinality as g ({_NAMES}, number)),
                 inboxed as (update {s}.inbox i set state = 'k', changed_at = clock_timestamp() from given g
                             where i.consumer = :consumer and i.id = g.id and i.source = g.source)
            insert into {s}.parked (consumer, topic, keyed, key, position, source, id, type, hash, record_partition,
                record_offset, timestamp_ms, record_key, body, headers, attempts, crashes, redrives, dead_letter, reason,
                error, history)
            select :consumer, topic, keyed, key, coalesce(position, nextval('{s}.parked_seq')), source, id, type, hash,
                record_partition, record_offset, timestamp_ms, record_key, body, headers, attempts, crashes, redrives,
                dead_letter, reason, error, history from given order by number"""
        self._block = f"""
            insert into {s}.blocked_keys (consumer, topic, keyed, key, state, next_at)
            select :consumer, topic, keyed, key, state, clock_timestamp() + make_interval(secs => delay_s)
            from unnest(:topics::text[], :keyed::boolean[], :keys::bytea[], :states::text[], :delays::float8[])
                 as n (topic, keyed, key, state, delay_s)
            on conflict do nothing"""
        self._bury = f"""
            with given as (select * from unnest({_ROWS}) with ordinality as g ({_NAMES}, number)),
                 inboxed as (update {s}.inbox i set state = 'd', changed_at = clock_timestamp() from given g
                             where i.consumer = :consumer and i.id = g.id and i.source = g.source
                             and g.reason <> 'conflict'),
                 again as (update {s}.dead_letters d set state = 'open', reason = g.reason, fingerprint = g.fingerprint,
                               error = g.error, attempts = g.attempts, crashes = g.crashes, redrives = g.redrives,
                               history = g.history, changed_at = clock_timestamp()
                           from given g where d.id = g.dead_letter returning d.id)
            insert into {s}.dead_letters (consumer, owner, reason, fingerprint, error, source, message_id, type, hash,
                topic, record_partition, record_offset, timestamp_ms, keyed, key, record_key, position, body, headers,
                attempts, crashes, redrives, history)
            select :consumer, :owner, g.reason, g.fingerprint, g.error, g.source, g.id, g.type, g.hash, g.topic,
                g.record_partition, g.record_offset, g.timestamp_ms, g.keyed, g.key, g.record_key,
                coalesce(g.position, nextval('{s}.parked_seq')), g.body, g.headers, g.attempts, g.crashes, g.redrives,
                g.history
            from given g where not exists (select 1 from again where again.id = g.dead_letter)
            and not (g.reason = 'conflict' and exists (
                select 1 from {s}.dead_letters d where d.consumer = :consumer and d.message_id = g.id
                and d.reason = 'conflict' and d.topic = g.topic and d.record_partition = g.record_partition
                and d.record_offset = g.record_offset))
            order by g.number on conflict do nothing"""

    def _texts_of_draining(self, s: str) -> None:
        self._lease = f"""
            update {s}.blocked_keys b set epoch = b.epoch + 1, drainer = :drainer,
                lease_until = clock_timestamp() + make_interval(secs => :lease_s)
            from (select topic, keyed, key from {s}.blocked_keys
                  where consumer = :consumer and state <> 'held' and next_at <= clock_timestamp()
                  and (lease_until is null or lease_until < clock_timestamp()
                       or lease_until > clock_timestamp() + make_interval(secs => 2 * :lease_s))
                  order by next_at limit :most for update skip locked) due
            where b.consumer = :consumer and b.topic = due.topic and b.keyed = due.keyed and b.key = due.key
            returning b.topic, b.keyed, b.key, b.state, b.epoch"""
        self._renew = f"""
            update {s}.blocked_keys b set lease_until = clock_timestamp() + make_interval(secs => :lease_s)
            from unnest(:topics::text[], :keyed::boolean[], :keys::bytea[], :epochs::bigint[]) as n (topic, keyed, key, epoch)
            where b.consumer = :consumer and b.topic = n.topic and b.keyed = n.keyed and b.key = n.key
            and b.epoch = n.epoch and b.lease_until is not null"""
        self._give_up = f"""
            update {s}.blocked_keys set lease_until = null where {_KEY} and epoch = :epoch"""
        self._heads = f"""
            select topic, keyed, key, source, id, type, hash, record_partition, record_offset, timestamp_ms, record_key, body,
                headers, attempts, crashes, redrives, dead_letter, reason, error, '', history, position,
                extract(epoch from clock_timestamp() - parked_at)::float8
            from {s}.parked where {_KEY} order by position limit :most"""
        self._take = f"""
            update {s}.inbox set state = 'p', changed_at = clock_timestamp() where consumer = :consumer and state = 'k'
            and (id, source) in (select * from unnest(:ids::text[], :sources::text[])) returning source, id"""
        self._hold = f"select 1 from {s}.blocked_keys where {_KEY} and epoch = :epoch for update"
        self._remove = f"""
            with done as (update {s}.dead_letters d set state = 'done', changed_at = clock_timestamp() from {s}.parked p
                          where p.consumer = :consumer and p.topic = :topic and p.keyed = :keyed and p.key = :key
                          and p.position = any(:succeeded::bigint[]) and d.id = p.dead_letter)
            delete from {s}.parked where {_KEY} and position = any(:positions::bigint[])"""
        self._free = f"""
            delete from {s}.blocked_keys where {_KEY} and not exists (select 1 from {s}.parked where {_KEY}) returning 1"""
        self._postpone = f"""
            update {s}.parked set attempts = :attempts, crashes = :crashes, reason = :reason, error = :error,
                history = :history where {_KEY} and position = :position"""
        self._reset = f"""
            update {s}.blocked_keys set state = :state, lease_until = null,
                next_at = clock_timestamp() + make_interval(secs => :delay_s) where {_KEY} and epoch = :epoch"""
        self._wake_schema = f"""
            update {s}.blocked_keys set state = 'retrying', next_at = clock_timestamp()
            where consumer = :consumer and state = 'schema'"""
        self._blocking = f"""
            select distinct p.topic, p.record_partition from {s}.parked p join {s}.blocked_keys b
            on b.consumer = p.consumer and b.topic = p.topic and b.keyed = p.keyed and b.key = p.key
            where p.consumer = :consumer and b.state <> 'held' limit 10000"""

    def park(self, consumer: int, letters: Sequence[Letter], blocks: Sequence[Block]) -> Steps[None]:
        """Parks messages whose inbox rows this transaction wrote, in this order, and makes keys wait that did not."""
        if blocks:
            yield Sql(self._block, {
                "consumer": consumer, "topics": [b.key.topic for b in blocks], "keyed": [b.key.keyed for b in blocks],
                "keys": [b.key.key for b in blocks], "states": [b.state for b in blocks],
                "delays": [float(b.delay_s) for b in blocks],
            }, rows=False)
        if letters:
            yield Sql(self._park, {"consumer": consumer} | _columns(letters), rows=False)

    def bury(self, consumer: int, owner: str, letters: Sequence[Letter]) -> Steps[None]:
        """Writes dead letters. A redriven one becomes open again under its own number; one for the same copy of an
        undecodable or conflicting message is written once."""
        if letters:
            yield Sql(self._bury, {"consumer": consumer, "owner": owner} | _columns(letters), rows=False)

    def lease_due(self, consumer: int, drainer: str, *, lease_s: float, most: int) -> Steps[list[Lease]]:
        """Takes keys whose time has come. A lease that ends later than it could is expired: the clock was set back."""
        result = yield Sql(self._lease, {"consumer": consumer, "drainer": drainer, "lease_s": float(lease_s), "most": most})
        return [Lease(KeyOf(topic, keyed, bytes(key)), state, epoch) for topic, keyed, key, state, epoch in result.rows]

    def renew(self, consumer: int, leases: Sequence[Lease], *, lease_s: float) -> Steps[None]:
        yield Sql(self._renew, {
            "consumer": consumer, "topics": [x.key.topic for x in leases], "keyed": [x.key.keyed for x in leases],
            "keys": [x.key.key for x in leases], "epochs": [x.epoch for x in leases], "lease_s": float(lease_s),
        }, rows=False)

    def give_up(self, consumer: int, lease: Lease) -> Steps[None]:
        """Ends the lease and changes nothing else: another drainer goes on at once."""
        yield Sql(self._give_up, {"consumer": consumer, "epoch": lease.epoch} | _key(lease.key), rows=False)

    def heads(self, consumer: int, key: KeyOf, most: int) -> Steps[list[Letter]]:
        """The first messages of a key that waits, by position."""
        result = yield Sql(self._heads, {"consumer": consumer, "most": most} | _key(key))
        return [Letter(KeyOf(row[0], bool(row[1]), bytes(row[2])), *row[3:]) for row in result.rows]

    def take(self, consumer: int, names: Sequence[tuple[str, str]]) -> Steps[set[tuple[str, str]]]:
        """Inbox rows from parked to processed, in the handler's transaction; those that were parked."""
        result = yield Sql(self._take, {
            "consumer": consumer, "sources": texts(source for source, _ in names), "ids": texts(id for _, id in names),
        })
        return {(source, id) for source, id in result.rows}

    def hold(self, consumer: int, lease: Lease) -> Steps[bool]:
        """Locks the key's row; False where the lease is another's by now, and nothing may be committed for the key."""
        result = yield Sql(self._hold, {"consumer": consumer, "epoch": lease.epoch} | _key(lease.key))
        return bool(result.rows)

    def remove(self, consumer: int, key: KeyOf, positions: Sequence[int], *, succeeded: Sequence[int]) -> Steps[None]:
        """Takes messages out of the queue; dead letters that ``succeeded`` were redrives of are done."""
        yield Sql(self._remove, {
            "consumer": consumer, "positions": list(positions), "succeeded": list(succeeded),
        } | _key(key), rows=False)

    def free(self, consumer: int, key: KeyOf) -> Steps[bool]:
        """Lets the key flow again if nothing is parked. The key's row must be locked."""
        result = yield Sql(self._free, {"consumer": consumer} | _key(key))
        return bool(result.rows)

    def postpone(self, consumer: int, letter: Letter) -> Steps[None]:
        """Writes down a failed run of the queue's head."""
        yield Sql(self._postpone, {
            "consumer": consumer, "attempts": letter.attempts, "crashes": letter.crashes, "reason": letter.reason,
            "error": letter.error, "history": letter.history, "position": letter.position,
        } | _key(letter.queue), rows=False)

    def reset(self, consumer: int, lease: Lease, *, state: str, delay_s: float) -> Steps[None]:
        """Ends the lease: the key's state, and when its head is tried next."""
        yield Sql(self._reset, {
            "consumer": consumer, "epoch": lease.epoch, "state": state, "delay_s": float(delay_s),
        } | _key(lease.key), rows=False)

    def wake_schema(self, consumer: int) -> Steps[None]:
        """A worker has started: it may know the versions that keys wait for."""
        yield Sql(self._wake_schema, {"consumer": consumer}, rows=False)

    def blocking(self, consumer: int) -> Steps[list[tuple[str, int]]]:
        """Partitions that wait for a parked message (``mode="block"``)."""
        result = yield Sql(self._blocking, {"consumer": consumer})
        return [(topic, partition) for topic, partition in result.rows]
