drop function {s}.outbox_add;
drop table {s}.outbox;
drop function {s}.lane;
drop sequence {s}.outbox_seq;
drop table {s}.meta;
