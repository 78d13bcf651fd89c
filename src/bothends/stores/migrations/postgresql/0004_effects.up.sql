create table {s}.effects (
    consumer int not null,
    source text not null,
    message_id text not null,
    name text not null,
    state text not null,                     -- in_progress | completed | refused | not_sent | unknown
    key text not null,                       -- the idempotency key that is handed to what is called
    result bytea,                            -- JSON
    error text not null default '',
    runs int not null default 1,
    worker text not null default '',         -- who makes the call now
    lease_until timestamptz,                 -- in_progress, and its worker alive, until then
    decided_by text,                         -- an operator's decision: repeat | not-done | done
    started_at timestamptz not null default clock_timestamp(),
    changed_at timestamptz not null default clock_timestamp(),
    primary key (consumer, message_id, source, name)
);
create index on {s}.effects (changed_at);

create table {s}.audit (
    id bigint generated always as identity primary key,
    at timestamptz not null default clock_timestamp(),
    by text not null,
    reason text not null default '',
    verb text not null,
    target text not null,
    detail text not null default '{}'      -- JSON
);
