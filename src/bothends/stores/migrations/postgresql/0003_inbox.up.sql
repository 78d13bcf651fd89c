create table {s}.consumers (
    id int generated always as identity primary key,
    name text not null unique,               -- <service>.<consumer>, with the optional prefix
    service text not null,
    owner text not null default '',
    started_at timestamptz not null default clock_timestamp(),
    start_at text not null default '',       -- as declared at the first start
    topics text not null default '[]',       -- JSON array
    paused boolean not null default false,
    processed bigint not null default 0      -- written rarely, for rates
);

-- One row per (consumer, source, id), written in the handler's transaction.
create table {s}.inbox (
    consumer int not null,
    source text not null,
    id text not null,
    state "char" not null default 'p',       -- p processed, k parked, d dead, x discarded
    hash bytea not null,                     -- SHA-256 of the content
    changed_at timestamptz not null default clock_timestamp(),
    result bytea,
    primary key (consumer, id, source)
);
create index on {s}.inbox (consumer, changed_at) where state = 'p';   -- purge, and the rate of each consumer

-- A handler that ends the worker's transaction with a COMMIT of its own would part the inbox row from what comes after.
-- The worker names its transaction in a setting just before its own COMMIT; any other COMMIT is refused here.
create function {s}.inbox_commit() returns trigger language plpgsql as $$
begin
    if current_setting('bothends.commit', true) is distinct from pg_current_xact_id()::text then
        raise exception using errcode = 'BE001',
            message = 'this transaction belongs to a bothends worker, which commits it after the handler has returned',
            hint = 'Remove COMMIT from the handler.';
    end if;
    return null;
end $$;
create constraint trigger inbox_commit after insert on {s}.inbox deferrable initially deferred
    for each row when (new.state = 'p') execute function {s}.inbox_commit();

-- The first statement of a work transaction: the settings that end it when its process freezes, the inbox rows, and then,
-- as a statement of its own (each has a snapshot of its own here), a look at the keys that wait: whoever has waited in the
-- first sees in the second what was parked meanwhile. `sources` and `ids` are those that are new, null where all are;
-- the keys are null where more than p_most wait. Cached plans are why this is a function: planning cost more than running.
create function {s}.inbox_admit(
    p_consumer int, p_sources text[], p_ids text[], p_hashes bytea[], p_lock_timeout text, p_lease text, p_most int,
    out transaction text, out sources text[], out ids text[], out topics text[], out keyed boolean[], out keys bytea[]
) language plpgsql as $$
declare
    v_fresh int;
begin
    perform set_config('lock_timeout', coalesce(p_lock_timeout, current_setting('lock_timeout')), true),
            set_config('idle_in_transaction_session_timeout', p_lease, true), set_config('tcp_user_timeout', p_lease, true);
    if cardinality(p_ids) = 0 then
        transaction := pg_current_xact_id();
    else
        with admitted as (
            insert into {s}.inbox as i (consumer, source, id, hash)
            select p_consumer, n.source, n.id, n.hash from unnest(p_sources, p_ids, p_hashes) as n (source, id, hash)
            on conflict do nothing returning i.source, i.id)
        select count(*), array_agg(a.source), array_agg(a.id) into v_fresh, sources, ids from admitted a;
        transaction := coalesce(pg_current_xact_id_if_assigned()::text, '');
        if v_fresh = cardinality(p_ids) then
            sources := null;
            ids := null;
        else
            sources := coalesce(sources, '{}');
            ids := coalesce(ids, '{}');
        end if;
    end if;
    select coalesce(array_agg(b.topic), '{}'), coalesce(array_agg(b.keyed), '{}'), coalesce(array_agg(b.key), '{}')
        into topics, keyed, keys
        from (select w.topic, w.keyed, w.key from {s}.blocked_keys w where w.consumer = p_consumer limit p_most + 1) b;
    if cardinality(keys) > p_most then
        keys := null;
    end if;
end $$;

