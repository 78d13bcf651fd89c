-- The tables of PostgreSQL's files under the prefix bothends_, same columns. Times are Unix seconds (REAL) by the file's
-- host. SQLite has one writer at a time, so commit order is seq order; the relay reads what is left and deletes what is
-- confirmed, so there are no children, no transaction ids and no snapshots.
create table bothends_meta (
    name text primary key,
    value text not null
) strict;

create table bothends_outbox (
    seq integer primary key autoincrement,
    key_lane integer,              -- from the key's bytes by core/lanes.py (SQLite has no sha256); null: no key
    lane integer not null generated always as (coalesce(key_lane, seq & 63)) stored,
    id text not null,
    source text not null,
    type text not null,
    topic text not null,
    key blob,
    body blob,                     -- null: a tombstone
    content_type text,
    time text not null,
    version integer not null default 1,
    attributes text,
    headers blob,
    deliver_at real                -- Unix seconds; null: at once
) strict;
create unique index bothends_outbox_id on bothends_outbox (id, source);
