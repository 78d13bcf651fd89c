alter table {s}.relays
    add column wants text not null default 'poll',   -- what it was told: auto | poll | wal | message
    add column source text not null default 'poll',  -- what it does: poll | wal | message | standby
    add column reason text not null default '';      -- why, where that is not what it was told

-- Who reads the log, and how far it is done: one row for the outbox's own rows, one for messages. Few updates, none per page.
create table {s}.relay_log (
    messages boolean primary key,
    relay bigint references {s}.relays on delete set null,   -- the reader; null: nobody
    ready boolean not null default false,                     -- it has a slot: those who would read too stand by
    slot text not null default '',
    published text not null default '',                       -- the publication that it reads under; changed: a new slot
    position pg_lsn                                           -- every event whose transaction committed before is done
);
insert into {s}.relay_log (messages) values (false), (true);
