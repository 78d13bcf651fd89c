-- SQLite has no log to read: its relays always poll. The columns are those of PostgreSQL, so that status reads both alike.
alter table bothends_relays add column wants text not null default 'poll';
alter table bothends_relays add column source text not null default 'poll';
alter table bothends_relays add column reason text not null default '';
