create table bothends_consumers (
    id integer primary key autoincrement,
    name text not null unique,
    service text not null,
    owner text not null default '',
    started_at real not null default ((julianday('now') - 2440587.5) * 86400.0),
    start_at text not null default '',
    topics text not null default '[]',
    paused integer not null default 0,       -- 0 | 1
    processed integer not null default 0
) strict;

create table bothends_inbox (
    consumer integer not null,
    source text not null,
    id text not null,
    state text not null default 'p',         -- p processed, k parked, d dead, x discarded
    hash blob not null,
    changed_at real not null default ((julianday('now') - 2440587.5) * 86400.0),
    result blob,
    primary key (consumer, id, source)
) strict, without rowid;
create index bothends_inbox_changed_at on bothends_inbox (consumer, changed_at) where state = 'p';

create table bothends_blocked_keys (
    consumer integer not null,
    topic text not null,
    keyed integer not null,                  -- 0 | 1
    key blob not null,
    state text not null default 'retrying',
    next_at real not null,
    epoch integer not null default 0,
    lease_until real,
    drainer text not null default '',
    since real not null default ((julianday('now') - 2440587.5) * 86400.0),
    primary key (consumer, topic, key, keyed)
) strict, without rowid;
create index bothends_blocked_keys_next_at on bothends_blocked_keys (consumer, next_at) where state <> 'held';

-- SQLite has no sequences: positions of parked messages and dead letters are drawn with
-- update bothends_parked_seq set last_value = last_value + 1 returning last_value.
create table bothends_parked_seq (
    one integer primary key check (one = 1),
    last_value integer not null
) strict;
insert into bothends_parked_seq values (1, 0);

create table bothends_parked (
    consumer integer not null,
    topic text not null,
    keyed integer not null,
    key blob not null,
    position integer not null,               -- from bothends_parked_seq
    source text not null,
    id text not null,
    type text not null,
    hash blob not null,
    record_partition integer not null,
    record_offset integer not null,
    timestamp_ms integer not null,
    record_key blob,
    body blob,
    headers blob not null,
    attempts integer not null default 0,
    crashes integer not null default 0,
    redrives integer not null default 0,
    dead_letter integer,
    reason text not null default '',
    error text not null default '',
    history text not null default '[]',
    parked_at real not null default ((julianday('now') - 2440587.5) * 86400.0),
    primary key (consumer, topic, key, keyed, position)
) strict;
create index bothends_parked_id on bothends_parked (consumer, id);

create table bothends_dead_letters (
    id integer primary key autoincrement,
    consumer integer not null,
    owner text not null default '',
    state text not null default 'open',
    reason text not null,
    fingerprint text not null,
    error text not null default '',
    source text not null default '',
    message_id text not null default '',
    type text not null default '',
    hash blob,
    edited_hash blob,
    topic text not null,
    record_partition integer not null,
    record_offset integer not null,
    timestamp_ms integer not null default -1,
    keyed integer not null default 0,
    key blob,
    record_key blob,
    position integer not null,               -- from bothends_parked_seq
    body blob,
    headers blob not null,
    attempts integer not null default 0,
    crashes integer not null default 0,
    redrives integer not null default 0,
    history text not null default '[]',
    at real not null default ((julianday('now') - 2440587.5) * 86400.0),
    changed_at real not null default ((julianday('now') - 2440587.5) * 86400.0)
) strict;
create index bothends_dead_letters_fingerprint on bothends_dead_letters (consumer, fingerprint) where state = 'open';
create index bothends_dead_letters_message_id on bothends_dead_letters (consumer, message_id);
create index bothends_dead_letters_closed on bothends_dead_letters (changed_at) where state in ('done', 'discarded');
create unique index bothends_dead_letters_origin
    on bothends_dead_letters (consumer, topic, record_partition, record_offset) where message_id = '';

create table bothends_runs (
    id integer primary key autoincrement,
    consumer integer not null,
    worker text not null,
    backend_pid integer not null,
    messages text not null,
    alone integer not null default 0,
    crashes integer not null default 0,
    opened real not null default ((julianday('now') - 2440587.5) * 86400.0),
    voided integer not null default 0
) strict;
create index bothends_runs_consumer on bothends_runs (consumer);
