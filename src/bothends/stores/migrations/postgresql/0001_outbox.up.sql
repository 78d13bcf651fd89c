-- {s} is the quoted schema. Each child table takes 1,048,576 sequence values in turn, so the sequence itself picks the
-- child, and a child that was relayed whole is truncated: rows are never updated, never deleted one by one.
create table {s}.meta (
    name text primary key,
    value text not null
);

create sequence {s}.outbox_seq as bigint;

create table {s}.outbox (
    seq bigint not null default nextval('{s}.outbox_seq'),
    xid xid8 not null default pg_current_xact_id(),
    id text not null,
    source text not null,
    type text not null,
    topic text not null,
    key bytea,
    body bytea,                    -- null: a tombstone
    content_type text,
    time text not null,            -- RFC 3339, the event's own time
    version int not null default 1,
    attributes text,               -- JSON object of text: other CloudEvents attributes: subject, correlationid, causationid, traceparent
    headers bytea,                 -- MessagePack: [[name, bytes], ...] in the caller's order; null: none
    deliver_at timestamptz         -- null: at once
) partition by list (((seq / 1048576) % 3));

-- The lane orders: one lane has one relay. This is the one place where it is computed. Not a generated column: PostgreSQL
-- plans its expression anew for each INSERT, which costs the caller more than the whole rest of the row.
create function {s}.lane(key bytea, seq bigint) returns int language sql immutable parallel safe
return coalesce(get_byte(sha256(key), 0), (seq & 63)::int) & 63;

create table {s}.outbox_0 partition of {s}.outbox for values in (0);
create table {s}.outbox_1 partition of {s}.outbox for values in (1);
create table {s}.outbox_2 partition of {s}.outbox for values in (2);
-- By seq: new rows. By xid: rows whose transaction committed late. By id: the same id twice is refused.
create index on {s}.outbox (seq);
create index on {s}.outbox (xid);
create unique index outbox_0_id on {s}.outbox_0 (id, source);
create unique index outbox_1_id on {s}.outbox_1 (id, source);
create unique index outbox_2_id on {s}.outbox_2 (id, source);

-- Adds one event where a plain INSERT is not enough: strict order takes a lock on the key before it draws the sequence
-- value; a given id is checked against what is stored. False: this source has an event with this id, nothing was written.
--
-- Within one child the unique index decides, and makes a second open transaction wait for the first to end. Across the
-- border of two children it cannot: so a transaction that gives ids holds a shared lock on each generation (2^20 sequence
-- values, one child) that it draws from. Whoever finds the previous generation still in use, or has an old snapshot, also
-- tries the id in the previous child, and takes that try back. Locks are per generation, not per id: an import of any
-- size holds a handful.
create function {s}.outbox_add(
    p_strict boolean, p_given boolean, p_id text, p_source text, p_type text, p_topic text, p_key bytea, p_body bytea,
    p_content_type text, p_time text, p_version int, p_attributes text, p_headers bytea, p_deliver_at timestamptz
) returns boolean language plpgsql volatile as $$
declare
    space constant int := hashtext('{s}.outbox ids');
    fresh constant boolean := current_setting('transaction_isolation') like 'read %';
    drawn bigint;
    generation int;
    in_use boolean := false;
begin
    if p_strict and p_key is not null then
        perform pg_advisory_xact_lock(hashtextextended('{s}.outbox key ' || p_topic || ' ' || encode(p_key, 'hex'), 0));
    end if;
    if not p_given then
        insert into {s}.outbox (id, source, type, topic, key, body, content_type, time, version, attributes, headers,
            deliver_at)
        values (p_id, p_source, p_type, p_topic, p_key, p_body, p_content_type, p_time, p_version, p_attributes,
            p_headers, p_deliver_at);
        return true;
    end if;

    loop  -- ends: another turn needs 2^20 values to be drawn by others meanwhile
        drawn := nextval('{s}.outbox_seq');
        generation := drawn / 1048576;
        perform pg_advisory_xact_lock_shared(space, generation);
        exit when (select last_value / 1048576 from {s}.outbox_seq) = generation;
    end loop;
    if generation > 0 then
        in_use := not pg_try_advisory_lock(space, generation - 1);
        if not in_use then
            perform pg_advisory_unlock(space, generation - 1);
        end if;
    end if;
    if exists (select from {s}.outbox o where o.id = p_id and o.source = p_source) then
        return false;
    end if;
    if generation > 0 and (in_use or not fresh) then
        begin
            insert into {s}.outbox (seq, id, source, type, topic, time)
            values (drawn - 1048576, p_id, p_source, '', '', '');
            raise exception 'taken back' using errcode = 'BE001';
        exception
            when sqlstate 'BE001' then null;
            when unique_violation then return false;
        end;
    end if;
    if fresh then
        insert into {s}.outbox (seq, id, source, type, topic, key, body, content_type, time, version, attributes,
            headers, deliver_at)
        values (drawn, p_id, p_source, p_type, p_topic, p_key, p_body, p_content_type, p_time, p_version, p_attributes,
            p_headers, p_deliver_at)
        on conflict do nothing;
        return found;
    end if;
    -- With an old snapshot ON CONFLICT would fail the whole transaction on a row that it cannot see.
    begin
        insert into {s}.outbox (seq, id, source, type, topic, key, body, content_type, time, version, attributes,
            headers, deliver_at)
        values (drawn, p_id, p_source, p_type, p_topic, p_key, p_body, p_content_type, p_time, p_version, p_attributes,
            p_headers, p_deliver_at);
    exception
        when unique_violation then return false;
    end;
    return true;
end $$;
