-- Leases are judged by the boot clock, which nobody can set; another boot's are over. lease_until is the wall clock's,
-- for people.
create table bothends_relays (
    id integer primary key autoincrement,    -- an epoch: never given twice
    name text not null,
    pid integer not null,
    host text not null,
    process text not null default '',        -- names the process as no other; on its host it is known to be dead at once
    started_at real not null default ((julianday('now') - 2440587.5) * 86400.0),
    lease_s real not null,
    lease_until real not null,
    boot text not null,
    boot_until real not null,
    state text not null default 'ok',
    detail text not null default ''
) strict;

create table bothends_relay_lanes (
    lane integer primary key check (lane between 0 and 63),
    relay integer
) strict;
insert into bothends_relay_lanes (lane)
    with recursive lanes (n) as (select 0 union all select n + 1 from lanes where n < 63) select n from lanes;

-- For rates; what is left of the outbox is the cursor.
create table bothends_relay_progress (
    id integer primary key autoincrement,
    relay integer not null,
    lanes integer not null,                  -- bit n: lane n
    hwm integer not null,
    published integer not null default 0,
    at real not null default ((julianday('now') - 2440587.5) * 86400.0)
) strict;

create table bothends_held (
    seq integer primary key,
    lane integer not null,
    id text not null, source text not null, type text not null, topic text not null, key blob, body blob,
    content_type text, time text not null, version integer not null, attributes text, headers blob,
    state text not null,                     -- retrying | behind | place | dead
    passed integer not null default 0,       -- 1: dead, and its key goes on without it
    attempts integer not null default 0,
    next_at real,                            -- when it is tried (retrying) or released (behind); of a key only its head has one
    reason text not null default '',
    error text not null default '',
    owner_request text,
    held_at real not null default ((julianday('now') - 2440587.5) * 86400.0)
) strict;
create index bothends_held_key on bothends_held (lane, topic, key, seq) where not passed;
create index bothends_held_next_at on bothends_held (next_at) where next_at is not null;
create index bothends_held_place on bothends_held (topic, seq) where state = 'place';
create index bothends_held_request on bothends_held (seq) where owner_request is not null;
create index bothends_held_turn on bothends_held (lane, topic, key) where next_at is not null;

-- Whose turn it is, kept by the table itself, whoever changes what: the head of a key is its lowest row that is not passed
-- over. Where that is `retrying` or `behind` it has next_at, and no other row of the key has; without a key each is its own.
-- The view is the rule's name: each trigger of the table writes into it which row has changed.
create view bothends_held_heads as select seq, lane, topic, key from bothends_held where next_at is not null;
create trigger bothends_held_heads_kept instead of insert on bothends_held_heads begin
    update bothends_held set next_at = null
    where lane = new.lane and topic = new.topic and key = new.key and next_at is not null
      and (passed or state not in ('retrying', 'behind') or exists (select 1 from bothends_held b where
        b.lane = bothends_held.lane and b.topic = bothends_held.topic and b.key = bothends_held.key and not b.passed
        and b.seq < bothends_held.seq));
    update bothends_held set next_at = (julianday('now') - 2440587.5) * 86400.0
    where seq = (select b.seq from bothends_held b where b.lane = new.lane and b.topic = new.topic and b.key = new.key
        and not b.passed order by b.seq limit 1) and state in ('retrying', 'behind') and next_at is null;
    update bothends_held set next_at = (julianday('now') - 2440587.5) * 86400.0
    where new.key is null and seq = new.seq and not passed and state in ('retrying', 'behind') and next_at is null;
end;
create trigger bothends_held_inserted after insert on bothends_held begin
    insert into bothends_held_heads (seq, lane, topic, key) values (new.seq, new.lane, new.topic, new.key);
end;
create trigger bothends_held_updated after update of state, passed, next_at on bothends_held begin
    insert into bothends_held_heads (seq, lane, topic, key) values (new.seq, new.lane, new.topic, new.key);
end;
create trigger bothends_held_deleted after delete on bothends_held begin
    insert into bothends_held_heads (seq, lane, topic, key) values (old.seq, old.lane, old.topic, old.key);
end;

create table bothends_delayed (
    seq integer primary key,
    lane integer not null,
    id text not null, source text not null, type text not null, topic text not null, key blob, body blob,
    content_type text, time text not null, version integer not null, attributes text, headers blob,
    deliver_at real not null
) strict;
create index bothends_delayed_deliver_at on bothends_delayed (deliver_at);