-- What the worker asks just before its own COMMIT. It fails where nothing may be committed, so both are sent at once: the
-- transaction is another one than the worker began, or somebody took the worker for dead and its start mark away.
create function {s}.inbox_gate(p_run bigint, p_last boolean, p_transaction text) returns void language plpgsql as $$
begin
    if p_transaction <> '' and p_transaction <> pg_current_xact_id()::text then
        raise exception using errcode = 'BE001', message = 'this is not the transaction that the bothends worker began';
    end if;
    if p_last then
        delete from {s}.runs where id = p_run and not voided;
    else
        perform 1 from {s}.runs where id = p_run and not voided;
    end if;
    if p_run is not null and not found then
        raise exception using errcode = 'BE002', message = 'the start mark of this bothends worker is gone';
    end if;
    perform set_config('bothends.commit', pg_current_xact_id()::text, true);
end $$;

-- A key that waits: its head is tried again, everything later of it waits behind. keyed = false: a message without a
-- key, which waits alone (key is then its own id).
create table {s}.blocked_keys (
    consumer int not null,
    topic text not null,
    keyed boolean not null,
    key bytea not null,
    state text not null default 'retrying',  -- retrying | held | schema
    next_at timestamptz not null,
    epoch bigint not null default 0,         -- grows with each drainer that takes the key
    lease_until timestamptz,                 -- null: nobody drains it
    drainer text not null default '',
    since timestamptz not null default clock_timestamp(),
    primary key (consumer, topic, key, keyed)
);
create index on {s}.blocked_keys (consumer, next_at) where state <> 'held';

create sequence {s}.parked_seq as bigint;
create table {s}.parked (
    consumer int not null,
    topic text not null,
    keyed boolean not null,
    key bytea not null,
    position bigint not null default nextval('{s}.parked_seq'),
    source text not null,
    id text not null,
    type text not null,
    hash bytea not null,
    record_partition int not null,
    record_offset bigint not null,
    timestamp_ms bigint not null,
    record_key bytea,
    body bytea,                              -- raw value as delivered; null: a tombstone
    headers bytea not null,                  -- MessagePack: [[name, bytes], ...] as delivered
    attempts int not null default 0,         -- handler runs charged so far
    crashes int not null default 0,          -- deaths charged while it ran alone
    redrives int not null default 0,
    dead_letter bigint,                      -- the dead letter that this is a redrive of
    reason text not null default '',
    error text not null default '',
    history text not null default '[]',      -- JSON array, bounded: [{"at":..., "attempt":..., "error":...}]
    parked_at timestamptz not null default clock_timestamp(),
    primary key (consumer, topic, key, keyed, position)
);
create index on {s}.parked (consumer, id);

create table {s}.dead_letters (
    id bigint generated always as identity primary key,
    consumer int not null,
    owner text not null default '',
    state text not null default 'open',      -- open | redriven | done | discarded
    reason text not null,
    fingerprint text not null,
    error text not null default '',
    source text not null default '',         -- empty where it could not be decoded
    message_id text not null default '',
    type text not null default '',
    hash bytea,
    edited_hash bytea,
    topic text not null,
    record_partition int not null,
    record_offset bigint not null,
    timestamp_ms bigint not null default -1,
    keyed boolean not null default false,
    key bytea,                               -- the queue's key, as in parked
    record_key bytea,                        -- the record's key as delivered
    position bigint not null default nextval('{s}.parked_seq'),
    body bytea,
    headers bytea not null,
    attempts int not null default 0,
    crashes int not null default 0,
    redrives int not null default 0,
    history text not null default '[]',
    at timestamptz not null default clock_timestamp(),
    changed_at timestamptz not null default clock_timestamp()
);
create index on {s}.dead_letters (consumer, fingerprint) where state = 'open';
create index on {s}.dead_letters (consumer, message_id);
create index on {s}.dead_letters (changed_at) where state in ('done', 'discarded');
create unique index on {s}.dead_letters (consumer, topic, record_partition, record_offset) where message_id = '';

-- A start mark per batch, committed before its handlers run: found open after a crash, its messages run one at a time.
create table {s}.runs (
    id bigint generated always as identity primary key,
    consumer int not null,
    worker text not null,
    backend_pid int not null,
    messages text not null,                  -- JSON array of [source, id]
    alone boolean not null default false,
    crashes int not null default 0,
    opened timestamptz not null default clock_timestamp(),
    voided boolean not null default false
);
create index on {s}.runs (consumer);
