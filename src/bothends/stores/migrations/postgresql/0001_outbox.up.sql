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
    -- The lane orders: one lane has one relay. This column is the one place where it is computed.
    lane smallint not null generated always as (
        case when key is null then (seq & 63)::int else get_byte(decode(md5(key), 'hex'), 0) & 63 end) stored,
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

create table {s}.outbox_0 partition of {s}.outbox for values in (0);
create table {s}.outbox_1 partition of {s}.outbox for values in (1);
create table {s}.outbox_2 partition of {s}.outbox for values in (2);
-- By seq: new rows. By xid: rows whose transaction committed late. By id: the same id twice is refused.
create index on {s}.outbox (seq);
create index on {s}.outbox (xid);
create unique index outbox_0_id on {s}.outbox_0 (id, source);
create unique index outbox_1_id on {s}.outbox_1 (id, source);
create unique index outbox_2_id on {s}.outbox_2 (id, source);
