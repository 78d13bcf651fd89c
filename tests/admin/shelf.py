"""Shelf: puts rows into our tables as the worker and the relay leave them, and reads them back."""

from typing import Any

from bothends.core.hashing import content_hash
from bothends.letters import pack_headers
from bothends.stores import Store
from bothends.stores.connection import Connection
from bothends.stores.steps import run


class Shelf:
    def __init__(self, store: Store, connection: Connection) -> None:
        self.store, self.connection = store, connection
        self.admin = store.admin
        self._position = 0

    def sql(self, text: str, **params: Any) -> list[tuple[Any, ...]]:
        """Runs one statement in a transaction of its own, as the worker would commit it."""
        self.connection.begin()
        if self.store.dialect == "postgresql":
            self.connection.execute(
                self.admin.sql("select set_config('bothends.commit', pg_current_xact_id()::text, true)"))
        rows = self.connection.execute(self.admin.sql(text, **params)).rows
        self.connection.commit()
        return rows

    def one(self, text: str, **params: Any) -> Any:
        [[value]] = self.sql(text, **params)
        return value

    def run(self, steps: Any) -> Any:
        """An act, in a transaction."""
        self.connection.begin()
        try:
            answer = run(steps, self.connection)
            self.connection.commit()
        finally:
            self.connection.rollback()
        return answer

    def consumer(self, name: str = "inventory.stock", owner: str = "team-stock") -> int:
        found = self.sql("select id from {s}.consumers where name = :name", name=name)
        if not found:
            found = self.sql(
                "insert into {s}.consumers (name, service, owner) values (:name, :service, :owner) returning id",
                name=name, service=name.partition(".")[0], owner=owner)
        return int(found[0][0])

    def inbox(self, id_: str, state: str, *, consumer: str = "inventory.stock", age_s: float = 0.0) -> None:
        self.sql(
            "insert into {s}.inbox (consumer, source, id, state, hash, changed_at) "
            "values (:consumer, 'orders', :id, :state, :hash, {ago:age_s})",
            consumer=self.consumer(consumer), id=id_, state=state, hash=content_hash(b"{}"), age_s=age_s)

    def inbox_state(self, id_: str) -> str | None:
        found = self.sql("select state from {s}.inbox where id = :id", id=id_)
        return found[0][0] if found else None

    def _next(self) -> int:
        self._position += 1
        return self._position

    def letter(
        self, id_: str = "m1", key: bytes | None = b"k1", *, consumer: str = "inventory.stock", reason: str = "handler_error",
        fingerprint: str = "8f31c0de", age_s: float = 0.0, offset: int = 0, body: bytes | None = b'{"sku":"a"}',
        inbox: str | None = "d",
    ) -> int:
        """An open dead letter with its inbox row; its number."""
        if inbox is not None:
            self.inbox(id_, inbox, consumer=consumer)
        found = self.sql(
            """insert into {s}.dead_letters (consumer, owner, reason, fingerprint, error, source, message_id, type, hash,
                   topic, record_partition, record_offset, keyed, key, record_key, position, body, headers, attempts, at)
               values (:consumer, 'team-stock', :reason, :fingerprint, 'ValueError: no', 'orders', :id, 'order.created',
                   :hash, 'orders.events', 0, :offset, :keyed, :key, :key, :position, :body, :headers, 5, {ago:age_s})
               returning id""",
            consumer=self.consumer(consumer), reason=reason, fingerprint=fingerprint, id=id_, hash=content_hash(body),
            offset=offset, keyed=key is not None, key=key, position=self._next(), body=body,
            headers=pack_headers([("ce_id", id_.encode())]), age_s=age_s)
        return int(found[0][0])

    def block(self, key: bytes = b"k1", state: str = "held", *, consumer: str = "inventory.stock", wait_s: float = 60) -> None:
        self.sql(
            "insert into {s}.blocked_keys (consumer, topic, keyed, key, state, next_at) "
            "values (:consumer, 'orders.events', :keyed, :key, :state, {ago:ago_s})",
            consumer=self.consumer(consumer), keyed=True, key=key, state=state, ago_s=-wait_s)

    def parked(self, id_: str, key: bytes = b"k1", *, consumer: str = "inventory.stock", dead_letter: int | None = None) -> int:
        """A message that waits behind its key, with its inbox row; its position."""
        self.inbox(id_, "k", consumer=consumer)
        position = self._next()
        self.sql(
            """insert into {s}.parked (consumer, topic, keyed, key, position, source, id, type, hash, record_partition,
                   record_offset, timestamp_ms, record_key, body, headers, attempts, dead_letter)
               values (:consumer, 'orders.events', :keyed, :key, :position, 'orders', :id, 'order.created', :hash, 0, 7, 0,
                   :key, :body, :headers, 2, :dead_letter)""",
            consumer=self.consumer(consumer), keyed=True, key=key, position=position, id=id_, hash=content_hash(b"{}"),
            body=b"{}", headers=pack_headers([]), dead_letter=dead_letter)
        return position

    def key_state(self, key: bytes = b"k1") -> tuple[str, bool] | None:
        """(state, due now) of a blocked key."""
        found = self.sql("select state, next_at <= {now} from {s}.blocked_keys where key = :key", key=key)
        return (found[0][0], bool(found[0][1])) if found else None

    def waiting(self, key: bytes = b"k1") -> list[str]:
        """Ids parked behind a key, in order."""
        rows = self.sql("select id from {s}.parked where key = :key order by position", key=key)
        return [row[0] for row in rows]

    def letter_state(self, number: int) -> str:
        return str(self.one("select state from {s}.dead_letters where id = :id", id=number))

    def outbox(self, count: int = 1, *, topic: str = "orders.events", key: bytes | None = b"k1") -> list[str]:
        ids = [f"e{topic}{key!r}{n}-{self._next()}" for n in range(count)]
        for id_ in ids:
            self.sql(
                "insert into {s}.outbox (id, source, type, topic, key, body, time) "
                "values (:id, 'orders', 'order.created', :topic, :key, :body, '2026-01-01T00:00:00Z')",
                id=id_, topic=topic, key=key, body=b"{}")
        return ids

    def held(self, seq: int, state: str, *, key: bytes = b"k1", topic: str = "orders.events") -> None:
        self.sql(
            "insert into {s}.held (seq, lane, id, source, type, topic, key, body, time, version, state, attempts, reason) "
            "values (:seq, 1, :id, 'orders', 'order.created', :topic, :key, :body, '2026-01-01T00:00:00Z', 1, :state, 10, "
            "'too_large')",
            seq=seq, id=f"h{seq}", topic=topic, key=key, body=b"{}", state=state)

    def relay(
        self, name: str, *, left_s: float, state: str = "ok", detail: str = "", wants: str = "poll", source: str = "poll",
        reason: str = "",
    ) -> None:
        """A relay whose lease ends in ``left_s``."""
        boot, value = (", boot, boot_until", ", 'b', 0") if self.store.dialect == "sqlite" else ("", "")
        self.sql(
            f"insert into {{s}}.relays (name, pid, host, lease_s, lease_until, state, detail, wants, source, "
            f"reason{boot}) values (:name, 1, 'h', 4, {{ago:ago}}, :state, :detail, :wants, :source, :reason{value})",
            name=name, ago=-left_s, state=state, detail=detail, wants=wants, source=source, reason=reason)

    def audits(self) -> list[tuple[str, str, str, str]]:
        """(by, verb, target, reason), oldest first."""
        return [tuple(r) for r in self.sql("select by, verb, target, reason from {s}.audit order by id")]  # type: ignore[misc]
