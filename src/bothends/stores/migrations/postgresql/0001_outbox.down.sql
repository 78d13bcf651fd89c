drop function {s}.outbox_add;
drop table {s}.outbox;
drop sequence {s}.outbox_seq;
drop table {s}.meta;
