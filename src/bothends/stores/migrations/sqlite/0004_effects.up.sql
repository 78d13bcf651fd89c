create table bothends_effects (
    consumer integer not null,
    source text not null,
    message_id text not null,
    name text not null,
    state text not null,                     -- in_progress | completed | refused | not_sent | unknown
    key text not null,
    result blob,
    error text not null default '',
    runs integer not null default 1,
    worker text not null default '',         -- who makes the call now
    lease_until real,                        -- in_progress, and its worker alive, until then (boot clock)
    decided_by text,
    started_at real not null default ((julianday('now') - 2440587.5) * 86400.0),
    changed_at real not null default ((julianday('now') - 2440587.5) * 86400.0),
    primary key (consumer, message_id, source, name)
) strict;
create index bothends_effects_changed_at on bothends_effects (changed_at);

create table bothends_audit (
    id integer primary key autoincrement,
    at real not null default ((julianday('now') - 2440587.5) * 86400.0),
    by text not null,
    reason text not null default '',
    verb text not null,
    target text not null,
    detail text not null default '{}'
) strict;
