"""Slots and publications of an outbox: their names, what the server says of them, and how they go."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from bothends.core.sources import Facts, Slot
from bothends.errors import ConfigError
from bothends.stores.schema import quoted_schema
from bothends.stores.steps import Sql, Steps

__all__ = ["FAILOVER_MIN", "SlotSteps", "lsn_text", "publication_of"]

FAILOVER_MIN = 170_000
"""The first server that copies slots to its stand-bys."""
FREE_MS = 1000
_NAME_MAX = 40
_SLOTS_MAX = 64
_PUBLISHED_MAX = 48
"""Bytes of a schema's name in its publication's; a longer one has a digest."""


def lsn_text(position: int) -> str:
    """A place in the log as PostgreSQL writes it."""
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


def publication_of(schema: str, *, messages: bool) -> str:
    """The publication of an outbox, no other's; that of messages has no tables."""
    if len(schema.encode()) > _PUBLISHED_MAX:
        sign = hashlib.sha256(schema.encode()).hexdigest()[:8]
        schema = f"{schema.encode()[:_PUBLISHED_MAX - 9].decode(errors='ignore')}_{sign}"
    return f"{schema}_messages" if messages else f"{schema}_outbox"


class SlotSteps:
    """``messages``: of the slot that carries messages; else of the one that carries rows."""

    def __init__(self, schema: str, *, messages: bool = False) -> None:
        self._schema, self._s, self._messages = schema, quoted_schema(schema), messages
        self.publication = publication_of(schema, messages=messages)
        # A name alone says nothing: a publication that was altered, or dropped and made again, has shown less for a while.
        # Null: it does not show what is needed. (Row filters and column lists are there from PostgreSQL 15 on.) Nor does the
        # log, of a child that somebody made unlogged.
        self.mark = "''" if messages else f"""(
            select p.oid || '.' || p.xmin || coalesce((select string_agg(' ' || r.oid || '.' || r.xmin, '' order by r.oid)
                from pg_publication_rel r where r.prpubid = p.oid), '')
            from pg_publication p where p.pubname = '{self.publication}' and p.pubinsert and p.pubviaroot
            and (p.puballtables or exists (select from pg_publication_rel r where r.prpubid = p.oid
                and r.prrelid = '{self._s}.outbox'::regclass and to_jsonb(r) ->> 'prqual' is null
                and to_jsonb(r) ->> 'prattrs' is null))
            and not exists (select from pg_inherits i join pg_class c on c.oid = i.inhrelid
                where i.inhparent = '{self._s}.outbox'::regclass and c.relpersistence <> 'p'))"""

    def published(self) -> Steps[str | None]:
        """What names the publication as it is now; None: it, or the log, does not show all of the outbox's inserts."""
        found = yield Sql(f"select {self.mark}")
        return None if found.rows[0][0] is None else str(found.rows[0][0])

    def name(self) -> Steps[str]:
        """The slot's name: the one on record, if it is this database's, which may have been renamed since; else made of this
        database and schema, the same on a stand-by. Slots belong to the whole server."""
        found = yield Sql(
            "select current_database()::text, to_regclass(:log) is not null", {"log": f"{self._s}.relay_log"})
        database, there = found.rows[0]
        if there:
            kept = yield Sql(
                f"select s.slot_name::text from {self._s}.relay_log l join pg_replication_slots s on s.slot_name = l.slot "
                "and s.database = current_database() and not s.temporary where l.messages = :messages",
                {"messages": self._messages})
            if kept.rows:
                return str(kept.rows[0][0])
        plain = re.sub(r"[^a-z0-9_]", "_", f"{database}_{self._schema}".lower())[:_NAME_MAX]
        sign = hashlib.sha256(f"{database}/{self._schema}".encode()).hexdigest()[:8]
        return f"be_{plain}_{sign}{'_m' if self._messages else ''}"

    def facts(self, slot: str, family: Sequence[str]) -> Steps[Facts]:
        """What ``core.sources.plan`` needs to know. ``family``: the wants of relays that read the same log."""
        found = yield Sql(
            "select current_setting('server_version_num')::int, current_setting('wal_level') = 'logical', "
            "pg_is_in_recovery(), (select rolreplication or rolsuper from pg_roles where rolname = session_user), "
            "current_setting('max_replication_slots')::int - (select count(*) from pg_replication_slots)::int, "
            "current_setting('max_wal_senders')::int - (select count(*) from pg_stat_replication)::int, "
            f"(select count(*) from {self._s}.relays where wants <> all(:family))::int, "
            f"l.published, {self.mark}, (l.position - '0/0')::bigint, coalesce(case when not pg_is_in_recovery() then "
            f"l.position > pg_current_wal_insert_lsn() end, false) from {self._s}.relay_log l where l.messages = :messages",
            {"family": list(family), "messages": self._messages},
        )
        version, logical, recovering, may, slots, senders, pollers, read_under, published, position, ahead = found.rows[0]
        known = Facts(
            version, logical, recovering, may, slots, senders, pollers, None, position, published or "", read_under, ahead)
        if recovering:
            return known
        slots_of = yield Sql(
            "select slot_type = 'logical' and plugin = 'pgoutput' and database = current_database(), active_pid, "
            "(confirmed_flush_lsn - '0/0')::bigint, "
            "pg_wal_lsn_diff(pg_current_wal_insert_lsn(), restart_lsn)::bigint, "
            "wal_status from pg_replication_slots where slot_name = :slot",
            {"slot": slot},
        )
        found_slot = None
        for here, pid, confirmed, retained, status in slots_of.rows:
            # A slot without restart_lsn was invalidated. One that is 'unreserved' can be read until its log is removed.
            found_slot = Slot(bool(here), pid, confirmed or 0, retained or 0, status == "lost" or retained is None)
        return known._replace(slot=found_slot)

    def retained(self, slot: str) -> Steps[int | None]:
        """Bytes of log that the slot keeps; None: there is no such slot."""
        found = yield Sql(
            "select coalesce(pg_wal_lsn_diff(pg_current_wal_insert_lsn(), restart_lsn), 0)::bigint from pg_replication_slots "
            "where slot_name = :slot and not pg_is_in_recovery()", {"slot": slot},
        )
        return int(found.rows[0][0]) if found.rows else None

    def publish(self) -> Steps[None]:
        """Makes the publication, unless it is there. It must be there before the slot is made. Raises ConfigError, with the
        statement, where this role may not."""
        found = yield Sql(
            "select count(*), has_database_privilege(current_database(), 'create') and (:messages or pg_has_role((select "
            f"relowner from pg_class where oid = '{self._s}.outbox'::regclass), 'usage')) from pg_publication "
            "where pubname = :name",
            {"name": self.publication, "messages": self._messages})
        there, may = found.rows[0]
        if there:
            return
        tables = "" if self._messages else f" for table {self._s}.outbox"
        name = self.publication.replace('"', '""')
        create = f"create publication \"{name}\"{tables} with (publish = 'insert', publish_via_partition_root = true)"
        if not may:
            who = "one who may create in the database" if self._messages else "the table's owner, who may create there,"
            raise ConfigError(f"the role may not make the publication; let {who} run: {create}")
        yield Sql(
            f"do $$ begin {create}; exception when duplicate_object or unique_violation then null; end $$", rows=False)

    def prepare(self) -> Steps[str | None]:
        """Makes publication and slot where there is no slot: from here on no message is missed, though no relay runs. The
        new slot's name. What a relay has noted stays: it says what may be lost since. Waits for the server's open
        transactions that have written."""
        yield from self.publish()
        slot = yield from self.name()
        found = yield Sql(
            "select (select count(*) from pg_replication_slots where slot_name = :slot), "
            "current_setting('server_version_num')::int", {"slot": slot},
        )
        there, version = found.rows[0]
        if there:
            return None
        more = ", false, false, true" if version >= FAILOVER_MIN else ""
        made = yield Sql(
            f"select lsn::text from pg_create_logical_replication_slot(:slot, 'pgoutput'{more})", {"slot": slot})
        yield Sql(
            f"update {self._s}.relay_log set slot = :slot, position = coalesce(position, :place::text::pg_lsn) "
            "where messages = :messages",
            {"slot": slot, "place": made.rows[0][0], "messages": self._messages}, rows=False,
        )
        return slot

    def free(self, slot: str) -> Steps[bool]:
        """Ends the sender that has the slot in use, and waits for that, FREE_MS at most; whether there was one."""
        ended = yield Sql(
            f"select pg_terminate_backend(active_pid, {FREE_MS}) from pg_replication_slots where slot_name = :slot and "
            "active_pid is not null", {"slot": slot},
        )
        return bool(ended.rows)

    def drop(self, slot: str) -> Steps[bool]:
        """Drops a slot that is not in use; whether it did. The database's error where it is in use."""
        dropped = yield Sql(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = :slot", {"slot": slot})
        return bool(dropped.rows)

    def drop_publication(self) -> Steps[None]:
        yield Sql(f"drop publication if exists \"{self.publication}\"", rows=False)

    def remove(self) -> Steps[None]:
        """Nothing of the log's is left: ends who reads, drops slot and publication. The database's error where a relay came
        back in between: end relays first."""
        slot = yield from self.name()
        yield from self.free(slot)
        yield from self.drop(slot)
        yield from self.drop_publication()
