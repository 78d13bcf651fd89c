-- A relay's row is its lease and its epoch (a fresh id at each registration). Whoever finds it expired deletes it; every
-- statement of a relay share-locks its own row first, so a relay that was frozen can neither mark nor move anything.
create table {s}.relays (
    id bigint generated always as identity primary key,
    name text not null,
    pid int not null,
    host text not null,
    process text not null default '',        -- names the process as no other; on its host it is known to be dead at once
    started_at timestamptz not null default clock_timestamp(),
    lease_s double precision not null,       -- a lease that ends later than now + lease_s counts as expired: the clock stepped
    lease_until timestamptz not null,
    state text not null default 'ok',        -- ok | paused (breaker open): shown by status
    detail text not null default ''
);

create table {s}.relay_lanes (
    lane smallint primary key check (lane between 0 and 63),
    relay bigint references {s}.relays on delete set null   -- null: free
);
insert into {s}.relay_lanes (lane) select g from generate_series(0, 63) g;

-- Appended, never updated: the newest row (by id) that has a lane's bit is that lane's cursor. Rotated like the outbox.
create sequence {s}.relay_progress_seq as bigint;
create table {s}.relay_progress (
    id bigint not null default nextval('{s}.relay_progress_seq'),
    relay bigint not null,
    lanes bigint not null,                   -- bit n: lane n
    hwm bigint not null,                     -- everything visible in snapshot with seq <= hwm has been confirmed,
    snapshot pg_snapshot not null,           -- copied to held or copied to delayed
    published bigint not null default 0,     -- events confirmed by this step, for rates
    at timestamptz not null default clock_timestamp()
) partition by list (((id / 65536) % 3));
create table {s}.relay_progress_0 partition of {s}.relay_progress for values in (0);
create table {s}.relay_progress_1 partition of {s}.relay_progress for values in (1);
create table {s}.relay_progress_2 partition of {s}.relay_progress for values in (2);
create index on {s}.relay_progress (id);

-- Rows that the cursor has passed without publishing them: of a key whose head was rejected, or of a place that is away.
create table {s}.held (
    seq bigint primary key,
    lane smallint not null,
    id text not null, source text not null, type text not null, topic text not null, key bytea, body bytea,
    content_type text, time text not null, version int not null, attributes text, headers bytea,
    state text not null,                     -- retrying | behind | place | dead
    passed boolean not null default false,   -- dead, and its key goes on without it
    attempts int not null default 0,
    next_at timestamptz,                     -- when it is tried (retrying) or released (behind); of a key only its head has one
    reason text not null default '',
    error text not null default '',
    owner_request text,                      -- an operator's wish, carried out by the lane's owner: retry | skip | discard
    held_at timestamptz not null default clock_timestamp()
);
create index on {s}.held (lane, topic, key, seq) where not passed;
create index on {s}.held (next_at) where next_at is not null;
create index on {s}.held (topic, seq) where state = 'place';
create index on {s}.held (seq) where owner_request is not null;
create index on {s}.held (lane, topic, key) where next_at is not null;

-- Whose turn it is, kept by the table itself, whoever changes what: the head of a key is its lowest row that is not passed
-- over. Where that is `retrying` or `behind` it has next_at, and no other row of the key has; without a key each is its own.
-- `offset 0` and the settings: looked up key by key, whatever is expected of a table that was empty a moment ago.
create function {s}.held_heads() returns trigger language plpgsql
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
begin
    if pg_trigger_depth() > 1 then
        return null;  -- by what is changed here
    end if;
    update {s}.held h set next_at = null
    from (select distinct lane, topic, key from changed where key is not null) k
    cross join lateral (
        select t.seq from {s}.held t
        where t.lane = k.lane and t.topic = k.topic and t.key = k.key and t.next_at is not null
          and (t.passed or t.state not in ('retrying', 'behind') or exists (select from {s}.held b where b.lane = t.lane
            and b.topic = t.topic and b.key = t.key and not b.passed and b.seq < t.seq)) offset 0) other
    where h.seq = other.seq;
    update {s}.held h set next_at = clock_timestamp()
    from (select distinct lane, topic, key from changed where key is not null) k
    cross join lateral (
        select t.seq, t.state, t.next_at from {s}.held t
        where t.lane = k.lane and t.topic = k.topic and t.key = k.key and not t.passed order by t.seq limit 1) head
    where h.seq = head.seq and head.state in ('retrying', 'behind') and head.next_at is null;
    update {s}.held h set next_at = clock_timestamp()
    from (select seq from changed where key is null) c
    cross join lateral (
        select t.seq from {s}.held t where t.seq = c.seq and not t.passed and t.state in ('retrying', 'behind')
          and t.next_at is null offset 0) own
    where h.seq = own.seq;
    return null;
end $$;
create trigger held_inserted after insert on {s}.held
    referencing new table as changed for each statement execute function {s}.held_heads();
create trigger held_updated after update on {s}.held
    referencing new table as changed for each statement execute function {s}.held_heads();
create trigger held_deleted after delete on {s}.held
    referencing old table as changed for each statement execute function {s}.held_heads();

create table {s}.delayed (
    seq bigint primary key,
    lane smallint not null,
    id text not null, source text not null, type text not null, topic text not null, key bytea, body bytea,
    content_type text, time text not null, version int not null, attributes text, headers bytea,
    deliver_at timestamptz not null
);
create index on {s}.delayed (deliver_at);

-- Rows at or below the hwm whose transaction ended after the cursor's snapshot was taken. A function for its setting: on a
-- table without statistics the planner would read all of it; with statistics it would start parallel workers for the rows
-- that it expects and that are not there, at each look. `seq + 0`: by xid, not by seq, whatever the statistics say.
-- p_lanes -1, every lane: none is computed.
create function {s}.outbox_late(
    p_lanes bigint, p_running xid8[], p_xmax xid8, p_target pg_snapshot, p_hwm bigint, p_after bigint, p_rows int
) returns setof {s}.outbox language plpgsql stable
set enable_seqscan = off set max_parallel_workers_per_gather = 0 set jit = off set plan_cache_mode = force_generic_plan as $$
begin
    return query
    select * from {s}.outbox o
    where (o.xid = any (p_running) or o.xid >= p_xmax)
      and (p_target is null or pg_visible_in_snapshot(o.xid, p_target))
      and o.seq + 0 <= p_hwm and o.seq + 0 > p_after and (p_lanes = -1 or ((p_lanes >> {s}.lane(o.key, o.seq)) & 1) <> 0)
    order by o.seq + 0 limit p_rows;
end $$;

-- How many of the first p_rows new rows make a page: up to the one with which its bodies go beyond p_bytes. Lengths are
-- read without the bodies. In a function, whose plan is kept: planning this costs more than running it.
create function {s}.outbox_fit(p_lanes bigint, p_target pg_snapshot, p_hwm bigint, p_rows int, p_bytes bigint)
returns bigint language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set max_parallel_workers_per_gather = 0 set jit = off
set plan_cache_mode = force_generic_plan as $$
begin
    if (select coalesce(sum(octet_length(b.body)), 0) < p_bytes from (
            select o.body from {s}.outbox o
            where o.seq > p_hwm and (p_lanes = -1 or ((p_lanes >> {s}.lane(o.key, o.seq)) & 1) <> 0)
              and (p_target is null or pg_visible_in_snapshot(o.xid, p_target))
            order by o.seq limit p_rows) b) then
        return p_rows;
    end if;
    return (select count(*) from (
        select sum(w.bytes) over (order by w.seq rows unbounded preceding) - w.bytes as before from (
            select o.seq, coalesce(octet_length(o.body), 0) as bytes from {s}.outbox o
            where o.seq > p_hwm and (p_lanes = -1 or ((p_lanes >> {s}.lane(o.key, o.seq)) & 1) <> 0)
              and (p_target is null or pg_visible_in_snapshot(o.xid, p_target))
            order by o.seq limit p_rows) w) z
        where z.before < p_bytes);
end $$;
